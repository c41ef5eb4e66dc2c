"""MariaDB over TLS, and copied to a replica, over shared memory as over TCP.

     client ══ primary ══ replica       all preloaded; the same by plain processes to compare with
"""

import hashlib
import os
import subprocess

import pytest

from integration.lib import checks, mariadb

from . import support
from .test_programs import check_idle, check_promoted, fixture_eager, fixture_host, \
    needs  # pylint: disable=unused-import

TRANSACTIONS = 300
SEMI_SYNC_MS = support.ANSWER_S * 1000
QUERIES = (
    "SELECT COUNT(*), SUM(id), MD5(GROUP_CONCAT(c ORDER BY id)) FROM sbtest.sbtest1 WHERE id < 500",
    "SELECT id, REPEAT(c, 40) FROM sbtest.sbtest2 ORDER BY id",
    "SELECT no_such_column FROM sbtest.sbtest1",
    "SELECT REPEAT('x', 5000000)",
    "SELECT 'still here'",
)


def certificates(directory):
    """An authority, and a server and a client that it vouches for."""
    directory.mkdir()

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority",
            "-keyout", "ca-key.pem", "-out", "ca.pem")
    (directory / "extra").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout",
                f"{name}-key.pem", "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem",
                "-CAcreateserial", "-days", "2", "-extfile", "extra", "-out", f"{name}.pem")
    return directory


class Client:
    """The command-line client, over TCP or TLS."""

    def __init__(self, database, environment, tls=None):
        words = ["--skip-ssl"] if tls is None else [
            f"--ssl-ca={tls}/ca.pem", f"--ssl-cert={tls}/client.pem",
            f"--ssl-key={tls}/client-key.pem",
            "--ssl-verify-server-cert"]
        self._command = ["mariadb", "--no-defaults", "--protocol=tcp", f"--host={database.address}",
                         f"--port={database.port}", f"--user={mariadb.USER}",
                         f"--password={mariadb.PASSWORD}", "--batch", "--skip-column-names",
                         "--unbuffered", "--max-allowed-packet=64M", *words]
        self._environment = {**os.environ, **(environment or {})}

    def start(self, *words):
        return subprocess.Popen([*self._command, *words], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self._environment)

    def run(self, script, *words):
        """Its exit status, its answer's length and digest, and its errors."""
        client = self.start(*words)
        try:
            answer, errors = client.communicate(script, timeout=support.ANSWER_S)
        finally:
            client.kill()
            client.wait()
        return client.returncode, len(answer), hashlib.sha256(answer.encode()).hexdigest(), errors


def killed_clients(database, client):
    """What clients say whose connections are killed: one that waits for an answer, an idle one."""
    said = []
    for busy in (True, False):
        process = client.start()
        try:
            process.stdin.write("SELECT CONNECTION_ID();\n")
            process.stdin.flush()
            number = process.stdout.readline().strip()
            where = f"FROM information_schema.processlist WHERE id = {number}"
            if busy:
                process.stdin.write("SELECT SLEEP(1000);\n")
                process.stdin.flush()
                asleep = f"SELECT COUNT(*) {where} AND info LIKE '%SLEEP%'"
                support.wait_for(lambda: database.query(asleep) == [["1"]],
                                 "the client's statement to run")
            database.query(f"KILL {number}")
            support.wait_for(lambda: database.query(f"SELECT COUNT(*) {where}") == [["0"]],
                             "the connection to be gone")
            answer, errors = process.communicate("" if busy else "SELECT 1;\n",
                                                 timeout=support.ANSWER_S)
            said.append((process.returncode, answer, errors))
        finally:
            process.kill()
            process.wait()
    return said


@pytest.fixture(name="tls", scope="module")
def fixture_tls(tmp_path_factory):
    return certificates(tmp_path_factory.mktemp("certificates") / "all")


