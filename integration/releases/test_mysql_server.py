"""MySQL and its clients say over shared memory what they say over TCP.

     mysql ── mysqld        both plain: the answers to compare with
     mysql ══ mysqld        both preloaded: the same answers, from a channel
"""

import hashlib
import os
import random
import subprocess

import pytest

from integration.acceptance import support
from integration.acceptance.test_programs import AT_ONCE, check_promoted
from integration.lib import mysql, processes

pytestmark = pytest.mark.releases
PACKET = "--max-allowed-packet=64M"
BLOB = random.Random(20240229).randbytes(8 << 20).hex()
# Reads the server's hello (a notice), asks for its capabilities and prints both.
X_CLIENT = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30)
peer.settimeout(None)
def frame():
    length = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "little")
    return peer.recv(length, socket.MSG_WAITALL)
print(frame())
peer.sendall(bytes([1, 0, 0, 0, 1]))
print(frame())
"""
PROTOCOLS = {
    "tls-1.2": ["--ssl-mode=REQUIRED", "--tls-version=TLSv1.2"],
    "tls-1.3": ["--ssl-mode=REQUIRED", "--tls-version=TLSv1.3"],
    "caching-sha2": ["--ssl-mode=DISABLED", "--get-server-public-key"],
    "zlib": ["--ssl-mode=DISABLED", "--get-server-public-key", "--compression-algorithms=zlib"],
    "zstd": ["--ssl-mode=DISABLED", "--get-server-public-key", "--compression-algorithms=zstd"],
}


@pytest.fixture(name="pair", scope="module")
def fixture_pair(work, prepared):
    """The host, and a plain and a preloaded server."""
    directory = work / "pair"
    directory.mkdir()
    host = support.Host(directory)
    preload = host.preload(host.policy("mysql", ["1-65535"], **AT_ONCE))
    def server(name, variables):
        admin_port, x_port = support.free_port(), support.free_port()
        made = mysql.MySql(
            name, prepared, directory, "127.0.0.1", support.free_port(), variables, support.BUILD,
            [PACKET, "--disable-log-bin", "--admin-address=127.0.0.1", f"--admin-port={admin_port}",
             "--mysqlx=ON", f"--mysqlx-port={x_port}", "--mysqlx-bind-address=127.0.0.1",
             f"--mysqlx-socket={directory / name / 'x-socket'}"])
        made.admin_port, made.x_port = admin_port, x_port
        return made
    with server("plain", None) as plain, server("preloaded", preload) as preloaded:
        yield host, plain, preloaded


def says(server, words, sent=""):
    """(exit status, output, errors) of `mysql` with the server's own preload."""
    done = subprocess.run(
        mysql.client("mysql", server, ["--batch", "--skip-column-names", PACKET, *words],
                     server.preload, support.BUILD), input=sent, capture_output=True, text=True,
        check=False, timeout=processes.patient(support.ANSWER_S))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_blobs_of_16_mb_go_both_ways(pair, protocol):
    host, plain, preloaded = pair
    asks = (f"SHOW SESSION STATUS WHERE Variable_name IN ('Ssl_version', 'Compression_algorithm');\n"
            f"SELECT SHA2('{BLOB}', 256);\nSELECT '{BLOB}';\n")
    before = host.ss(preloaded.pid)["totals"].get("channel", {"rx_bytes": 0, "tx_bytes": 0})
    said = says(preloaded, PROTOCOLS[protocol], asks)
    assert said == says(plain, PROTOCOLS[protocol], asks)
    assert said[0] == 0 and hashlib.sha256(BLOB.encode()).hexdigest() in said[1], said[2]
    check_promoted(host, preloaded.pid,
                   before["rx_bytes"] + before["tx_bytes"] + len(BLOB))


@pytest.mark.parametrize("statement", [
    "SELECT CONNECTION_ID() INTO @me; KILL @me; SELECT 1",
    "SET max_execution_time = 200; SELECT COUNT(*) FROM information_schema.collations a, "
    "information_schema.collations b, information_schema.collations c, "
    "information_schema.collations d"], ids=["kill", "max_execution_time"])
def test_what_the_server_cuts_off_ends_alike(pair, statement):
    _, plain, preloaded = pair
    status, _, errors = said = says(preloaded, ["--skip-reconnect", "-e", statement])
    assert said == says(plain, ["--skip-reconnect", "-e", statement])
    assert status != 0 and "ERROR" in errors


def after_wait_timeout(server):
    """(exit status, errors) of a client that asks again once the server has let go of it."""
    client = processes.Talker(
        mysql.client("mysql", server, ["--batch", "--skip-column-names", "--unbuffered",
                                       "--skip-reconnect"], server.preload, support.BUILD),
        server.directory / "client.log")
    client.tell("SET wait_timeout = 1; SELECT CONNECTION_ID();")
    number = client.line(processes.patient(support.ANSWER_S))
    support.wait_for(lambda: server.query(
        f"SELECT COUNT(*) FROM performance_schema.threads WHERE processlist_id = {number}")
        == [["0"]], "the server to let go of its client")
    client.tell("SELECT 1;")
    return client.finish(processes.patient(support.ANSWER_S)), client.log.read_text()


def test_a_client_learns_that_it_was_silent_too_long(pair):
    _, plain, preloaded = pair
    said = after_wait_timeout(preloaded)
    assert said == after_wait_timeout(plain)
    assert said[0] == 1 and "ERROR 4031" in said[1]


def promoted(host, server):
    return host.ss(server.pid)["streams_promoted"]


def tool(server, words):
    done = subprocess.run(mysql.client(words[0], server, words[1:], server.preload, support.BUILD),
                          capture_output=True, text=True, check=False,
                          timeout=processes.patient(support.ANSWER_S))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [
    ["mysqldump", "--skip-comments", "--hex-blob", "--no-tablespaces", "mysql", "help_topic"],
    ["mysqladmin", "ping"], ["mysqladmin", "create", "made"]], ids=" ".join)
def test_what_a_tool_says_is_the_same_from_a_channel(pair, words):
    host, plain, preloaded = pair
    before = promoted(host, preloaded)
    said = tool(preloaded, words)
    assert said == tool(plain, words)
    assert said[0] == 0, said[2]
    assert promoted(host, preloaded) > before


def test_the_port_for_administrators_is_promoted_too(pair):
    host, plain, preloaded = pair
    before = promoted(host, preloaded)
    status = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'sb'"
    said = [says(server, [f"--port={server.admin_port}", "-e", status])
            for server in (preloaded, plain)]
    assert said[0] == said[1] and said[0][:2] == (0, "1\n"), said
    assert promoted(host, preloaded) > before


def test_the_x_protocol_greets_and_tells_its_capabilities_from_a_channel(pair):
    host, plain, preloaded = pair
    before = promoted(host, preloaded)
    said = []
    for server in (preloaded, plain):
        done = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", X_CLIENT, str(server.x_port)], capture_output=True,
            text=True, check=False, timeout=processes.patient(support.ANSWER_S),
            env={**os.environ, **(server.preload or {})})
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]
    assert said[0][0] == 0 and "authentication.mechanisms" in said[0][1], said[0]
    assert promoted(host, preloaded) > before
