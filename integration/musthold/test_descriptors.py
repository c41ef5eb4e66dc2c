"""Servers with few descriptors serve as many clients as without the library.

     clients ══ 127.0.0.1 ══ server, whose limit on descriptors is small and its hard one, too
"""

import pytest

from . import support
from .test_programs import needs, output, server

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
