"""MySQL and its clients say over shared memory what they say over TCP.

     mysql ── mysqld        both plain: the answers to compare with
     mysql ══ mysqld        both preloaded: the same answers, from a channel
"""

import hashlib
import random
import subprocess

import pytest

from lib import mysql, processes
from musthold import support
from musthold.test_programs import AT_ONCE, check_promoted

pytestmark = pytest.mark.releases
PACKET = "--max-allowed-packet=64M"
BLOB = random.Random(20240229).randbytes(8 << 20).hex()
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
        return mysql.MySql(name, prepared, directory, "127.0.0.1", support.free_port(), variables,
                           support.BUILD, [PACKET, "--mysqlx=OFF", "--disable-log-bin"])
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
