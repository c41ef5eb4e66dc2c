"""Redis with I/O threads, and replicas that load what comes over the socket, as over TCP.

     clients ══ primary ══ replica       all preloaded; the same by plain processes to compare with
"""

from functools import partial

import pytest

from integration.lib import processes

from . import support
from .test_programs import check_idle, check_promoted, fixture_eager, fixture_host, \
    needs, output, server  # pylint: disable=unused-import

# Eight connections, each with up to 64 commands under way: strings of all sizes, counters, lists.
PIPELINES = """
import hashlib, socket, sys, threading
def words(*ws):
    return b'*%d\\r\\n' % len(ws) + b''.join(b'$%d\\r\\n%s\\r\\n' % (len(w), w) for w in ws)
def one(n):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    f = s.makefile('rb')
    h = hashlib.sha256()
    def answer():
        line = f.readline()
        h.update(line)
        if line[:1] == b'$':
            h.update(f.read(int(line[1:]) + 2))
        elif line[:1] == b'*':
            for _ in range(int(line[1:])):
                answer()
    for batch in range(int(sys.argv[2])):
        out = []
        for i in range(16):
            k = b'%d:%d' % (n, batch * 16 + i)
            out += [words(b'SET', b's' + k, k * (batch * 97 % 2000 + 1)), words(b'GET', b's' + k),
                    words(b'INCR', b'c%d' % n), words(b'RPUSH', b'l%d' % n, k)]
        s.sendall(b''.join(out) + words(b'LRANGE', b'l%d' % n, b'-50', b'-1'))
        for _ in range(len(out) + 1):
            answer()
    digests[n] = h.hexdigest()
digests = {}
threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(sorted(digests.items()))
"""
BATCHES = 10


