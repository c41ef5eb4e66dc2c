"""What must hold over RDMA, run inside the virtual machine by boots.py, in this order.

   sysbench and talkers ── 10.9.0.1 rxe0 ═══ veth ═══ rxe1 10.9.1.1 ── mariadbd and talkers

One boot and one server for all; the last test takes the clients' device away.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from integration.lib import checks, processes, rdma_counters

from .. import support
from ..support import children
from ..test_first_byte import FROM_THE_FIRST, check
from ..test_sysbench import GREETING, INCREMENTS, SEED, check_carrier, check_report, load_for

ADDRESS = os.environ.get("RINGROAD_SERVER_ADDR", "")
CLIENT_DEVICE = os.environ.get("RINGROAD_CLIENT_DEVICE", "")
NETWORK = "10.9.0.0/16"
THREADS = 64
# Frames of the library's and nothing of the program's: a token, and at the end a RESUME, each way.
FRAMES_BYTES = 64
LATER = 19
POOL = ("--thread-handling=pool-of-threads", "--thread-pool-size=2")
PAGES_SHORT = ("prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock",
               "--inh-caps=-ipc_lock")


def sent_packets():
    return {device: counters["sent_pkts"] for device, counters in rdma_counters.read().items()}


def queue_pairs():
    """The connected queue pairs of this machine (each device has one of its own besides)."""
    done = subprocess.run(["rdma", "-j", "resource", "show", "qp"], capture_output=True, text=True,
                          check=True)
    return sum(entry["type"] == "RC" for entry in json.loads(done.stdout or "[]"))


def tcp_bytes(port):
    """(sent, received) of the client's one connection to the port, as the kernel counted them."""
    done = subprocess.run(["ss", "-Htin", "dport", "=", str(port)], capture_output=True, text=True,
                          check=True)
    counts = [sum(map(int, re.findall(rf"\b{name}:(\d+)", done.stdout)))
              for name in ("bytes_sent", "bytes_received")]
    assert done.stdout.count("cwnd:") == 1, done.stdout
    return tuple(counts)


def start_load(server, workload, log, threads, **limits):
    """Starts sysbench so that `ringroad ss` and these tests are served before dozens of its threads,
    which would take them a minute on two emulated processors."""
    os.setpriority(os.PRIO_PROCESS, 0, LATER)
    try:
        return load_for(server).start(workload, log, threads, SEED, **limits)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, 0)


@pytest.fixture(name="host", scope="module")
def fixture_host(tmp_path_factory):
    return support.Host(tmp_path_factory.mktemp("rdma"))




@pytest.fixture(name="preload", scope="module")
def fixture_preload(host):
    """The client's threads wait in connect(): dozens that work would starve the emulated machine's
    two processors, and the promotions with them, for longer than a test should take."""
    return host.preload(host.policy("client", ["1-65535"], via="rdma", subnet=NETWORK,
                                    **FROM_THE_FIRST | {"wait": '"25s"'}))


def server_of(host, name, preload, options=()):
    return host.server(name, support.prepared_data(), preload, ADDRESS, native_aio=False,
                       options=options)


@pytest.fixture(name="server", scope="module")
def fixture_server(host):
    policy = host.policy("server", ["1-65535"], via="rdma", subnet=NETWORK)
    with server_of(host, "preloaded", host.preload(policy)) as server:
        # The threads that it makes for its clients take after the one that accepts them.
        os.setpriority(os.PRIO_PROCESS, server.pid, LATER)
        yield server
        assert server.stop()


def test_a_short_program_runs_over_rdma_from_its_first_byte(tmp_path):
    host = support.Host(tmp_path)
    preload = host.preload(host.policy("first", ["1-65535"], via="rdma", subnet=NETWORK,
                                       **FROM_THE_FIRST | {"wait": '"5s"'}))
    before = sent_packets()
    check(host, preload, ADDRESS, "rdma")
    # It takes some to set up, at either end.
    assert all(count > before[device] + 2 for device, count in sent_packets().items())


