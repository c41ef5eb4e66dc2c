"""A rule's key_file: a peer with the same secret gets a channel, every other stays on TCP and is told why."""

import os

import pytest

from . import support

SECRETS = {"one": "0123456789abcdef one", "other": "0123456789abcdef other"}


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


def preload(host, tmp_path, name, secret):
    """The variables of a process whose policy asks for this secret, or for none."""
    keys = {}
    if secret:
        path = tmp_path / f"key-{secret}"
        path.write_text(SECRETS[secret] + "\n", encoding="ascii")
        os.chmod(path, 0o600)
        keys["key_file"] = f'"{path}"'
    return host.preload(
        host.policy(name, ["1-65535"], promote_after="{ messages = 1 }", **keys))


def talk(host, server_preload, client_preload, settled):
    """Lines go back and forth until `settled` of the streams (the client's, the server's)."""
    with support.Talker("serve", "127.0.0.1", 0, preload=server_preload) as server:
        port = int(server.line().split()[1])
        with support.Talker("ask", "127.0.0.1", port, preload=client_preload) as client:
            assert client.line() == "connected"

            def both_settled():
                assert client.tell("say hello") == "hello"
                streams = host.streams(client.pid), host.streams(server.pid)
                return all(streams) and settled(streams[0][0], streams[1][0])

            support.wait_for(both_settled, "the streams to settle")
            assert client.tell("bulk 100000").startswith("same ")
            assert client.finish() == 0
        assert server.finish() == 0


@pytest.mark.parametrize("secret", [None, "one"])
def test_the_same_secret_or_none_at_both_ends_gives_a_channel(host, tmp_path, secret):
    talk(host, preload(host, tmp_path, "server", secret), preload(host, tmp_path, "client", secret),
         lambda client, server: client["state"] == server["state"] == "ON_CHANNEL")


@pytest.mark.parametrize("server, client", [("one", "other"), ("one", None), (None, "other")])
def test_another_secret_or_none_stays_on_tcp_and_both_ends_say_so(host, tmp_path, server, client):
    talk(host, preload(host, tmp_path, "server", server), preload(host, tmp_path, "client", client),
         lambda asks, answers: asks["state"] == answers["state"] == "ON_TCP"
         and (asks["reason"], asks["peer_reason"]) == ("peer_refused", "wrong_key")
         and answers["reason"] == "wrong_key")