def redis(host, name, port, environment, *words):
    (host.directory / name).mkdir()
    return server(host, f"{name}-server", [
        "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir",
        host.directory / name, "--enable-debug-command", "local", "--repl-timeout",
        support.ANSWER_S, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", *words],
        port, environment)


def ask(port, *words):
    return output(["redis-cli", "-p", port, *words]).decode().strip()


def load(port, environment):
    return output(["/usr/bin/python3", "-Ic", PIPELINES, port, BATCHES], environment)


@needs("redis-server", "redis-benchmark")
def test_a_rule_means_the_name_that_a_server_is_started_by(host):
    """Debian's redis-server is a link to redis-check-rdb."""
    names = host.preload(host.policy("by-name", ["1-65535"], promote_after="{ messages = 1 }",
                                     program='["redis-server", "redis-benchmark"]'))
    port = support.free_port()
    with redis(host, "by-name", port, names) as child:
        output(["redis-benchmark", "-p", port, "-n", 20000, "-c", 2, "-t", "get", "-q"], names)
        check_promoted(host, child.pid, 100_000)


@needs("redis-server", "redis-cli", "redis-benchmark")
def test_redis_with_threads_that_read_and_write(host, eager):
    outcomes = []
    for name, environment in (("plain", None), ("preloaded", eager)):
        port = support.free_port()
        with redis(host, name, port, environment, "--io-threads", 4,
                   "--io-threads-do-reads", "yes") as child:
            # The threads are at work only while many clients wait.
            text = output(["redis-benchmark", "-p", port, "-n", 4000, "-c", 40, "-P", 16, "-r",
                           1000, "-d", 500, "-t", "set,get,incr,lpush,lrange_100", "--threads", 2,
                           "--csv"],
                          environment)
            assert text.count(b"\n") == 7 and b"LRANGE_100" in text, text
            threaded = dict(line.split(":") for line in ask(port, "info", "stats").splitlines()[1:])
            assert int(threaded["io_threaded_reads_processed"]) > 0, threaded
            assert int(threaded["io_threaded_writes_processed"]) > 0, threaded
            ask(port, "flushall")
            outcomes.append((load(port, environment), ask(port, "debug", "digest")))
            if environment:
                check_promoted(host, child.pid, 5_000_000)
                # A server's own timer runs ten times a second.
                check_idle(child.pid, ticks=3)
    assert outcomes[0] == outcomes[1] and outcomes[0][1] != "0" * 40


@needs("redis-server", "redis-cli")
@pytest.mark.parametrize("way", ["swapdb", "on-empty-db"])
def test_redis_replica_that_loads_from_the_socket(host, eager, way):
    """A child of the primary's sends the snapshot: on TCP, unlike the connection after that one."""
    outcomes = []
    for name, environment in (("plain", None), ("preloaded", eager)):
        first, second = support.free_port(), support.free_port()
        with redis(host, f"first-{name}", first, environment) as primary, \
                redis(host, f"second-{name}", second, environment,
                      "--repl-diskless-load", way) as replica:
            answers = [load(first, environment)]
            if way == "swapdb":
                ask(second, "set", "mine", "until the other's is here")

            def in_step():
                info = ask(second, "info", "replication")
                return "master_link_status:up" in info and "master_sync_in_progress:0" in info
            ask(second, "replicaof", "127.0.0.1", first)
            support.wait_for(in_step, "the replica to have loaded", support.ANSWER_S)
            digests = [same_digest(first, second)]
            if environment:
                host.wait_for_channels(primary.pid, 1, support.ANSWER_S)
            # Loaded again while the primary is written to, on top of what is there.
            ask(first, "debug", "change-repl-id")
            ask(first, "client", "kill", "type", "replica")
            answers.append(load(first, environment))
            support.wait_for(lambda: "sync_full:2" in ask(first, "info", "stats") and in_step(),
                             "the replica to have loaded again", support.ANSWER_S)
            digests.append(same_digest(first, second))
            # A connection that needs no snapshot, and is promoted.
            ask(first, "client", "kill", "type", "replica")
            if environment:
                support.wait_for(lambda: host.on_channel(replica.pid), "the replica's channel",
                                 support.ANSWER_S)
            support.wait_for(lambda: "sync_partial_ok:1" in ask(first, "info", "stats")
                             and in_step(), "the replica to go on", support.ANSWER_S)
            answers.append(load(first, environment))
            digests.append(same_digest(first, second))
            assert "sync_full:2" in ask(first, "info", "stats")
            if environment:
                check_promoted(host, replica.pid, 500_000)
                check_idle(primary.pid, replica.pid, ticks=3)
            outcomes.append((answers, digests))
    assert outcomes[0] == outcomes[1]


def same_digest(first, second):
    """What both have once the replica has come after."""
    digest = ask(first, "debug", "digest")
    support.wait_for(lambda: ask(second, "debug", "digest") == digest != "0" * 40,
                     f"the replica to have {digest}", support.ANSWER_S)
    return digest


CLIENTS = 20
SAVES = 3
BACK_S = 10


@needs("redis-server", "redis-cli", "redis-benchmark")
def test_all_clients_are_on_channels_again_after_each_save(host, eager):
    port = support.free_port()
    with redis(host, "saving", port, eager) as child:
        command = ["redis-benchmark", "-p", port, "-c", CLIENTS, "-n", 100_000_000, "-t", "get"]
        run = processes.Child(command, host.directory / "load.log", eager)
        check_clients_come_back(host, child, run, partial(ask, port), "BGSAVE", "rdb_bgsave_in_progress")


def check_clients_come_back(host, child, run, asked, what, counted):
    """All CLIENTS of `run` have channels again after each child that the server makes when `asked` for `what`."""
    try:
        host.wait_for_channels(child.pid, CLIENTS)
        for _ in range(SAVES):
            before = int(information(asked, "total_forks"))
            asked(what)
            support.wait_for(lambda: int(information(asked, "total_forks")) > before
                             and information(asked, counted) == "0", what)
            host.wait_for_channels(child.pid, CLIENTS, BACK_S)
    finally:
        run.kill()


def information(asked, name):
    """One value of INFO, asked over a connection of its own, which is not preloaded."""
    return next(line.split(":")[1] for line in asked("INFO").splitlines() if line.startswith(f"{name}:"))
