"""Servers with few descriptors serve as many clients as without the library.

     clients ══ 127.0.0.1 ══ server, whose limit on descriptors is small and its hard one, too
"""

from contextlib import ExitStack

import pytest

from integration.lib import mariadb

from . import support
from .test_mariadb import Client
from .test_programs import check_promoted, fixture_eager, fixture_host, \
    needs, output, server  # pylint: disable=unused-import

# A MyISAM table that is open has two files, and the server keeps them open. With its clients' sockets and
# its own files it stays below the limit by less than the library has open for the clients.
FILES = 1024
TABLES = 410
CONNECTED = 60

# The clients stay connected, ask one after another, and say how many were answered.
CLIENTS = """
import resource, socket, sys
port, count, text = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode() + b'\\r\\n'
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
clients = [socket.create_connection(('127.0.0.1', port), 10) for _ in range(count)]
for turn in range(4):
    answered = 0
    for client in clients:
        try:
            client.sendall(text)
            answered += client.recv(1000) != b''
        except OSError:
            pass
print(answered)
"""


@pytest.fixture(name="preload")
def fixture_preload(tmp_path):
    host = support.Host(tmp_path)
    return host, host.preload(host.policy("descriptors", ["1-65535"]))


def answered(host, name, command, port, clients, question, environment):
    with server(host, name, ["prlimit", "--nofile=256:256", *command], port, environment):
        return int(output(["/usr/bin/python3", "-Ic", CLIENTS, port, clients, question],
                          environment))


@needs("memcached", "prlimit")
def test_memcached_serves_all_its_clients(preload):
    host, environment = preload
    port = support.free_port()
    command = ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", port, "-t", 4, "-c", 256]
    counts = [answered(host, "memcached", command, port, 220, "version", each)
              for each in (None, environment)]
    assert counts == [220, 220]


@needs("redis-server", "prlimit")
def test_redis_serves_all_its_clients(preload):
    host, environment = preload
    port = support.free_port()
    command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir",
               host.directory]
    counts = [answered(host, "redis", command, port, 220, "PING", each)
              for each in (None, environment)]
    assert counts == [220, 220]


class Connected:
    """The command-line client, asked one statement after another over one connection."""

    def __init__(self, database, environment):
        self._process = Client(database, environment).start("--force")

    def ask(self, statement):
        """The lines of the answer: none where the server refuses."""
        self._process.stdin.write(f"{statement}; SELECT 'end';\n")
        self._process.stdin.flush()
        lines = []
        while (line := self._process.stdout.readline()) != "end\n":
            assert line, "the client has ended"
            lines.append(line)
        return lines

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


def opened(host, name, environment, program):
    """How many tables the server could open for clients that are all connected."""
    options = [f"--open-files-limit={FILES}", f"--max-connections={CONNECTED + 20}",
               f"--table-open-cache={TABLES}", "--table-open-cache-instances=1"]
    with ExitStack() as stack:
        database = stack.enter_context(
            host.server(name, support.prepared_data(), environment, options=options, program=program))
        database.query("CREATE DATABASE many")
        for table in range(TABLES):
            database.query(f"CREATE TABLE many.t{table} (id INT) ENGINE=MyISAM")
        database.query(f"GRANT ALL ON many.* TO {mariadb.USER}@'%'")
        database.query("FLUSH TABLES")
        clients = [stack.enter_context(Connected(database, environment)) for _ in range(CONNECTED)]
        assert all(client.ask("SELECT 1") == ["1\n"] for client in clients)
        if environment:
            check_promoted(host, database.pid, 1)
        answers = [clients[table % CONNECTED].ask(f"SELECT COUNT(*) FROM many.t{table}")
                   for table in range(TABLES)]
        assert database.stop()
    return answers.count(["0\n"])


@support.needs_mariadb
@needs("prlimit")
def test_mariadb_opens_all_its_tables(host, eager):
    program = host.directory / "limited-mariadbd"
    program.write_text(f'#!/bin/sh\nexec prlimit --nofile={FILES}:{FILES} {mariadb.PROGRAM} "$@"\n')
    program.chmod(0o755)
    counts = [opened(host, name, environment, program)
              for name, environment in (("plain", None), ("preloaded", eager))]
    assert counts == [TABLES, TABLES]
