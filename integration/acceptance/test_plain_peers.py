"""A peer without Ringroad works in either role, and sees not one byte more or less."""

import subprocess

import pytest

from integration.lib import mariadb

from . import support
from .recorder import Recorder

LINES = [f"line {number} " + "x" * (number * 37 % 400) for number in range(40)]
BULK = 1 << 20
NOBODY = "peer_has_no_ringroad"


def dialogue(host, server_preload, client_preload):
    """Client and server talk through a recorder; (asked, answered, the streams of both)."""
    with support.Talker("serve", "127.0.0.1", 0, preload=server_preload) as server:
        port = int(server.line().split()[1])
        with Recorder("127.0.0.1", port) as recorder, \
                support.Talker("ask", "127.0.0.1", recorder.port,
                               preload=client_preload) as client:
            assert client.line() == "connected"
            for line in LINES:
                assert client.tell(f"say {line}") == line
            assert client.tell(f"bulk {BULK}").startswith("same ")
            streams = host.streams(client.pid) + host.streams(server.pid)
            assert client.finish() == 0
            recorder.settle(support.ANSWER_S)
            asked, answered = recorder.asked, recorder.answered
            assert len(asked) == 1
        assert server.finish() == 0
    return bytes(asked[0]), bytes(answered[0]), streams


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.mark.parametrize("via", ["shm", "auto", "rdma"])
@pytest.mark.parametrize("role", ["connect", "accept", "both"])
def test_a_plain_peer_sees_the_same_bytes_as_without_the_library(host, via, role):
    """Of `both`, each end's peer is the recorder, which is plain."""
    preload = host.preload(
        host.policy("any", ["1-65535"], via=via, promote_after="{ messages = 1 }"))
    plain = dialogue(host, None, None)
    assert plain[2] == []
    expected = b"".join(f"{line}\n".encode() for line in LINES)
    assert plain[0][:-BULK] == expected and len(plain[0]) == len(expected) + BULK
    asked, answered, streams = dialogue(
        host, None if role == "connect" else preload, None if role == "accept" else preload)
    assert (asked, answered) == plain[:2]
    # The library was at work: the end that connected wanted a channel and found nobody.
    assert sorted(stream["role"] for stream in streams) == \
        {"both": ["accept", "connect"]}.get(role, [role])
    for stream in streams:
        assert stream["state"] == "ON_TCP"
        assert stream["rx_bytes"]["tcp"] == len(asked) and stream["rx_bytes"]["channel"] == 0
        if stream["role"] == "accept":
            assert stream["reason"] == "pending"
        elif via == "shm":
            assert stream["reason"] == NOBODY
        else:
            assert stream["reason"] in (NOBODY, "no_rdma_device", "no_verbs_library")


QUERIES = ("UPDATE sbtest1 SET k = 0 WHERE id = 1", "SELECT COUNT(*), SUM(k) FROM sbtest1",
           "SELECT REPEAT('z', 300000)", "SELECT id, k, c FROM sbtest2 ORDER BY id LIMIT 2000")


def ask_mariadb(server, preload=None):
    """The same queries by the mariadb program over TCP; what it printed."""
    done = subprocess.run(
        ["mariadb", "--no-defaults", f"--host={server.address}", f"--port={server.port}",
         f"--user={mariadb.USER}", f"--password={mariadb.PASSWORD}", "--batch", mariadb.DATABASE,
         "--execute", ";".join(QUERIES)],
        capture_output=True, env={**support.os.environ, **(preload or {})},
        timeout=support.ANSWER_S)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@support.needs_mariadb
def test_mariadb_answers_alike_whichever_end_is_plain(host):
    prepared = support.prepared_data()
    policy = host.policy("any", ["1-65535"], promote_after="{ messages = 1 }")
    preload = host.preload(policy)
    with host.server("plain", prepared) as plain:
        expected = ask_mariadb(plain)
        assert expected.count(b"\n") > 2000
        assert ask_mariadb(plain, preload) == expected
    with host.server("preloaded", prepared, preload) as preloaded:
        assert ask_mariadb(preloaded) == expected
        assert host.ss(preloaded.pid)["totals"]["tcp"]["tx_bytes"] > len(expected)
        assert host.ss(preloaded.pid)["totals"]["channel"]["tx_bytes"] == 0

        # And with both, so that the cases above are known to be told apart; a connection of four
        # queries may be over before it is promoted.
        def answered_on_a_channel():
            assert ask_mariadb(preloaded, preload) == expected
            return host.ss(preloaded.pid)["totals"]["channel"]["tx_bytes"] > len(expected) / 2

        support.wait_for(answered_on_a_channel, "an answer on a channel")