def tls_options(tls):
    return [f"--ssl-ca={tls}/ca.pem", f"--ssl-cert={tls}/server.pem",
            f"--ssl-key={tls}/server-key.pem"]


@support.needs_mariadb
@needs("openssl")
def test_mariadb_over_tls_with_certificates_at_both_ends(host, eager, tls):
    outcomes = []
    for name, environment in (("plain", None), ("preloaded", eager)):
        with host.server(name, support.prepared_data(), environment,
                         options=[*tls_options(tls), "--require-secure-transport=ON",
                                  "--max-allowed-packet=64M"]) as database:
            database.query(f"ALTER USER {mariadb.USER}@'%' REQUIRE X509")
            client = Client(database, environment, tls)
            said = [client.run("SELECT VARIABLE_VALUE FROM information_schema.session_status WHERE "
                               "VARIABLE_NAME IN ('Ssl_cipher', 'Ssl_version');")]
            said.append(client.run("".join(f"{query};\n" for query in QUERIES * 2), "--force"))
            said += killed_clients(database, client)
            without = Client(database, environment).run("SELECT 1;")
            assert without[0] == 1 and "ERROR" in without[3], without
            assert said[0][1] > 10 and said[1][1] > 10_000_000, said
            outcomes.append((said, without))
            if environment:
                check_promoted(host, database.pid, 10_000_000)
                check_idle(database.pid, ticks=1)
            assert database.stop()
    assert outcomes[0] == outcomes[1]


def replicating(tls, number):
    own = {1: ["--log-bin=log", "--binlog-format=ROW", "--rpl-semi-sync-master-enabled=ON",
               f"--rpl-semi-sync-master-timeout={SEMI_SYNC_MS}",
               "--rpl-semi-sync-master-wait-no-slave=OFF"],
           2: ["--relay-log=relay", "--rpl-semi-sync-slave-enabled=ON", "--slave-net-timeout=60"]}
    return [f"--server-id={number}", *tls_options(tls), *own[number]]


def write(first):
    """Transactions that leave the same rows whenever they run."""
    return "".join(
        f"BEGIN; UPDATE sbtest.sbtest1 SET k = k + {i}, c = MD5({i}) "
        f"WHERE id = {i * 7 % 10000 + 1}; "
        f"INSERT INTO sbtest.sbtest2 (id, k, c, pad) VALUES ({20000 + i}, {i}, "
        f"REPEAT('{i} ', 20), REPEAT('y', {i % 60})); "
        f"DELETE FROM sbtest.sbtest1 WHERE id = {i}; COMMIT;\n"
        for i in range(first, first + TRANSACTIONS))


def in_step(primary, replica):
    """Waits until the replica has everything; both servers' tables, which are then the same."""
    position = primary.query("SELECT @@gtid_binlog_pos")[0][0]
    waited = replica.query(f"SELECT MASTER_GTID_WAIT('{position}', {support.ANSWER_S})")
    assert waited == [["0"]], (replica.name, position, replica.query("SHOW SLAVE STATUS"),
                               primary.query("SHOW PROCESSLIST"), support.processes.tail(replica.log))
    tables = checks.checksums(primary)
    assert checks.checksums(replica) == tables
    return tables


@support.needs_mariadb
@needs("openssl")
@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_mariadb_replica_that_acknowledges_each_transaction(host, eager, tls, secure):
    outcomes = []
    for name, environment in (("plain", None), ("preloaded", eager)):
        with host.server(f"primary-{name}", support.prepared_data(), environment,
                         options=replicating(tls, 1)) as primary, \
                host.server(f"replica-{name}", support.prepared_data(), environment,
                            options=replicating(tls, 2)) as replica:
            outcomes.append(replicate(host, primary, replica, environment, tls, secure))
            if environment:
                for database in (primary, replica):
                    check_promoted(host, database.pid, 100_000)
                assert host.on_channel(replica.pid)
                check_idle(primary.pid, replica.pid, ticks=1)
            replica.query("STOP SLAVE")
            assert replica.stop() and primary.stop()
    assert outcomes[0] == outcomes[1]


