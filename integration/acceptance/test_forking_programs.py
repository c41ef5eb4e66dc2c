"""Real servers that fork run over shared memory: whichever process has a connection is found.

     client ══ listener's owner          "that one has it"
        ╚═════ worker, or child          the same answers as over TCP, from a channel
"""

import glob
import hashlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager

import pytest

from integration.lib import processes

from . import support
from .support import children
from .test_programs import (check_http, check_idle, needs, nginx_configuration, output,
                            server)

POSTGRESQL = max(glob.glob("/usr/lib/postgresql/*/bin"), default=None,
                 key=lambda path: int(path.split("/")[4]))
needs_postgresql = pytest.mark.skipif(
    POSTGRESQL is None or shutil.which("pgbench") is None, reason="not installed: postgresql")
WORKERS = 4
BIG_BYTES = 3_000_000
EAGER = {"promote_after": "{ messages = 1 }"}


@pytest.fixture(name="host")
def fixture_host():
    """A directory that servers see which give root's rights up, with a copy of the library."""
    with tempfile.TemporaryDirectory(prefix="ringroad-forking.") as path:
        os.chmod(path, 0o755)
        host = support.Host(path)
        host.runtime.chmod(0o1777)
        yield host


@pytest.fixture(name="preload")
def fixture_preload(host):
    library = shutil.copy(host.tool.library, host.directory)
    return host.preload(host.policy("forking", ["1-65535"], **EAGER), library=library)


def everybody(host):
    """What `ringroad ss --json` says, by process."""
    done = subprocess.run([host.tool.command, "ss", "--json", "--directory", host.runtime],
                          capture_output=True, text=True, check=True)
    return {process["pid"]: process for process in json.loads(done.stdout)["processes"]}


def promoted(host, pids):
    """How many streams of each of these processes were ever on a channel."""
    known = everybody(host)
    return {pid: known[pid]["streams_promoted"] if pid in known else 0 for pid in pids}


def check_workers_promoted(host, pids, port):
    """Keeps connections open until one at least of each worker's is on its channel."""
    def all_have():
        output(["wrk", "-t", 2, "-c", 32, "-d", "1s", f"http://127.0.0.1:{port}/small"],
               host.environment)
        return all(promoted(host, pids).values())
    support.wait_for(all_have, f"streams of each of {pids} on a channel", support.ANSWER_S)


