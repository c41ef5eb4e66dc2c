"""Throw-away MySQL servers and their clients inside the root `sid` (roots.py).

A server runs on a copy of a data directory that `prepare` has initialised once.
"""

from pathlib import Path

from . import mariadb, processes, roots, servers

ROOT = "sid"
USER, PASSWORD, DATABASE = mariadb.USER, mariadb.PASSWORD, mariadb.DATABASE
START_S = 120
INITIALISE_S = 180
SMALL = ("--innodb-buffer-pool-size=32M", "--innodb-redo-log-capacity=16M",
         # A server that is killed keeps what it has committed; in memory that costs little.
         "--log-bin", "--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1")
# mysqld reads one statement a line.
ACCOUNTS = "\n".join((
    f"CREATE DATABASE {DATABASE};",
    f"CREATE TABLE {DATABASE}.t (id BIGINT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(100));",
    f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';",
    f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;")) + "\n"


def prepare(work):
    """A data directory with the account and an empty table."""
    data, accounts = Path(work) / "template", Path(work) / "accounts.sql"
    accounts.write_text(ACCOUNTS)
    child = processes.Child(
        roots.inside(ROOT, ["mysqld", "--no-defaults", "--user=root", *SMALL,
                            "--initialize-insecure", f"--datadir={data}",
                            f"--init-file={accounts}"], writable=[work]),
        Path(work) / "initialise.log")
    if child.finish(processes.patient(INITIALISE_S)) != 0:
        raise processes.ProcessError(f"mysqld --initialize-insecure{processes.tail(child.log)}")
    (data / "auto.cnf").unlink()  # each copy makes an identity of its own
    return data


def client(program, server, words, preload=None, build=None):
    """The command line of a client of the root, over TCP."""
    return roots.inside(ROOT, [program, "--no-defaults", f"--host={server.address}",
                               f"--port={server.port}", f"--user={USER}",
                               f"--password={PASSWORD}", "--protocol=TCP", *words], env=preload,
                        writable=[server.work, *([build] if build else [])])


class MySql(servers.MySql):
    """One server; a context that starts and stops it. `build`: the folder that `preload` names."""

    def __init__(self, name, prepared, work, address, port, preload=None, build=None, options=()):
        self.work, self.build, self.preload = Path(work), build, preload
        super().__init__(name, prepared, work, address, port, preload, native_aio=False,
                         options=[*SMALL, *options], program="mysqld",
                         start_timeout_s=processes.patient(START_S))

    def client_program(self):
        return "mysql"

    def entered(self, command, preload=None):
        return roots.inside(ROOT, command, env=preload,
                            writable=[self.work, *([self.build] if self.build else [])]), None
