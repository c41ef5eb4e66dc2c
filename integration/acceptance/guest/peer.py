"""`ringroad doctor --peer` from one machine to another, run on both by boots.py.

   node 1 (NODE=1): --answer 10.7.0.1 ═══ Ethernet ═══ 10.7.0.2 (NODE=2): doctor --peer

In each test node 1 has something to be found, and node 2 finds it.
"""

import contextlib
import os
import re
import subprocess

import pytest

from integration.lib import rdma_counters

from .. import support
from ..doctor import Answerer, evidence, examine, levels
from ..two_hosts import NODE, Meeting

PORT = 4790
ANSWERS = NODE == "1"
ADDRESS = os.environ.get("RINGROAD_RDMA_ADDRS", "").partition(" ")[0]
NETWORK = "10.7.0.0/24"
PINGS = re.compile(r"TCP p50 ([\d.]+) us, min ([\d.]+) us \((\d+)\); "
                   r"RDMA p50 ([\d.]+) us, min ([\d.]+) us \((\d+)\)")
ONLY_TCP = re.compile(r"TCP p50 [\d.]+ us, min [\d.]+ us \(\d+\); RDMA none")
FILTER = """table inet strict {
  chain input { type filter hook input priority 0; policy accept; udp dport 4791 drop; }
}
"""


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


def key_file(host, secret):
    path = host.directory / "key"
    path.write_text(secret)
    path.chmod(0o600)
    return path


def meet(request, host, policy, answering=True, around=contextlib.nullcontext):
    """Node 1 answers, if it does, until node 2 has its findings, which only that one returns."""
    with Meeting(request.node.name) as meeting:
        if not ANSWERS:
            meeting.hear("ready")
            found = examine(host, policy, "--peer", f"{ADDRESS}:{PORT}")
            meeting.say("done")
            return found
        with around():
            if answering:
                with Answerer(host, policy, f"{ADDRESS}:{PORT}"):
                    meeting.say("ready")
                    meeting.hear("done")
            else:
                meeting.say("ready")
                meeting.hear("done")
        return None


def sent_packets():
    return sum(counters["sent_pkts"] for counters in rdma_counters.read().values())


def test_a_peer_on_another_host_is_promoted_and_pinged_over_both(request, host):
    before = sent_packets()
    found = meet(request, host, host.policy("db", [PORT], via="rdma", subnet=NETWORK))
    if ANSWERS:
        return
    for name in ("peer-policy", "peer-route", "peer-gid", "peer-tcp", "peer-cm", "peer-promotion"):
        assert levels(found[name]) == {"ok"}, found[name]
    assert "leaves by eth0 from 10.7.0.2" in evidence(found["peer-route"])
    assert re.search(r"rxe0 index \d+: 10\.7\.0\.2, RoCE v2", evidence(found["peer-gid"]))
    assert "on rdma, device rxe0" in evidence(found["peer-promotion"])
    assert [finding["subject"] for finding in found["peer-ping"]] == [
        f"{ADDRESS}:{PORT}, 64 B", f"{ADDRESS}:{PORT}, 64 KiB"]
    rdma_pings = 0
    for finding in found["peer-ping"]:
        # Which is faster is no matter here.
        match = PINGS.fullmatch(finding["evidence"])
        assert match and finding["level"] in ("ok", "warn"), finding
        rdma_pings += int(match[6])
    assert sent_packets() - before >= rdma_pings > 0


def test_a_peer_where_nobody_listens_is_told_by_tcp_and_nothing_else(request, host):
    found = meet(request, host, host.policy("db", [PORT], via="rdma", subnet=NETWORK),
                 answering=False)
    if ANSWERS:
        return
    assert levels(found["peer-tcp"]) == {"fail"}
    assert "connect: Connection refused" in evidence(found["peer-tcp"])
    assert "ringroad doctor --answer" in found["peer-tcp"][0]["remedy"]
    assert levels(found["peer-route"]) == levels(found["peer-gid"]) == {"ok"}
    assert not {"peer-cm", "peer-promotion", "peer-ping"} & set(found), found


@contextlib.contextmanager
def filtered(host, policy):
    """What comes in for RoCE is dropped; its own doctor says so."""
    subprocess.run(["modprobe", "nf_tables"], check=True)
    subprocess.run(["nft", "-f", "-"], input=FILTER, text=True, check=True)
    try:
        own = examine(host, policy, "--only", "firewall")
        assert levels(own["firewall"]) == {"fail"}, own
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "inet", "strict"], check=True)


def test_a_filtered_udp_4791_is_unreachable_while_tcp_is_well(request, host):
    policy = host.policy("db", [PORT], via="rdma", subnet=NETWORK)
    found = meet(request, host, policy, around=lambda: filtered(host, policy))
    if ANSWERS:
        return
    assert levels(found["peer-tcp"]) == {"ok"}
    assert levels(found["peer-cm"]) == {"fail"}, found
    assert "RDMA_CM_EVENT_UNREACHABLE" in evidence(found["peer-cm"])
    assert "UDP 4791" in found["peer-cm"][0]["remedy"]
    assert levels(found["peer-promotion"]) == {"fail"}
    assert "reason timeout" in evidence(found["peer-promotion"])
    assert len(found["peer-ping"]) == 2 and levels(found["peer-ping"]) == {"unknown"}
    assert all(ONLY_TCP.fullmatch(finding["evidence"]) for finding in found["peer-ping"]), found


def test_another_key_at_the_peer_is_told_as_that(request, host):
    key = key_file(host, f"this is the key of node {NODE}, and of no other")
    policy = host.policy("db", [PORT], via="rdma", subnet=NETWORK, key_file=f'"{key}"')
    found = meet(request, host, policy)
    if ANSWERS:
        return
    assert levels(found["peer-cm"]) == {"ok"}, found
    assert levels(found["peer-promotion"]) == {"fail"}
    assert "wrong_key" in evidence(found["peer-promotion"])
    assert all(ONLY_TCP.fullmatch(finding["evidence"]) for finding in found["peer-ping"]), found


def test_a_peer_that_the_policy_does_not_cover_is_only_measured_over_tcp(request, host):
    found = meet(request, host, host.policy(
        "db", [PORT], via="rdma", subnet=NETWORK if ANSWERS else "10.7.1.0/24"))
    if ANSWERS:
        return
    assert levels(found["peer-policy"]) == {"fail"}
    assert levels(found["peer-tcp"]) == {"ok"}
    assert not {"peer-cm", "peer-promotion"} & set(found), found


def test_a_peer_whose_policy_does_not_cover_this_host_answers_nothing(request, host):
    found = meet(request, host, host.policy(
        "db", [PORT], via="rdma", subnet="10.7.1.0/24" if ANSWERS else NETWORK))
    if ANSWERS:
        return
    assert levels(found["peer-policy"]) == levels(found["peer-tcp"]) == {"ok"}
    assert levels(found["peer-promotion"]) != {"ok"}, found
