"""Hundreds of sysbench threads over shared memory: no error, the same tables, nothing left behind."""

from pathlib import Path

import pytest

from integration.lib import checks, sysbench

from . import support

INCREMENTS = Path(__file__).parent / "increments.lua"
RING = 256 << 10
GREETING = 200
SEED = 20240229
pytestmark = support.needs_mariadb


@pytest.fixture(name="host", scope="module")
def fixture_host(tmp_path_factory):
    return support.Host(tmp_path_factory.mktemp("sysbench"))


@pytest.fixture(name="preload", scope="module")
def fixture_preload(host):
    """Streams are promoted while they are at work, which a busy machine may not get done in time."""
    return host.preload(host.policy("sysbench", ["1-65535"], promote_after="{ messages = 1 }",
                                    ring=f'"{RING >> 10}KiB"'))


@pytest.fixture(name="patient", scope="module")
def fixture_patient(host):
    """For clients whose threads wait in connect() until they have their channel."""
    return host.preload(host.policy("patient", ["1-65535"], promote_after="{ messages = 0 }",
                                    wait='"25s"', ring=f'"{RING >> 10}KiB"'))


@pytest.fixture(name="plain", scope="module")
def fixture_plain(host):
    with host.server("plain", support.prepared_data()) as server:
        yield server
        assert server.stop()


@pytest.fixture(name="preloaded", scope="module")
def fixture_preloaded(host, preload):
    with host.server("preloaded", support.prepared_data(), preload) as server:
        yield server
        assert server.stop()


def load_for(server):
    return sysbench.Load(server.address, server.port, support.TABLES, support.TABLE_SIZE)


def check_report(report, server_deadlocks=0):
    assert report["exit_status"] == 0 and report["fatal"] == [], report
    assert report["reconnects"] == 0
    # Transactions of sysbench's that wait for each other are its own and the server's affair.
    assert report["errors"] <= server_deadlocks, report


@pytest.mark.parametrize("promoted", ["at work", "before work"])
def test_256_threads_leave_the_same_tables_as_over_tcp(host, plain, preloaded, preload, patient,
                                                       promoted, tmp_path):
    threads = 256
    assert checks.checksums(preloaded) == checks.checksums(plain)
    before, prepared = host.ss(preloaded.pid), checks.checksums(plain)
    for server, environment in ((plain, None),
                                (preloaded, preload if promoted == "at work" else patient)):
        report = load_for(server).start(INCREMENTS, tmp_path / "log", threads, SEED,
                                        events=10 * threads, preload=environment).finish()
        check_report(report)
        assert report["transactions"] == 10 * threads
    written = checks.checksums(plain)
    assert written != prepared
    assert checks.checksums(preloaded) == written
    after = host.ss(preloaded.pid)
    assert after["streams_opened"] - before["streams_opened"] == threads
    if promoted == "before work":
        assert after["streams_promoted"] - before["streams_promoted"] == threads, \
            after["promotions_refused"]
        # A switch that a busy machine does not finish within a second is tried again at work.
        moved = {carrier: after["totals"][carrier]["rx_bytes"] - before["totals"][carrier]["rx_bytes"]
                 for carrier in ("tcp", "channel")}
        assert moved["channel"] > moved["tcp"], moved
    else:
        assert after["streams_promoted"] > before["streams_promoted"]


def check_carrier(process, threads):
    """All streams that a fresh server ever had were promoted, and carried nearly everything."""
    assert process["streams_promoted"] == process["streams_opened"] >= threads, process
    assert process["promotions_refused"] == {}
    totals = process["totals"]
    for direction in ("tx_bytes", "rx_bytes"):
        assert totals["channel"][direction] > 4 * totals["tcp"][direction], totals


def test_256_threads_of_oltp_read_write_finish_with_no_error(host, preloaded, patient, tmp_path):
    threads = 256
    before = host.ss(preloaded.pid)
    deadlocks = preloaded.status("Innodb_deadlocks")["Innodb_deadlocks"]
    run = load_for(preloaded).start("oltp_read_write", tmp_path / "log", threads, SEED, seconds=5,
                                    preload=patient)
    report = run.finish()
    check_report(report, preloaded.status("Innodb_deadlocks")["Innodb_deadlocks"] - deadlocks)
    assert report["transactions"] >= threads
    after = host.ss(preloaded.pid)
    assert after["streams_promoted"] - before["streams_promoted"] == \
        after["streams_opened"] - before["streams_opened"] == threads


def test_a_stream_costs_what_is_promised_and_leaves_nothing(host, preloaded, patient, tmp_path):
    threads = 64
    support.wait_for(lambda: not host.streams(preloaded.pid), "streams of earlier runs to go")
    # The first stream of a process also opens what all of them share.
    load_for(preloaded).start("oltp_read_write", tmp_path / "first", 1, SEED, events=1,
                              preload=patient).finish()
    idle = lowest_descriptors(host, preloaded)
    run = load_for(preloaded).start("oltp_read_write", tmp_path / "log", threads, SEED, seconds=60,
                                    preload=patient)
    try:
        for pid in (preloaded.pid, run.pid):
            host.wait_for_channels(pid, threads)
        busy = support.descriptors(preloaded.pid)
        for pid in (preloaded.pid, run.pid):
            for stream in host.on_channel(pid):
                assert 2 * RING <= stream["pinned_bytes"] <= 2 * RING + (64 << 10), stream
                assert stream["extra_descriptors"] <= 1, stream
        # The program's socket, the channel's own, and one more.
        channels = sum(stream["descriptors"] for stream in host.on_channel(preloaded.pid))
        assert channels > 0
        assert idle + threads < busy <= idle + channels + 2 * threads
    finally:
        run.kill()
    # That was a kill -9 under load.
    support.wait_for(lambda: not host.streams(preloaded.pid), "the killed client's streams to go")
    support.wait_for(lambda: support.descriptors(preloaded.pid) <= idle,
                     f"descriptors to be {idle} again", timeout_s=60)
    assert preloaded.query("SELECT 1") == [["1"]]


def lowest_descriptors(host, server):
    """The server's descriptors once no client is connected and the number stands still."""
    seen = []

    def still():
        seen.append(support.descriptors(server.pid))
        return not host.streams(server.pid) and len(seen) > 10 and len(set(seen[-10:])) == 1
    support.wait_for(still, "the server's descriptors to stand still")
    return seen[-1]