def test_bulk_over_rdma_leaves_tcp_silent(tmp_path):
    host = support.Host(tmp_path)
    preload = host.preload(host.policy("first", ["1-65535"], via="rdma", subnet=NETWORK,
                                       **FROM_THE_FIRST | {"wait": '"5s"'}))
    size = 1 << 20
    with support.Talker("serve", ADDRESS, 0, preload=preload) as server:
        port = int(server.line().split()[1])
        with support.Talker("ask", ADDRESS, port, preload=preload) as client:
            assert client.line() == "connected"
            before = sent_packets()
            assert client.tell(f"bulk {size}").startswith("same ")
            stream, = host.streams(client.pid)
            assert stream["tx_bytes"] == stream["rx_bytes"] == {"tcp": 0, "channel": size}
            sent, received = tcp_bytes(port)
            assert 0 < sent <= FRAMES_BYTES and 0 < received <= FRAMES_BYTES
            # Packets hold 4096 bytes at most.
            assert all(count - before[device] >= size / 4096
                       for device, count in sent_packets().items())
            assert client.finish() == 0
        assert server.finish() == 0
    support.wait_for(lambda: queue_pairs() == 0, "the queue pairs to go")


@pytest.mark.parametrize("poor", ["client", "server"])
def test_too_little_lockable_memory_is_said_and_tcp_is_used(tmp_path, poor):
    host = support.Host(tmp_path)
    path = host.policy("rdma", ["1-65535"], via="rdma", subnet=NETWORK,
                       promote_after="{ messages = 1 }")
    preload = host.preload(path, tmp_path / "log", level="info")
    with support.Talker("serve", ADDRESS, 0, preload=preload,
                        prefix=PAGES_SHORT if poor == "server" else ()) as server:
        port = server.line().split()[1]
        with support.Talker("ask", ADDRESS, port, preload=preload,
                            prefix=PAGES_SHORT if poor == "client" else ()) as client:
            assert client.line() == "connected"
            for number in range(20):
                assert client.tell(f"say line {number}") == f"line {number}"
            expected = ("memlock", "none") if poor == "client" else ("peer_refused", "memlock")
            support.wait_for(
                lambda: [(stream["reason"], stream["peer_reason"])
                         for stream in host.streams(client.pid)] == [expected],
                f"the reasons {expected}")
            if poor == "server":
                assert [stream["reason"] for stream in host.streams(server.pid)] == ["memlock"]
            stream, = host.streams(client.pid)
            assert stream["state"] == "ON_TCP" and stream["tx_bytes"]["channel"] == 0
            assert client.tell("say still there") == "still there"
            assert client.finish() == 0
        assert server.finish() == 0
        lines = [line for line in (tmp_path / "log").read_text().splitlines()
                 if "RLIMIT_MEMLOCK" in line]
        talkers = {"client": [client.pid], "server": [client.pid, server.pid]}[poor]
        # It is said at each attempt, and the next comes after a second.
        assert {int(re.search(r"\[(\d+)\]", line)[1]) for line in lines} == set(talkers)


def talk_until_promoted(host, clients):
    """Has every client say lines until all are on a channel, and once more after that."""
    def said():
        promoted = all(host.on_channel(client.pid) for client in clients)
        for client in clients:
            assert client.tell("say something") == "something"
        return promoted
    try:
        support.wait_for(said, "the clients' channels")
    except processes.ProcessError as error:
        raise AssertionError([(stream["state"], stream["reason"], stream["peer_reason"])
                              for client in clients
                              for stream in host.streams(client.pid)]) from error


