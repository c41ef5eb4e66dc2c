"""Throw-away MySQL servers and their clients inside the root `sid` (roots.py).

A server runs on a copy of a data directory that `prepare` has initialised once.
"""

import shutil
import subprocess
from pathlib import Path

from . import processes, roots

ROOT = "sid"
USER = "sb"
PASSWORD = "sb"
DATABASE = "sbtest"
START_S = 60
ANSWER_S = 60
INITIALISE_S = 180
SMALL = ("--no-defaults", "--user=root", "--innodb-buffer-pool-size=32M",
         "--innodb-redo-log-capacity=16M", "--innodb-use-native-aio=0", "--performance-schema=ON",
         # A server that is killed keeps what it has committed; in memory that costs little.
         "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1")
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
        roots.inside(ROOT, ["mysqld", *SMALL, "--initialize-insecure", f"--datadir={data}",
                            f"--init-file={accounts}"], writable=[work]),
        Path(work) / "initialise.log")
    if child.finish(processes.patient(INITIALISE_S)) != 0:
        raise processes.ProcessError(f"mysqld --initialize-insecure{processes.tail(child.log)}")
    (data / "auto.cnf").unlink()  # each copy makes an identity of its own
    return data


def client(program, server, words, preload=None, build=None, tcp=True):
    """The command line of a client of the root, over TCP, or as root over the Unix socket."""
    where = ([f"--host={server.address}", f"--port={server.port}", f"--user={USER}",
              f"--password={PASSWORD}", "--protocol=TCP"] if tcp
             else [f"--socket={server.socket}", "--user=root"])
    return roots.inside(ROOT, [program, "--no-defaults", *where, *words], env=preload,
                        writable=[server.work, *([build] if build else [])])


class MySql:
    """One server; a context that starts and stops it. `build` is the folder that `preload` names."""

    def __init__(self, name, prepared, work, address, port, preload=None, build=None, options=()):
        self.name, self.address, self.port = name, address, port
        self.work, self.build = Path(work), build
        self.preload, self.options = preload, options
        self.directory = self.work / name
        self.socket = self.directory / "socket"
        self.log = self.directory / "error.log"
        self._prepared, self._server = prepared, None

    @property
    def pid(self):
        return self._server.pid

    def start(self):
        data = self.directory / "data"
        if not data.exists():  # else it starts again on what it has
            shutil.copytree(self._prepared, data)
        self._server = processes.Child(roots.inside(ROOT, [
            "mysqld", *SMALL, f"--datadir={data}", f"--socket={self.socket}",
            f"--pid-file={self.directory / 'pid'}", f"--log-error={self.log}",
            f"--bind-address={self.address}", f"--port={self.port}", *self.options],
            env=self.preload, writable=[self.work, *([self.build] if self.build else [])]),
            self.directory / "output")
        processes.wait_until(self._answers, processes.patient(START_S),
                             f"server {self.name} to answer", self._server, self.log)

    def _answers(self):
        return self.socket.exists() and self._ask("SELECT 1").returncode == 0

    def _ask(self, statement):
        return subprocess.run(client("mysql", self, ["--batch", "--skip-column-names", "-e",
                                                     statement], tcp=False),
                              capture_output=True, text=True, check=False,
                              timeout=processes.patient(ANSWER_S))

    def query(self, statement):
        """Over the Unix socket; a list of rows, each a list of strings."""
        done = self._ask(statement)
        if done.returncode != 0:
            raise processes.ProcessError(f"server {self.name}: {statement}: {done.stderr}"
                                         f"{processes.tail(self.log)}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    def kill(self):
        """Ends the server without a chance to say anything."""
        self._server.kill()

    def stop(self):
        """True when it ended when asked to."""
        return self._server is None or self._server.stop()

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()
