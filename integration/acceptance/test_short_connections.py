"""A client of connections that end after one answer: their requests overtake their ends, and the next connection is
promoted all the same.

     brief ══ server     a hundred connections, one after another, then one that stays
"""

import subprocess

from . import support
from .test_programs import fixture_eager, fixture_host  # pylint: disable=unused-import

CONNECTIONS = 100
BRIEF = """
import socket, sys
where, count = ('127.0.0.1', int(sys.argv[1])), int(sys.argv[2])
for last in [False] * count + [True]:
    with socket.create_connection(where) as c:
        c.sendall(b'a line\\n')
        assert c.recv(1000) == b'a line\\n'
        while last and sys.stdin.readline():
            c.sendall(b'a line\\n')
            print(c.recv(1000).decode(), end='', flush=True)
"""


def test_a_connection_that_ended_says_nothing_about_its_peer(host, eager):
    with support.Talker("serve", "127.0.0.1", 0, preload=eager) as server:
        port = server.line().split()[1]
        with subprocess.Popen(["/usr/bin/python3", "-Ic", BRIEF, port, str(CONNECTIONS)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, env={**support.os.environ, **eager}) as brief:
            def is_promoted():
                brief.stdin.write("\n")
                brief.stdin.flush()
                assert brief.stdout.readline() == "a line\n"
                return len(host.on_channel(brief.pid)) == 1
            support.wait_for(is_promoted, "the channel of the connection that stays")
            process = host.ss(brief.pid)
            brief.stdin.close()
            assert brief.wait(support.ANSWER_S) == 0
        assert process["streams_opened"] == CONNECTIONS + 1, process
        refused = process["promotions_refused"]
        # The peer listens here for all that time.
        assert not {"other_namespace", "peer_has_no_ringroad"} & set(refused), refused
        assert server.finish() == 0