@pytest.mark.parametrize("mode", ["prefork", "children"])
def test_the_process_that_has_the_connection_in_a_server_that_forks_is_asked(tmp_path, mode):
    host = support.Host(tmp_path)
    preload = host.preload(host.policy("forks", ["1-65535"], via="rdma", subnet=NETWORK,
                                       promote_after="{ messages = 2 }"))
    with support.Talker(mode, ADDRESS, 0, preload=preload) as server, ExitStack() as stack:
        port = server.line().split()[1]

        def promoted_clients():
            clients = [stack.enter_context(support.Talker("ask", ADDRESS, port, preload=preload))
                       for _ in range(2)]
            assert [client.line() for client in clients] == ["connected"] * 2
            talk_until_promoted(host, clients)
            for client in clients:
                stream, = host.streams(client.pid)
                assert stream["carrier"] == "rdma" and stream["promotions"] == 1, stream
            return clients

        refusals = Counter()

        def answered():
            """Whether a new client gets a channel while it talks for some seconds."""
            with support.Talker("ask", ADDRESS, port, preload=preload) as client:
                assert client.line() == "connected"
                until = time.monotonic() + processes.patient(2)
                while time.monotonic() < until:
                    assert client.tell("say something") == "something"
                    if host.on_channel(client.pid):
                        return True
                refusals.update((stream["state"], stream["reason"], stream["peer_reason"])
                                for stream in host.streams(client.pid))
            return False

        # Nobody knows yet that this server forks: the first one may find it in the parent.
        with support.Talker("ask", ADDRESS, port, preload=preload) as first:
            assert first.line() == "connected" and first.tell("say hello") == "hello"
            assert first.finish() == 0
        already = host.ss(server.pid)["streams_promoted"]
        talkers = promoted_clients()
        talkers += promoted_clients()
        workers = children(server.pid)
        assert host.ss(server.pid)["streams_promoted"] == already
        assert sum(len(host.on_channel(pid)) for pid in workers) == 4
        assert queue_pairs() == 8
        # The devices of a process are its own, and so it takes its queue pairs along.
        victim = next(pid for pid in workers if host.on_channel(pid))
        count = len(host.on_channel(victim))
        os.kill(victim, signal.SIGKILL)
        support.wait_for(lambda: queue_pairs() <= 8 - count, "the killed one's queue pairs to go")
        for client in talkers:
            client.kill()
        support.wait_for(lambda: queue_pairs() == 0, "the queue pairs to go")
        talkers = promoted_clients()
        if mode == "prefork":
            os.kill(server.pid, signal.SIGKILL)  # its input stays open, so its workers go on
            try:
                support.wait_for(answered, "another one to take the listener's place")
            except processes.ProcessError as error:
                raise AssertionError(refusals) from error
            talkers += promoted_clients()
        for client in talkers:
            assert client.tell("say still there") == "still there"
            assert client.finish() == 0


def test_64_threads_leave_the_same_tables_as_over_tcp(host, server, preload, tmp_path):
    prepared = checks.checksums(server)
    events = 4 * THREADS
    with server_of(host, "plain", None) as plain:
        assert checks.checksums(plain) == prepared
        run = start_load(plain, INCREMENTS, tmp_path / "log", THREADS, events=events)
        check_report(run.finish())
        written = checks.checksums(plain)
    assert written != prepared
    before = sent_packets()
    run = start_load(server, INCREMENTS, tmp_path / "log", THREADS, events=events,
                                 preload=preload)
    report = run.finish()
    check_report(report)
    assert report["transactions"] == events
    assert checks.checksums(server) == written
    assert all(count - before[device] >= report["queries"]
               for device, count in sent_packets().items())
    process = host.ss(server.pid)
    assert process["streams_promoted"] == THREADS
    check_carrier(process, THREADS)
    # The server greets before it hears from anybody; what comes after that is the channel's. But where this
    # machine takes longer for a step than a promotion may, while it makes 64 pairs of queue pairs, the last
    # ones begin on TCP.
    totals = process["totals"]
    assert totals["tcp"]["rx_bytes"] * 20 <= totals["channel"]["rx_bytes"], totals
    assert (totals["tcp"]["tx_bytes"] - GREETING * THREADS) * 20 <= totals["channel"]["tx_bytes"], totals
    support.wait_for(lambda: queue_pairs() == 0, "the queue pairs to go")


def test_a_client_killed_under_load_leaves_nothing_behind(host, server, preload, tmp_path):
    support.wait_for(lambda: not host.streams(server.pid), "streams of earlier runs to go")
    idle = support.descriptors(server.pid)
    channels_s = 120
    # The load outlasts the wait; it is killed.
    run = start_load(server, "oltp_read_write", tmp_path / "log", THREADS,
                     seconds=round(support.processes.patient(channels_s)) + 30, preload=preload)
    try:
        # On a busy host promotions time out here, and each stream pauses for longer after each.
        host.wait_for_channels(server.pid, THREADS, channels_s)
        assert queue_pairs() == 2 * THREADS
        for stream in host.on_channel(server.pid):
            assert stream["carrier"] == "rdma" and stream["device"], stream
            assert stream["pinned_bytes"] <= (512 << 10) + (64 << 10), stream
            assert stream["extra_descriptors"] <= 1, stream
        channels = sum(stream["descriptors"] for stream in host.on_channel(server.pid))
        assert support.descriptors(server.pid) <= idle + channels + 2 * THREADS
    finally:
        run.kill()
    support.wait_for(lambda: not host.streams(server.pid) and queue_pairs() == 0,
                     "the dead client's streams and queue pairs to go")
    support.wait_for(lambda: support.descriptors(server.pid) <= idle,
                     f"the server's descriptors to be {idle} again")
    report = start_load(server, "oltp_read_write", tmp_path / "again", 4, events=20,
                                    preload=preload).finish()
    check_report(report, server_deadlocks=4)


