"""Servers that accept and leave the connection to a program that knows nothing of it, as inetd does.

     client ══ listener ── fork, dup2 to 0, 1 and 2, exec ──▶ cat     on a channel until then; what the client
                                                                    has said meanwhile is the program's to read
"""

import pytest

from . import support
from .test_programs import fixture_host, fixture_preload, needs, \
    server  # pylint: disable=unused-import

BULK_BYTES = 8 << 20
CONNECTIONS = 8
LISTENERS = {
    # Each connection in a child of its own, which becomes the program; without the library, because it hands
    # no environment on.
    "systemd-socket-activate": ["--accept", "--inetd", "-l", "127.0.0.1:{port}", "/bin/cat"],
    # The same, and the program is preloaded as well.
    "socat": ["TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork", "EXEC:/bin/cat,nofork"],
}


@pytest.mark.parametrize("listener", [pytest.param(name, marks=needs(name)) for name in LISTENERS])
def test_the_program_that_is_started_for_a_connection_reads_every_byte_of_it(host, preload, listener):
    outcomes = []
    for environment in (None, preload):
        port = support.free_port()
        command = [listener, *(word.format(port=port) for word in LISTENERS[listener])]
        with server(host, f"{listener}-{environment is None}", command, port, environment):
            said = []
            for _ in range(CONNECTIONS):
                with support.Talker("ask", "127.0.0.1", port, preload=environment) as client:
                    assert client.line() == "connected"
                    said.append([client.tell("say before"), client.tell(f"bulk {BULK_BYTES}"),
                                 client.tell("say after")])
                    assert said[-1][1].startswith("same "), said[-1]
                    if environment:
                        # It was on a channel, and the program that reads now is not.
                        assert host.ss(client.pid)["streams_promoted"] > 0, host.ss(client.pid)
                        assert not host.on_channel(client.pid)
                    assert client.finish() == 0
            outcomes.append(said)
    assert outcomes[0] == outcomes[1]
