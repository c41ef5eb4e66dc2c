"""`ringroad doctor` over RDMA, run inside the virtual machine by boots.py, first of all.

   ringroad doctor --peer ── 10.9.0.1 rxe0 ═══ veth ═══ rxe1 10.9.1.1 ── --answer
"""

import os
import re
import socket
import subprocess

import pytest

from integration.lib import rdma_counters

from .. import support
from ..doctor import Answerer, evidence, examine, levels

ADDRESS = os.environ.get("RINGROAD_SERVER_ADDR", "")
NETWORK = "10.9.0.0/16"
PAGES_SHORT = ("prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock",
               "--inh-caps=-ipc_lock")


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.fixture(name="policy")
def fixture_policy(host):
    return host.policy("db", [3306], via="rdma", subnet=NETWORK, traffic_class="106")


def sent_packets():
    return sum(counters["sent_pkts"] for counters in rdma_counters.read().values())


def test_the_doctor_finds_soft_roce_fit(host, policy):
    checks = examine(host, policy, "--user", "mysql", "--program", "/usr/sbin/mariadbd")
    for name in ("policy", "device", "modules", "access", "library", "port", "mtu", "route", "gid",
                 "traffic-class", "listener", "memlock", "fork", "program", "counters"):
        assert levels(checks[name]) == {"ok"}, checks[name]
    assert not {"fail", "warn"} & {level for found in checks.values() for level in levels(found)}
    assert {"rxe0 index 1: 10.9.0.1, RoCE v2", "rxe1 index 1: 10.9.1.1, RoCE v2"} == \
        {finding["evidence"] for finding in checks["gid"]}
    assert "RDMA MTU 4096" in evidence(checks["mtu"])


def test_the_doctor_sees_what_is_taken_away(host, policy):
    def run(*words):
        subprocess.run(words, check=True)

    run("ip", "link", "set", "v0", "mtu", "1500")
    os.chmod("/dev/infiniband/rdma_cm", 0o600)
    try:
        checks = examine(host, policy, "--user", "mysql", "--only", "mtu,access")
        assert "MTU 1500, RDMA MTU 1024" in evidence(checks["mtu"])
        assert levels(checks["mtu"]) == {"ok", "warn"}
        assert "mode 0600" in evidence(checks["access"])
    finally:
        os.chmod("/dev/infiniband/rdma_cm", 0o666)
        run("ip", "link", "set", "v0", "mtu", "4500")
    short = examine(host, policy, "--only", "memlock", prefix=PAGES_SHORT)
    assert levels(short["memlock"]) == {"fail"}
    assert "64 KiB; a stream locks 576 KiB" in evidence(short["memlock"])


def test_a_record_made_here_is_examined_like_this_machine(host, policy, tmp_path):
    only = ("--only", "device,port,mtu,route,gid,access,memlock,fork,listener,library")
    live = examine(host, policy, "--record", tmp_path / "tree", *only)
    assert examine(host, policy, "--root", tmp_path / "tree", *only) == live
    assert levels(live["gid"]) == {"ok"}


def test_a_peer_is_promoted_and_pinged_both_ways(host, policy):
    before = sent_packets()
    with Answerer(host, policy, f"{ADDRESS}:4790") as answerer:
        checks = examine(host, policy, "--peer", ADDRESS)
        assert answerer.stop()[0] == 0
    for name in ("peer-policy", "peer-route", "peer-gid", "peer-tcp", "peer-cm", "peer-promotion"):
        assert levels(checks[name]) == {"ok"}, checks[name]
    assert "on rdma, device rxe0" in evidence(checks["peer-promotion"])
    counts = 0
    for finding in checks["peer-ping"]:
        # Which is faster is no matter here.
        match = re.fullmatch(r"TCP p50 ([\d.]+) us, min ([\d.]+) us \((\d+)\); "
                             r"RDMA p50 ([\d.]+) us, min ([\d.]+) us \((\d+)\)", finding["evidence"])
        assert match, finding
        assert float(match[2]) <= float(match[1]) and float(match[5]) <= float(match[4])
        counts += int(match[6])
    assert len(checks["peer-ping"]) == 2
    # Each ping crossed the devices, there and back.
    assert sent_packets() - before >= 2 * counts


def test_a_peer_that_cannot_lock_memory_is_told_with_its_own_reason(host, policy):
    with Answerer(host, policy, f"{ADDRESS}:4790", prefix=PAGES_SHORT):
        checks = examine(host, policy, "--peer", f"{ADDRESS}:4790")
    assert levels(checks["peer-cm"]) == {"ok"}
    assert levels(checks["peer-promotion"]) == {"fail"}
    assert "reason peer_refused, at the peer memlock" in evidence(checks["peer-promotion"])


def test_a_server_without_ringroad_is_reached_by_cm_but_not_promoted(host, policy):
    with socket.create_server((ADDRESS, 0)) as listener:
        checks = examine(host, policy, "--peer", f"{ADDRESS}:{listener.getsockname()[1]}")
    assert "nobody listens on this port" in evidence(checks["peer-cm"])
    assert levels(checks["peer-promotion"]) == {"warn"}
    assert "peer_has_no_ringroad" in evidence(checks["peer-promotion"])


def test_a_preloaded_server_is_promoted_without_an_answerer(host, policy):
    preload = host.preload(host.policy("server", ["1-65535"], via="rdma", subnet=NETWORK))
    with support.Talker("serve", ADDRESS, 0, preload=preload) as server:
        port = int(server.line().split()[1])
        checks = examine(host, policy, "--peer", f"{ADDRESS}:{port}")
        assert levels(checks["peer-promotion"]) == {"ok"}, checks
        server.kill()


def test_a_preloaded_process_with_streams_is_found_preloaded(host, policy):
    with support.Talker("serve", ADDRESS, 0, preload=host.preload(policy)) as server:
        server.line()
        checks = examine(host, policy, "--pid", server.pid, "--only", "process,numa,irq,program")
        assert levels(checks["process"]) == {"ok"}
        assert levels(checks["program"]) == {"ok"}
        server.kill()
