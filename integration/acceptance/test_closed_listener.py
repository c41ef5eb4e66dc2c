"""A program that closes its listener when the connection that it waits for is there: it is promoted all the same.

     asker ══ first, whose listener is closed      what was accepted there
     asker ══ second, which listens there now      and what another process accepts at the same address
"""

import subprocess
from contextlib import contextmanager

from . import support
from .test_programs import fixture_eager, fixture_host  # pylint: disable=unused-import

# Listens where it is told, accepts one connection, closes the listener and echoes.
ECHO = """
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1])))
s.listen()
print(s.getsockname()[1], flush=True)
c, _ = s.accept()
s.close()
while data := c.recv(65536):
    c.sendall(data)
"""
ASK = """
import socket, sys
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for line in sys.stdin:
    c.sendall(line.encode())
    print(c.recv(1000).decode(), end='', flush=True)
"""


@contextmanager
def program(text, port, environment):
    process = subprocess.Popen(["/usr/bin/python3", "-Ic", text, str(port)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, env={**support.os.environ, **environment})
    try:
        yield process
        process.communicate("", timeout=support.ANSWER_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def is_promoted(host, asker, echo):
    asker.stdin.write("a line\n")
    asker.stdin.flush()
    assert asker.stdout.readline() == "a line\n"
    return [len(host.on_channel(process.pid)) for process in (asker, echo)] == [1, 1]


def test_what_it_accepted_is_promoted_and_its_address_is_left_to_others(host, eager):
    with program(ECHO, 0, eager) as first:
        port = int(first.stdout.readline())
        with program(ASK, port, eager) as asker:
            support.wait_for(lambda: is_promoted(host, asker, first), "the first one's channel")
            with program(ECHO, port, eager) as second:
                assert int(second.stdout.readline()) == port
                with program(ASK, port, eager) as other:
                    support.wait_for(lambda: is_promoted(host, other, second),
                                     "the second one's channel")
            assert is_promoted(host, asker, first)
