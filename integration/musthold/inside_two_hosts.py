"""MariaDB on one machine and sysbench on another, run on both by test_softroce.py.

   node 1 (NODE=1): mariadbd 10.7.0.1 ═══ Ethernet ═══ 10.7.0.2 (NODE=2): sysbench

   node 1: sshd, a bench's agent    ═══ Ethernet ═══ node 2: `ringroad bench net --inventory`

They tell each other how far they are through files in $SHARE.
"""

import json
import os

from lib import mariadb, rdma_counters, sysbench

from . import sshd, support
from .test_bench_net import bench, rows
from .test_first_byte import FROM_THE_FIRST
from .test_sysbench import SEED, check_report
from .two_hosts import NODE, Meeting

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


def test_the_bench_reaches_the_other_host_by_ssh_and_measures_between_the_two(tmp_path):
    with Meeting("bench") as meeting:
        (answer_by_ssh if SERVES else bench_by_ssh)(tmp_path, meeting)


def answer_by_ssh(directory, meeting):
    with sshd.Sshd(directory / "sshd", SERVER) as server:
        meeting.say("ssh", {"port": server.port, "key": server.key.read_text()})
        meeting.hear("measured")


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
