"""MariaDB on one machine and sysbench on another, run on both by boots.py.

   node 1 (NODE=1): mariadbd 10.7.0.1 ═══ Ethernet ═══ 10.7.0.2 (NODE=2): sysbench

   node 1: sshd, a bench's agent    ═══ Ethernet ═══ node 2: `ringroad bench net --inventory`

   node 1: an echo server        ═══ eth0, eth0.7 ═══ node 2: its client, over IPv6, a VLAN, a second subnet

They tell each other how far they are through files in $SHARE.
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path

from integration.lib import mariadb, rdma_counters, sysbench

from .. import sshd, support
from ..test_bench_net import bench, rows
from ..test_first_byte import FROM_THE_FIRST
from ..test_sysbench import SEED, check_report
from ..two_hosts import NODE, OTHER_S, Meeting

SERVES = NODE == "1"
SERVER, _, CLIENT = os.environ.get("RINGROAD_RDMA_ADDRS", "").partition(" ")
PORT = 23306
THREADS = 8
SECONDS = 15


def sent_packets():
    return sum(counters["sent_pkts"] for counters in rdma_counters.read().values())


def test_mariadb_and_sysbench_on_two_hosts_talk_over_rdma(tmp_path):
    host = support.Host(tmp_path)
    # The client's threads wait for their channels, so that none depends on how slow a machine is.
    timing = {"promote_after": "{ messages = 1 }"} if SERVES else \
        FROM_THE_FIRST | {"wait": '"25s"'}
    policy = host.policy("two", [PORT], via="rdma", subnet="10.7.0.0/24", **timing)
    preload = host.preload(policy)
    before = sent_packets()
    with Meeting("load") as meeting:
        messages = (serve if SERVES else load)(host, preload, meeting)
    # Each message that the channel carried was sent or acknowledged; a packet may hold two.
    assert sent_packets() - before >= messages / 2


def serve(host, preload, meeting):
    server = mariadb.MariaDb("server", support.prepared_data(), host.directory, SERVER, PORT,
                             preload, native_aio=False, options=support.FOR_HUNDREDS)
    with server:
        meeting.say("serving")
        meeting.hear("report")
        process = host.ss(server.pid)
        print(f"promoted {process['streams_promoted']} of {process['streams_opened']}, "
              f"refused {process['promotions_refused']}, {process['totals']}")
        assert process["streams_opened"] == THREADS
        assert process["streams_promoted"] == THREADS
        assert process["totals"]["channel"]["rx_messages"] > 0
        assert server.stop()
    return process["totals"]["channel"]["rx_messages"]


def load(host, preload, meeting):
    meeting.hear("serving")
    run = sysbench.Load(SERVER, PORT, support.TABLES, support.TABLE_SIZE).start(
        "oltp_read_write", host.directory / "log", THREADS, SEED, seconds=SECONDS, preload=preload)
    try:
        support.wait_for(lambda: len(host.on_channel(run.pid)) == THREADS, "streams on RDMA", SECONDS)
        for stream in host.on_channel(run.pid):
            assert stream["carrier"] == "rdma" and stream["remote"] == f"{SERVER}:{PORT}", stream
        messages = host.ss(run.pid)["totals"]["channel"]["tx_messages"]
        report = run.finish()
        # Transactions may wait for each other in a circle; the server's count is not asked here.
        check_report(report, server_deadlocks=report["transactions"] // 10)
    finally:
        run.kill()
    meeting.say("report", {"queries": report["queries"]})
    return messages


def gids():
    """The addresses that the device can be asked for."""
    return {path.read_text() for path in Path("/sys/class/infiniband/rxe0/ports/1/gids").iterdir()}


@contextlib.contextmanager
def network(*commands, undo):
    """Makes a network of the two hosts by commands of ip(8), and takes it away."""
    before = gids()
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)
        support.wait_for(lambda: gids() - before, "the device to know the address", 20)
        yield
    finally:
        subprocess.run(["ip", *undo.split()], check=True)


def echo_over(tmp_path, name, subnet, addresses):
    """An echo over RDMA."""
    host = support.Host(tmp_path)
    policy = host.policy(name, [PORT + 1], via="rdma", subnet=subnet,
                         **FROM_THE_FIRST | {"wait": '"25s"'})
    preload = host.preload(policy)
    sent = sent_packets()
    with Meeting(name) as meeting:
        meeting.meet("up")
        if SERVES:
            with support.Talker("serve", addresses[0], PORT + 1, preload=preload) as server:
                assert server.line() == f"PORT {PORT + 1}"
                meeting.say("serving")
                meeting.hear("asked")
                streams = host.on_channel(server.pid)
                meeting.meet("seen")
        else:
            meeting.hear("serving")
            with support.Talker("ask", addresses[0], PORT + 1, preload=preload) as asker:
                assert asker.line() == "connected"
                for number in range(20):
                    assert asker.tell(f"say {number}") == str(number)
                streams = host.on_channel(asker.pid)
                meeting.say("asked")
                meeting.meet("seen")
        meeting.meet("over")
    assert [stream["carrier"] for stream in streams] == ["rdma"], streams
    assert addresses[0] in streams[0]["local" if SERVES else "remote"], streams
    assert sent_packets() - sent >= 20


def test_a_stream_over_ipv6(tmp_path):
    with network(f"-6 addr add fd07::{NODE}/64 dev eth0 nodad", undo=f"-6 addr del fd07::{NODE}/64 dev eth0"):
        echo_over(tmp_path, "ipv6", "fd07::/64", ["fd07::1", "fd07::2"])


def test_a_stream_over_a_vlan(tmp_path):
    with network("link add link eth0 name eth0.7 type vlan id 7", f"addr add 10.8.0.{NODE}/24 dev eth0.7",
                 "link set eth0.7 up", undo="link del eth0.7"):
        echo_over(tmp_path, "vlan", "10.8.0.0/24", ["10.8.0.1", "10.8.0.2"])


def test_a_stream_to_another_address_of_the_device(tmp_path):
    with network(f"addr add 10.6.0.{NODE}/24 dev eth0", undo=f"addr del 10.6.0.{NODE}/24 dev eth0"):
        echo_over(tmp_path, "second", "10.6.0.0/24", ["10.6.0.1", "10.6.0.2"])


def test_the_bench_reaches_the_other_host_by_ssh_and_measures_between_the_two(tmp_path):
    with Meeting("bench") as meeting:
        (answer_by_ssh if SERVES else bench_by_ssh)(tmp_path, meeting)


def answer_by_ssh(directory, meeting, limit_s=OTHER_S):
    with sshd.Sshd(directory / "sshd", SERVER) as server:
        meeting.say("ssh", {"port": server.port, "key": server.key.read_text()})
        meeting.hear("measured", limit_s)


def bench_by_ssh(directory, meeting):
    reached = meeting.hear("ssh")
    key = directory / "user"
    key.touch(0o600)
    key.write_text(reached["key"])
    inventory = directory / "hosts.toml"
    inventory.write_text(
        f'[server]\nssh = "root@{SERVER}"\naddress = "{SERVER}"\n'
        f'ssh_options = {json.dumps(sshd.options(reached["port"], directory))}\n'
        f'ringroad = "{support.BUILD / "bin" / "ringroad"}"\n\n[client]\naddress = "{CLIENT}"\n')
    carriers = ("tcp", "rdma", "write")
    done = bench(directory / "out", "--measures", "rate", "--carriers", ",".join(carriers),
                 "--inventory", inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(directory / "out")
    assert set(found) == {("rate", 1, name) for name in carriers}
    for (_, _, name), row in found.items():
        assert row["figures"]["per_s"]["median"] > 0, row
        # Of either device, for the server's is another host's.
        assert (row["figures"]["packets"]["median"] > 0) == (name != "tcp"), row
    meeting.say("measured")