def dump_threads(primary):
    """The primary's threads that send its log to the replica."""
    rows = primary.query("SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'")
    return [row[0] for row in rows]


def one_other_than(former, threads):
    return len(threads) == 1 and threads[0] not in former


def restart_replica(primary, replica):
    """Waits for the primary to serve the new connection, and only that.

    On a busy machine the replica of an unmodified server, too, was left waiting for good when it was
    restarted quicker than that: a primary ends what it takes for a left-over thread of the same replica.
    """
    former = dump_threads(primary)
    replica.query("STOP SLAVE")
    replica.query("START SLAVE")
    support.wait_for(lambda: one_other_than(former, dump_threads(primary)),
                     "one connection of the replica's, a new one", support.ANSWER_S)


def replicate(host, primary, replica, environment, tls, secure):
    replica.query(
        f"CHANGE MASTER TO MASTER_HOST='{primary.address}', MASTER_PORT={primary.port}, "
        "MASTER_USER='copier', MASTER_PASSWORD='copier', MASTER_CONNECT_RETRY=1, "
        "MASTER_USE_GTID=slave_pos, "
        + (f"MASTER_SSL=1, MASTER_SSL_CA='{tls}/ca.pem'" if secure else "MASTER_SSL=0"))
    primary.query("GRANT REPLICATION SLAVE ON *.* TO copier@'%' IDENTIFIED BY 'copier'"
                  + (" REQUIRE SSL" if secure else ""))

    def acknowledged(first):
        """Every transaction is, when the replica is there all the time."""
        def is_there():
            # That it is in step again is found out by a transaction.
            primary.query("REPLACE INTO sbtest.sbtest2 (id, k, c, pad) VALUES (19999, 1, 'c', 'p')")
            return (primary.status("Rpl_semi_sync_master_clients")
                    == {"Rpl_semi_sync_master_clients": 1} and
                    primary.query("SHOW STATUS LIKE 'Rpl_semi_sync_master_status'")[0][1] == "ON")
        support.wait_for(is_there, "the replica to be there", support.ANSWER_S)
        before = primary.status("Rpl_semi_sync_master_yes_tx", "Rpl_semi_sync_master_no_tx")
        result = client.run(write(first))
        after = primary.status("Rpl_semi_sync_master_yes_tx", "Rpl_semi_sync_master_no_tx")
        counts = {name: after[name] - before[name] for name in after}
        return result, counts, in_step(primary, replica)

    client = Client(primary, environment, tls if secure else None)
    replica.query("START SLAVE")
    outcome = [acknowledged(0)]
    if environment:
        support.wait_for(lambda: host.on_channel(replica.pid), "the replica's channel")
    # Stopped and started while the primary writes, then while its connection is idle.
    load = client.start()
    load.stdin.write(write(TRANSACTIONS))
    load.stdin.close()
    load.stdin = None
    try:
        for _ in range(3):
            restart_replica(primary, replica)
        _, errors = load.communicate(timeout=support.ANSWER_S)
    finally:
        load.kill()
        load.wait()
    outcome.append((load.returncode, errors, in_step(primary, replica)))
    restart_replica(primary, replica)
    # The connection is killed at the primary: the replica comes back by itself.
    killed = dump_threads(primary)[0]
    primary.query(f"KILL {killed}")
    support.wait_for(lambda: one_other_than([killed], dump_threads(primary)),
                     "the replica to come back", support.ANSWER_S)
    outcome.append(acknowledged(2 * TRANSACTIONS))
    for _, counts, _ in (outcome[0], outcome[-1]):
        assert counts["Rpl_semi_sync_master_no_tx"] == 0, counts
        assert counts["Rpl_semi_sync_master_yes_tx"] == TRANSACTIONS, counts
    outcome += killed_clients(primary, client)
    return outcome
