"""A MySQL source and its replica over shared memory, and a clone.

     mysqlslap ══ source ═══ replica       either is killed under load, and comes back
                  donor  ═══ recipient     CLONE INSTANCE
"""

import subprocess

import pytest

from integration.acceptance import support
from integration.acceptance.test_programs import AT_ONCE, check_promoted
from integration.lib import mysql, processes

pytestmark = pytest.mark.releases
ROWS = 1000
CATCH_UP_S = 90
TABLE = f"{mysql.DATABASE}.t"
SEMI_SYNC = {
    "source": ["--plugin-load-add=semisync_source.so", "--rpl-semi-sync-source-enabled=ON",
               "--rpl-semi-sync-source-timeout=1000"],
    "replica": ["--plugin-load-add=semisync_replica.so", "--rpl-semi-sync-replica-enabled=ON"]}


class Pair:
    """A source and a replica that is connected; a context."""

    def __init__(self, directory, prepared, semi_sync):
        directory.mkdir()
        self.host = support.Host(directory)
        self._preload = self.host.preload(self.host.policy(
            "mysql", ["1-65535"], promote_after="{ messages = 2 }"))
        self.semi_sync = semi_sync
        self.source, self.replica = (mysql.MySql(
            name, prepared, directory, "127.0.0.1", support.free_port(), self._preload,
            support.BUILD, [f"--server-id={number}", "--gtid-mode=ON",
                            "--enforce-gtid-consistency=ON", "--relay-log-recovery=ON",
                            "--replica-net-timeout=5", *(SEMI_SYNC[name] if semi_sync else [])])
            for number, name in enumerate(("source", "replica"), 1))

    def load(self, rows):
        return mysql.client("mysqlslap", self.source, [
            "--concurrency=4", f"--number-of-queries={rows}", f"--create-schema={mysql.DATABASE}",
            "--no-drop", f"--query=INSERT INTO {TABLE} (v) VALUES (UUID())"], self._preload,
            support.BUILD)

    def under_load(self, what):
        """Does `what` once the load has been seen, and waits for the load's end."""
        before = self.count(self.source)
        load = processes.Child(self.load(1_000_000), self.host.directory / "load.log")
        try:
            support.wait_for(lambda: self.count(self.source) > before + ROWS, "the load",
                             CATCH_UP_S)
            what()
        finally:
            load.stop()

    def is_on_channel(self):
        """The replica's connection to its source is, at both ends."""
        address = f"127.0.0.1:{self.source.port}"
        ours = [stream for stream in self.host.streams(self.replica.pid)
                if stream["remote"] == address]
        theirs = [stream["remote"] for stream in self.host.on_channel(self.source.pid)]
        return bool(ours) and all(stream["carrier"] == "shm" and stream["local"] in theirs
                                  for stream in ours)

    def is_semi_sync(self):
        return self.source.query("SHOW STATUS LIKE 'Rpl_semi_sync_source_status'")[0][1] == "ON"

    def runs(self):
        """Waits until the replica is connected, on a channel."""
        support.wait_for(self.is_on_channel, "the replica's stream on a channel", CATCH_UP_S)
        if self.semi_sync:
            support.wait_for(self.is_semi_sync, "semi-synchronous commits", CATCH_UP_S)

    def agree(self):
        """Waits until both have the same transactions: whether their tables are equal."""
        def executed(server):
            return server.query("SELECT @@GLOBAL.gtid_executed")
        support.wait_for(lambda: executed(self.source) == executed(self.replica),
                         "the replica to have all transactions", CATCH_UP_S)
        return (self.source.query(f"CHECKSUM TABLE {TABLE}")
                == self.replica.query(f"CHECKSUM TABLE {TABLE}"))

    @staticmethod
    def count(server):
        return int(server.query(f"SELECT COUNT(*) FROM {TABLE}")[0][0])

    def __enter__(self):
        try:
            self.source.start()
            self.replica.start()
            self.replica.query(
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', "
                f"SOURCE_PORT={self.source.port}, SOURCE_USER='{mysql.USER}', "
                f"SOURCE_PASSWORD='{mysql.PASSWORD}', SOURCE_AUTO_POSITION=1, "
                f"SOURCE_CONNECT_RETRY=1, SOURCE_RETRY_COUNT=1000, GET_SOURCE_PUBLIC_KEY=1")
            self.replica.query("START REPLICA")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in (self.replica, self.source):
            server.stop()


@pytest.mark.parametrize("semi_sync", [False, True], ids=["asynchronous", "semi-synchronous"])
def test_a_replica_and_a_source_that_are_killed_under_load_hold_the_same_afterwards(
        work, prepared, semi_sync):
    with Pair(work / f"replication{semi_sync}", prepared, semi_sync) as pair:
        subprocess.run(pair.load(ROWS), check=True, stdout=subprocess.DEVNULL, timeout=CATCH_UP_S)
        pair.runs()
        assert pair.agree() and pair.count(pair.replica) == ROWS
        for killed in (pair.replica, pair.source):
            pair.under_load(killed.kill)
            killed.start()
            pair.runs()
            assert pair.agree() and pair.count(pair.replica) > ROWS


def test_a_clone_of_a_server_holds_the_same(work, prepared):
    directory = work / "clone"
    directory.mkdir()
    host = support.Host(directory)
    preload = host.preload(host.policy("mysql", ["1-65535"], **AT_ONCE))

    def server(name, data):
        return mysql.MySql(name, data, directory, "127.0.0.1", support.free_port(), preload,
                           support.BUILD, ["--plugin-load-add=mysql_clone.so"])
    with server("donor", prepared) as donor, server("recipient", prepared) as recipient:
        donor.query(f"INSERT INTO {TABLE} (v) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL "
                    f"SELECT i + 1 FROM n WHERE i < 1000) SELECT SHA2(i, 256) FROM n")
        recipient.query(f"SET GLOBAL clone_valid_donor_list = '127.0.0.1:{donor.port}'")
        recipient.query(f"CLONE INSTANCE FROM '{mysql.USER}'@'127.0.0.1':{donor.port} "
                        f"IDENTIFIED BY '{mysql.PASSWORD}' DATA DIRECTORY = '{directory}/cloned-data'")
        told = donor.query(f"CHECKSUM TABLE {TABLE}")
        for pid in (donor.pid, recipient.pid):
            check_promoted(host, pid, 20 << 20)
    with server("cloned", directory / "cloned-data") as cloned:
        assert cloned.query(f"CHECKSUM TABLE {TABLE}") == told
        assert cloned.query(f"SELECT COUNT(*) FROM {TABLE}") == [["1000"]]
