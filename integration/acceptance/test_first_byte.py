"""A program of a few dozen bytes runs over the channel from its first byte, if the policy waits."""

import pytest

from . import support

FROM_THE_FIRST = {"promote_after": "{ messages = 0 }", "wait": '"500ms"'}
TEXT = "a few dozen bytes, no more"


@pytest.mark.alone
def test_a_short_program_runs_over_shared_memory_from_its_first_byte(tmp_path):
    host = support.Host(tmp_path)
    preload = host.preload(host.policy("first", ["1-65535"], **FROM_THE_FIRST))
    check(host, preload, "127.0.0.1", "shm")


def check(host, preload, address, carrier):
    """Client and server exchange TEXT; both say that every byte of it went over `carrier`."""
    with support.Talker("serve", address, 0, preload=preload) as server:
        port = server.line().split()[1]
        with support.Talker("ask", address, port, preload=preload) as client:
            assert client.line() == "connected"
            assert client.tell(f"say {TEXT}") == TEXT
            bytes_sent = len(TEXT) + 1
            for end in (client, server):
                stream, = host.streams(end.pid)
                assert (stream["state"], stream["carrier"]) == ("ON_CHANNEL", carrier), stream
                for direction in ("tx_bytes", "rx_bytes"):
                    assert stream[direction] == {"tcp": 0, "channel": bytes_sent}, stream
            assert client.finish() == 0
        assert server.finish() == 0


@pytest.mark.parametrize("preloaded", ["client", "server"])
def test_waiting_for_a_plain_peer_ends_on_tcp(tmp_path, preloaded):
    host = support.Host(tmp_path)
    preload = host.preload(host.policy("first", ["1-65535"], **FROM_THE_FIRST))
    with support.Talker("serve", "127.0.0.1", 0,
                        preload=preload if preloaded == "server" else None) as server:
        port = server.line().split()[1]
        with support.Talker("ask", "127.0.0.1", port,
                            preload=preload if preloaded == "client" else None) as client:
            assert client.line() == "connected"
            assert client.tell(f"say {TEXT}") == TEXT
            pid = (client if preloaded == "client" else server).pid
            # A send is counted when it is over, and the other end may have its bytes by then.
            support.wait_for(lambda: [stream["tx_bytes"] for stream in host.streams(pid)] ==
                             [{"tcp": len(TEXT) + 1, "channel": 0}], "the bytes on TCP")
            stream, = host.streams(pid)
            assert stream["state"] == "ON_TCP"
