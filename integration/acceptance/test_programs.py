"""Real servers that wait by epoll or select run over shared memory, and say what they say over TCP.

     client ── 127.0.0.1 ── server          both plain: the answers to compare with
     client ══ 127.0.0.1 ══ server          both preloaded: the same answers, from a channel
"""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest

from integration.lib import processes, procstat, sysbench

from . import support

AT_ONCE = {"promote_after": "{ messages = 0 }", "wait": '"5s"'}
IDLE_S = 2
IDLE_WINDOWS = 5
TICK_S = 1 / procstat.TICKS_PER_S
BIG_BYTES = 3_000_000
SEED = 20240229


def needs(*programs):
    missing = [name for name in programs
               if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {' '.join(missing)}")


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.fixture(name="preload")
def fixture_preload(host):
    return host.preload(host.policy("programs", ["1-65535"], **AT_ONCE))


@contextmanager
def server(host, name, command, port, preload=None):
    """A server that accepts on `port`, and that ends when it is asked to."""
    child = processes.Child(command, host.directory / f"{name}.log", preload)
    try:
        processes.wait_until(lambda: accepts(port), support.ANSWER_S, f"{name} to accept", child)
        yield child
        assert child.stop(), f"{name} had to be killed{processes.tail(child.log)}"
    finally:
        child.kill()


def accepts(port):
    """Asks the kernel, not the server: iperf3 would take a connection for its one test."""
    done = subprocess.run(["ss", "-Htln", "sport", "=", f":{port}"], capture_output=True, text=True,
                          check=True)
    return bool(done.stdout)


def output(command, preload=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False,
                          timeout=support.ANSWER_S, env={**os.environ, **(preload or {})})
    assert done.returncode == 0, (command, done.stdout[-500:], done.stderr[-500:])
    return done.stdout


def check_promoted(host, pid, bytes_at_least):
    """The process has had streams on a channel, and they carried that much."""
    report = host.ss(pid)
    assert report["streams_promoted"] > 0, report
    channel = report["totals"]["channel"]
    assert channel["rx_bytes"] + channel["tx_bytes"] >= bytes_at_least, report


def check_idle(*pids, ticks=0):
    """Servers that nobody asks for anything use no processor; `ticks`: what their own timers take.

    What they have still to do for clients that asked before ends some time: one window of several counts.
    """
    for pid in pids:
        windows = []
        while not windows or min(windows) > ticks:
            assert len(windows) < IDLE_WINDOWS, f"ticks in {IDLE_S} s idle in process {pid}: {windows}"
            before = procstat.read(pid).cpu_s
            time.sleep(IDLE_S)  # the condition is what happens in this time
            windows.append(round((procstat.read(pid).cpu_s - before) / TICK_S))


@pytest.fixture(name="eager")
def fixture_eager(host):
    """For a server that connects to itself: its connect() must not wait for its own accept()."""
    return host.preload(host.policy("eager", ["1-65535"], promote_after="{ messages = 1 }"))


@needs("redis-server", "redis-cli", "redis-benchmark")
def test_redis_with_pipelining_a_replica_and_a_child_that_saves(host, preload):
    def redis(name, port, *words):
        (host.directory / name).mkdir()
        return server(host, f"{name}-server", [
            "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir",
            host.directory / name, "--repl-diskless-sync-delay", "0",
            "--enable-debug-command", "local", *words], port, preload)

    def ask(port, *words):
        return output(["redis-cli", "-p", port, *words]).decode().strip()

    first, second = support.free_port(), support.free_port()
    with redis("first", first) as primary:
        for pipeline in (1, 16):
            text = output(["redis-benchmark", "-p", first, "-n", 20000, "-r", 1000, "-P", pipeline,
                           "-t", "set,get,incr,lpush,lrange_100", "--csv"], preload)
            assert b"LRANGE_100" in text
        check_promoted(host, primary.pid, 1_000_000)
        with redis("second", second, "--replicaof", f"127.0.0.1 {first}") as replica:
            def in_step():
                return "master_link_status:up" in ask(second, "info", "replication")
            support.wait_for(in_step, "the replica to be in step")
            # The child that made the snapshot brought the connection back to TCP: a new one is
            # promoted, and goes on where the old one was.
            ask(first, "client", "kill", "type", "replica")
            support.wait_for(lambda: host.on_channel(replica.pid), "the replica's channel")
            support.wait_for(in_step, "the replica to be in step again")
            assert "sync_partial_ok:1" in ask(first, "info", "stats")
            assert "started" in ask(first, "bgsave")
            output(["redis-benchmark", "-p", first, "-n", 20000, "-r", 1000, "-t", "set,incr", "--csv"],
                   preload)
            support.wait_for(lambda: "rdb_bgsave_in_progress:0" in ask(first, "info", "persistence"),
                             "the save to end")
            assert "rdb_last_bgsave_status:ok" in ask(first, "info", "persistence")
            assert ask(first, "wait", "1", "10000") == "1"
            digest = ask(first, "debug", "digest")
            assert digest == ask(second, "debug", "digest") != "0" * 40
            # A server's own timer runs ten times a second.
            check_idle(primary.pid, replica.pid, ticks=3)


@support.needs_mariadb
def test_mariadb_with_a_pool_of_threads(host, preload):
    with support.mariadb.MariaDb(
            "pool", support.prepared_data(), host.directory, "127.0.0.1", support.free_port(),
            preload, options=(*support.FOR_HUNDREDS, "--thread-handling=pool-of-threads",
                              "--thread-pool-size=2")) as database:
        load = sysbench.Load(database.address, database.port, support.TABLES, support.TABLE_SIZE)
        for workload in ("oltp_point_select", "oltp_read_write"):
            report = load.start(workload, host.directory / workload, 8, SEED, seconds=2,
                                preload=preload).finish()
            assert report["exit_status"] == 0 and report["fatal"] == [], report
            assert report["reconnects"] == 0 and report["transactions"] > 0, report
        check_promoted(host, database.pid, 1_000_000)
        check_idle(database.pid, ticks=1)
        assert database.stop()


def cut_short_by_iperf3(words):
    """Bytes that it may send and not count: from 3.16 on it ends its senders, threads, by pthread_cancel(3)."""
    version = output(["iperf3", "--version"]).decode().split()[1]
    streams = int(words[1]) if "-P" in words else 1
    return 128 * 1024 * streams if [int(n) for n in version.split(".")[:2]] >= [3, 16] else 0


@needs("iperf3")
@pytest.mark.parametrize("words", [(), ("-R",), ("-P", "4"), ("-Z",), ("-Z", "-R")], ids=" ".join)
def test_iperf3(host, preload, words):
    port = support.free_port()
    with server(host, "iperf3", ["iperf3", "-s", "-p", port], port, preload) as child:
        report = json.loads(output(["iperf3", "-J", "-c", "127.0.0.1", "-p", port, "-t", 1, *words],
                                   preload))
        assert "error" not in report, report["error"]
        end = report["end"]
        assert 0 < end["sum_received"]["bytes"] <= end["sum_sent"]["bytes"] + cut_short_by_iperf3(words)
        check_promoted(host, child.pid, end["sum_received"]["bytes"] // 2)
        check_idle(child.pid)


@needs("memcached")
def test_memcached_with_threads(host, preload):
    script = ("import hashlib, socket, sys\n"
              "s = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(8)]\n"
              "f = [c.makefile('rb') for c in s]\n"
              "h = hashlib.sha256()\n"
              "for i in range(2000):\n"
              "  k, v = i % 8, str(i).encode() * (i % 500 + 1)\n"
              "  s[k].sendall(b'set k%d 0 0 %d\\r\\n%s\\r\\n' % (i, len(v), v))\n"
              "  h.update(f[k].readline())\n"
              "  s[7 - k].sendall(b'get k%d\\r\\n' % i)\n"
              "  h.update(f[7 - k].readline()); h.update(f[7 - k].read(len(v) + 2))\n"
              "  h.update(f[7 - k].readline())\n"
              "print(h.hexdigest())\n")
    answers = []
    for environment in (None, preload):
        port = support.free_port()
        with server(host, "memcached", ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", port,
                                        "-t", 2], port, environment) as child:
            answers.append(output(["/usr/bin/python3", "-Ic", script, port], environment))
            if environment:
                check_promoted(host, child.pid, 1_000_000)
            # Its own threads tick, plain too.
            check_idle(child.pid, ticks=4)
    assert answers[0] == answers[1]


def nginx_configuration(directory, workers, back, front):
    places = "".join(f"{name}_temp_path {directory}/{name};\n"
                     for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""daemon off; master_process {'on' if workers else 'off'};
{f'worker_processes {workers};' if workers else ''}
pid {directory}/pid; error_log {directory}/error.log error;
events {{ worker_connections 256; }}
http {{
access_log off; sendfile on; tcp_nopush on; {places}
upstream up {{ server 127.0.0.1:{back}; keepalive 8; }}
server {{ listen 127.0.0.1:{back}; root {directory}; }}
server {{ listen 127.0.0.1:{front}; location / {{
proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
}}
"""


@contextmanager
def nginx(host, preload, workers):
    """An nginx that serves `big`, at the first port itself and at the second as a proxy."""
    directory = host.directory / "nginx"
    directory.mkdir()
    directory.chmod(0o755)
    data = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(BIG_BYTES // 32))
    (directory / "big").write_bytes(data)
    (directory / "small").write_bytes(data[:1000])
    back, front = support.free_port(), support.free_port()
    path = directory / "conf"
    path.write_text("user root;\n" + nginx_configuration(directory, workers, back, front))
    with server(host, "nginx", ["nginx", "-p", directory, "-c", path], back, preload) as child:
        yield child, data, (back, front)
    assert (directory / "error.log").read_text() == ""


def check_http(port, data, preload):
    """Both files in full; wrk's connections, kept alive, without an error."""
    for name, length in (("big", len(data)), ("small", 1000)):
        assert output(["curl", "-s", f"http://127.0.0.1:{port}/{name}"], preload) == data[:length]
    for name in ("big", "small"):
        text = output(["wrk", "-t", 2, "-c", 8, "-d", "1s", f"http://127.0.0.1:{port}/{name}"],
                      preload).decode()
        assert "Requests/sec" in text and "Socket errors" not in text and "Non-2xx" not in text, text


@needs("nginx", "wrk", "curl")
def test_nginx_in_one_process_serves_and_is_its_own_upstream(host, eager):
    with nginx(host, eager, 0) as (child, data, ports):
        for port in ports:
            check_http(port, data, eager)
        check_promoted(host, child.pid, 10 * len(data))
        check_idle(child.pid)


@needs("nginx", "wrk", "curl", "haproxy")
def test_haproxy_with_threads_before_nginx_with_workers(host, eager):
    """HAProxy is the one that is looked at here; the workers are test_forking_programs.py's."""
    with nginx(host, eager, 2) as (_, data, ports):
        port = support.free_port()
        path = host.directory / "haproxy.cfg"
        path.write_text("global\n  nbthread 2\ndefaults\n  mode http\n  timeout connect 5s\n"
                        "  timeout client 30s\n  timeout server 30s\n"
                        f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
                        f"backend b\n  http-reuse always\n  server s 127.0.0.1:{ports[0]}\n")
        with server(host, "haproxy", ["haproxy", "-f", path, "-db"], port, eager) as child:
            check_http(port, data, eager)
            check_promoted(host, child.pid, 10 * len(data))
            check_idle(child.pid, ticks=1)


ECHO = """
import asyncio, sys
async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    await (await asyncio.start_server(echo, '127.0.0.1', int(sys.argv[1]))).serve_forever()
asyncio.run(main())
"""
ASK = """
import asyncio, hashlib, sys
async def one(n):
    reader, writer = await asyncio.open_connection('127.0.0.1', int(sys.argv[1]))
    h = hashlib.sha256()
    for i in range(200):
        data = bytes([n]) * (i * 37 % 100000 + 1)
        writer.write(data)
        h.update(await reader.readexactly(len(data)))
    writer.write_eof()
    assert await reader.read() == b''
    return h.hexdigest()
async def main():
    print(await asyncio.gather(*(one(n) for n in range(6))))
asyncio.run(main())
"""


def test_asyncio_echo(host, preload):
    answers = []
    for environment in (None, preload):
        port = support.free_port()
        with server_until_killed(host, ["/usr/bin/python3", "-Ic", ECHO, port], port,
                                 environment) as child:
            answers.append(output(["/usr/bin/python3", "-Ic", ASK, port], environment))
            if environment:
                check_promoted(host, child.pid, 1_000_000)
            check_idle(child.pid)
    assert answers[0] == answers[1]


@contextmanager
def server_until_killed(host, command, port, preload):
    """A program that has no way to end but a signal."""
    child = processes.Child(command, host.directory / "server.log", preload)
    try:
        processes.wait_until(lambda: accepts(port), support.ANSWER_S, "the server to accept", child)
        yield child
        assert child.status is None
    finally:
        child.kill()