def test_a_stopped_client_is_not_taken_for_a_dead_one(host, server, preload, tmp_path):
    run = start_load(server, "oltp_point_select", tmp_path / "log", 8, seconds=10,
                                 preload=preload)
    host.wait_for_channels(server.pid, 8)
    os.kill(run.pid, signal.SIGSTOP)
    assert run.goes_on_for(3)
    assert len(host.on_channel(server.pid)) == 8
    os.kill(run.pid, signal.SIGCONT)
    check_report(run.finish())


def test_a_pool_of_threads_that_waits_with_epoll_is_served_over_rdma(host, preload, tmp_path):
    threads = 16
    policy = host.policy("pool", ["1-65535"], via="rdma", subnet=NETWORK)
    with server_of(host, "pool", host.preload(policy), POOL) as server:
        report = start_load(server, "oltp_point_select", tmp_path / "log", threads, events=2000,
                            preload=preload).finish()
        check_report(report)
        assert report["transactions"] == 2000
        process = host.ss(server.pid)
        assert process["streams_promoted"] == threads
        check_carrier(process, threads)
        assert server.stop()


def test_streams_are_switched_to_tcp_and_back_under_load_without_an_error(host, server, preload,
                                                                          tmp_path):
    threads, rounds = 4, 3  # more give promotions up for want of processor time, and try again
    support.wait_for(lambda: not host.streams(server.pid), "streams of earlier runs to go")
    run = start_load(server, "oltp_point_select", tmp_path / "log", threads, seconds=25,
                     preload=preload)
    host.wait_for_channels(server.pid, threads)

    def set_mode(mode):
        done = subprocess.run([host.tool.command, "set", "--directory", host.runtime, "--wait", "20",
                               str(server.pid), mode], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        return done.stdout

    try:
        for number in range(1, rounds + 1):
            set_mode("tcp")
            assert queue_pairs() <= 2, "one asks for all"
            before = host.ss(server.pid)["totals"]["tcp"]["rx_bytes"]
            support.wait_for(lambda: host.ss(server.pid)["totals"]["tcp"]["rx_bytes"] > before,
                             "queries over TCP")
            told = set_mode("rdma")
            streams = host.streams(server.pid)
            assert [stream["carrier"] for stream in streams] == ["rdma"] * threads, told
            assert {stream["resumptions"] for stream in streams} == {number}
        set_mode("auto")
        before = host.ss(server.pid)["totals"]["channel"]["rx_bytes"]
        support.wait_for(lambda: host.ss(server.pid)["totals"]["channel"]["rx_bytes"] > before,
                         "queries over RDMA")
        check_report(run.finish())
    finally:
        run.kill()


def test_a_device_that_is_taken_away_under_load_costs_no_query(host, server, preload, tmp_path):
    threads = 16
    support.wait_for(lambda: not host.streams(server.pid), "streams of earlier runs to go")
    run = start_load(server, "oltp_point_select", tmp_path / "log", threads, seconds=25,
                                 preload=preload)
    removal = None
    try:
        for pid in (run.pid, server.pid):
            host.wait_for_channels(pid, threads)
        removal = subprocess.Popen(["rdma", "link", "delete", CLIENT_DEVICE])
        for pid in (run.pid, server.pid):
            support.wait_for(
                lambda pid=pid: [stream["carrier"] for stream in host.streams(pid)]
                == ["tcp"] * threads, f"{threads} streams back on TCP")
        # It returns when nobody has the device open any more.
        assert removal.wait(support.ANSWER_S) == 0
        before = {pid: host.ss(pid)["totals"]["tcp"]["rx_bytes"] for pid in (run.pid, server.pid)}
        for pid, count in before.items():
            support.wait_for(
                lambda pid=pid, count=count: host.ss(pid)["totals"]["tcp"]["rx_bytes"] > count,
                "queries over TCP")
        for pid in before:
            assert {stream["resumptions"] for stream in host.streams(pid)} == {1}
        # They ask again after a second, and find no device.
        assert {stream["reason"] for stream in host.streams(run.pid)} <= {
            "qp_error", "peer_left", "peer_gone", "no_rdma_device", "pending"}
        check_report(run.finish())
    finally:
        run.kill()
        if removal is not None and removal.poll() is None:
            removal.kill()
    # What is left works without it.
    report = start_load(server, "oltp_read_write", tmp_path / "after", 4, events=8,
                                    preload=preload).finish()
    check_report(report, server_deadlocks=4)
