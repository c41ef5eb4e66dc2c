"""MariaDB on one machine and sysbench on another, run on both by test_softroce.py.

   node 1 (NODE=1): mariadbd 10.7.0.1 ═══ Ethernet ═══ 10.7.0.2 (NODE=2): sysbench

They tell each other how far they are through files in $SHARE.
"""

import json
import os
from pathlib import Path

from lib import mariadb, rdma_counters, sysbench

from . import support
from .test_sysbench import SEED, check_carrier, check_report

SHARE = Path(os.environ.get("SHARE", "/nowhere"))
SERVES = os.environ.get("NODE") == "1"
SERVER = os.environ.get("RINGROAD_RDMA_ADDRS", "").partition(" ")[0]
PORT = 23306
THREADS = 8
# The other machine starts a server meanwhile, or runs a load.
OTHER_S = 120


def say(name, value):
    """Leaves a value for the other machine; it appears whole or not at all."""
    written = SHARE / f"{name}.new"
    written.write_text(json.dumps(value))
    written.rename(SHARE / name)


def hear(name):
    support.wait_for((SHARE / name).exists, f"the other machine's {name}", OTHER_S)
    return json.loads((SHARE / name).read_text())


def sent_packets():
    return sum(counters["sent_pkts"] for counters in rdma_counters.read().values())


def test_mariadb_and_sysbench_on_two_hosts_talk_over_rdma(tmp_path):
    host = support.Host(tmp_path)
    policy = host.policy("two", [PORT], via="rdma", subnet="10.7.0.0/24",
                         promote_after="{ messages = 1 }")
    preload = host.preload(policy)
    before = sent_packets()
    try:
        queries = (serve if SERVES else load)(host, preload)
    except BaseException as problem:
        say(f"problem-{os.environ['NODE']}", str(problem))
        raise
    assert sent_packets() - before >= queries


def serve(host, preload):
    server = mariadb.MariaDb("server", support.prepared_data(), host.directory, SERVER, PORT,
                             preload, native_aio=False, options=support.FOR_HUNDREDS)
    with server:
        say("serving", True)
        # While the load runs, and without waiting for the client to have looked.
        support.wait_for(lambda: (len(host.on_channel(server.pid)) == THREADS
                                  or list(SHARE.glob("problem-*"))),
                         f"{THREADS} streams on RDMA", OTHER_S)
        for stream in host.on_channel(server.pid):
            assert stream["carrier"] == "rdma" and stream["remote"].startswith("10.7.0.2:"), stream
        report = hear("report")
        check_carrier(host.ss(server.pid), THREADS)
        assert server.stop()
    return report["queries"]


def load(host, preload):
    hear("serving")
    run = sysbench.Load(SERVER, PORT, support.TABLES, support.TABLE_SIZE).start(
        "oltp_read_write", host.directory / "log", THREADS, SEED, seconds=8, preload=preload)
    try:
        support.wait_for(lambda: len(host.on_channel(run.pid)) == THREADS,
                         f"{THREADS} streams on RDMA")
        report = run.finish()
        # Transactions may wait for each other in a circle; the server's count is not asked here.
        check_report(report, server_deadlocks=report["transactions"] // 10)
    finally:
        run.kill()
    say("report", {"queries": report["queries"]})
    return report["queries"]