@contextmanager
def nginx(host, preload, workers, user):
    directory = host.directory / "nginx"
    directory.mkdir()
    directory.chmod(0o755)
    data = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(BIG_BYTES // 32))
    (directory / "big").write_bytes(data)
    (directory / "small").write_bytes(data[:1000])
    back, front = support.free_port(), support.free_port()
    path = directory / "conf"
    path.write_text(f"user {user};\n" + nginx_configuration(directory, workers, back, front))
    with server(host, "nginx", ["nginx", "-p", directory, "-c", path], back, preload) as child:
        yield child, data, (back, front)


@needs("nginx", "wrk", "curl")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have workers of another user")
@pytest.mark.parametrize("user", ["root", "www-data"])
def test_nginx_with_workers_serves_and_is_its_own_upstream(host, preload, user):
    host.environment = preload
    with nginx(host, preload, WORKERS, user) as (child, data, ports):
        support.wait_for(lambda: len(children(child.pid)) == WORKERS, "the workers")
        workers = children(child.pid)
        for port in ports:
            check_http(port, data, preload)
        check_workers_promoted(host, workers, ports[0])
        assert promoted(host, [child.pid]) == {child.pid: 0}
        # One dies with its connections, and only with them.
        os.kill(workers[0], signal.SIGKILL)
        support.wait_for(lambda: len(set(children(child.pid)) - {workers[0]}) == WORKERS,
                         "the master to start another worker")
        new = children(child.pid)
        for port in ports:
            check_http(port, data, preload)
        check_workers_promoted(host, new, ports[0])
        # All are replaced by others, which share the listener's owner with them for a while.
        os.kill(child.pid, signal.SIGHUP)
        support.wait_for(lambda: len(set(children(child.pid)) - set(new)) == WORKERS,
                         "the workers of the new configuration")
        # Until these have ended they may accept, and close what is kept alive.
        support.wait_for(lambda: not set(children(child.pid)) & set(new),
                         "the workers of the old configuration to end")
        for port in ports:
            check_http(port, data, preload)
        check_workers_promoted(host, children(child.pid), ports[0])


@needs("nginx", "wrk", "curl", "haproxy")
def test_haproxy_with_a_master_before_nginx_with_workers(host, preload):
    host.environment = preload
    with nginx(host, preload, 2, "root") as (_, data, ports):
        port = support.free_port()
        path = host.directory / "haproxy.cfg"
        path.write_text("global\n  nbthread 2\ndefaults\n  mode http\n  timeout connect 5s\n"
                        "  timeout client 30s\n  timeout server 30s\n"
                        f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
                        f"backend b\n  http-reuse always\n  server s 127.0.0.1:{ports[0]}\n")
        with server(host, "haproxy", ["haproxy", "-W", "-db", "-f", path], port,
                    preload) as child:
            check_http(port, data, preload)
            check_workers_promoted(host, children(child.pid), port)


class PostgreSql:
    """A server whose every client is served by a child of its own."""

    def __init__(self, host, copy_of=None):
        """An empty one, or a standby of another that runs."""
        self._host = host
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self._data = host.directory / ("standby" if copy_of else "data")
        self._data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(self._data, self._user)
        self.port = support.free_port()
        if copy_of:
            output(copy_of.words(f"{POSTGRESQL}/pg_basebackup", "-D", self._data, "-c",
                                 "fast", "-R", "-N"))
            if os.geteuid() == 0:
                output(["chown", "-R", self._user, self._data])
        else:
            output(self.command("initdb", "-D", self._data, "-A", "trust", "-U", "tester", "-N",
                                "--locale=C"))

    def command(self, program, *words):
        drop = ([] if os.geteuid() != 0 else
                ["setpriv", f"--reuid={self._user}", f"--regid={self._user}", "--init-groups"])
        return [*drop, f"{POSTGRESQL}/{program}", *words]

    @contextmanager
    def running(self, preload=None):
        command = self.command(
            "postgres", "-D", self._data, "-p", self.port, "-c", "listen_addresses=127.0.0.1", "-c",
            "unix_socket_directories=", "-c", "fsync=off", "-c", "autovacuum_naptime=1s")
        child = processes.Child(command, self._host.directory / f"{self._data.name}.log", preload)
        try:
            processes.wait_until(lambda: self.client("pg_isready", may_fail=True), support.ANSWER_S,
                                 "PostgreSQL to answer", child)
            yield child
            assert child.stop(), f"PostgreSQL had to be killed{processes.tail(child.log)}"
        finally:
            child.kill()

    def words(self, program, *words):
        return [program, "-h", "127.0.0.1", "-p", str(self.port), "-U", "tester", *words]

    def client(self, program, *words, preload=None, may_fail=False):
        environment = {**os.environ, "PGSSLMODE": "disable", **(preload or {})}
        done = subprocess.run(self.words(program, *map(str, words)), capture_output=True,
                              check=False, timeout=support.ANSWER_S, env=environment)
        assert may_fail or done.returncode == 0, (words, done.stderr[-500:])
        return done.stdout if done.returncode == 0 else None

    def ask(self, query, preload=None):
        return self.client("psql", "-XAtq", "-d", "postgres", "-c", query, preload=preload)


QUERIES = (
    "select 1",
    "select i, md5(i::text), repeat('x', i % 1000) from generate_series(1, 20000) i",
    "copy (select i, i * i from generate_series(1, 300000) i) to stdout",
    "select no_such_column",
)


def answers(database, preload=None):
    """What a client is told, over several exchanges in one connection, and in one each."""
    script = "".join(f"{query};\n" for query in QUERIES * 3)
    words = database.words("psql", "-XAtq", "-d", "postgres")
    done = subprocess.run(words, input=script.encode(), capture_output=True, check=False,
                          timeout=support.ANSWER_S,
                          env={**os.environ, "PGSSLMODE": "disable", **(preload or {})})
    return (done.returncode, hashlib.sha256(done.stdout).hexdigest(), len(done.stdout),
            done.stderr, [database.ask(query, preload) for query in QUERIES[:2]])


@pytest.mark.alone
@needs_postgresql
def test_postgresql_serves_each_client_in_a_child(host, preload):
    database = PostgreSql(host)
    with database.running():
        plain = answers(database)
        database.client("pgbench", "-i", "-q", "-s", "1", "postgres")
    with database.running(preload) as postmaster:
        assert answers(database, preload) == plain
        clients = 4
        load = subprocess.Popen(
            database.words("pgbench", "-n", "-c", str(clients), "-j", "2", "-T", "4", "postgres"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PGSSLMODE": "disable", **preload})

        def backends_on_channel():
            return [pid for pid in children(postmaster.pid) if host.on_channel(pid)]
        try:
            support.wait_for(lambda: len(backends_on_channel()) == clients,
                             f"{clients} backends with their client on a channel")
            text, errors = load.communicate(timeout=support.ANSWER_S)
        finally:
            load.kill()
            load.wait()
        assert load.returncode == 0 and "number of failed transactions: 0 " in text, (text, errors)
        sums = database.ask("select (select sum(abalance) from pgbench_accounts) = "
                            "(select sum(bbalance) from pgbench_branches), "
                            "(select count(*) from pgbench_history) > 0", preload)
        assert sums == b"t|t\n", sums
        # A connection for each transaction: nothing is promoted in time, nothing is lost.
        text = database.client("pgbench", "-n", "-S", "-C", "-c", 4, "-t", 50, "postgres",
                               preload=preload).decode()
        assert "number of failed transactions: 0 " in text, text
        assert promoted(host, [postmaster.pid]) == {postmaster.pid: 0}


@needs_postgresql
def test_postgresql_with_clients_that_idle_uses_no_processor(host, preload):
    database = PostgreSql(host)
    with database.running(preload) as postmaster:
        client = subprocess.Popen(database.words("psql", "-XAtq", "-d", "postgres"),
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "PGSSLMODE": "disable", **preload})
        try:
            def ask():
                client.stdin.write("select 1;\n")
                client.stdin.flush()
                return client.stdout.readline()
            deadline = time.monotonic() + support.ANSWER_S
            while not any(host.on_channel(pid) for pid in children(postmaster.pid)):
                assert ask() == "1\n" and time.monotonic() < deadline
            backend = next(pid for pid in children(postmaster.pid) if host.on_channel(pid))
            check_idle(backend, client.pid)
            assert ask() == "1\n"
            client.stdin.close()
            assert client.wait(support.ANSWER_S) == 0
        finally:
            client.kill()
            client.wait()
            client.stdout.close()
