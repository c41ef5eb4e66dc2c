"""Which database a server program is: MariaDB or MySQL, by what it says of its version.

    Product ── server() ──▶ mariadb.MariaDb, or MySql, which is asked and stopped in the same way
"""

import subprocess
from dataclasses import dataclass

from . import mariadb, processes

DEADLOCKS = "Innodb_deadlocks"
POOL = "--plugin-load-add=thread_pool.so"


class MySql(mariadb.MariaDb):
    """A MySQL server with the methods of MariaDB's."""

    # loose: 5.7 has neither.
    OPTIONS = (f"--loose-innodb-redo-log-capacity={mariadb.REDO_LOG}", "--loose-mysqlx=OFF")

    def status(self, *names):
        """MySQL counts deadlocks elsewhere."""
        counted = super().status(*(name for name in names if name != DEADLOCKS))
        if DEADLOCKS in names:
            counted[DEADLOCKS] = int(self.query(
                "SELECT `COUNT` FROM information_schema.INNODB_METRICS "
                "WHERE NAME = 'lock_deadlocks'")[0][0])
        return counted


@dataclass(frozen=True)
class Product:
    """A program and what it is; `name` is a word for records, `title` one for readers."""

    program: str
    version: str

    @property
    def is_mariadb(self):
        return "MariaDB" in self.version

    @property
    def name(self):
        return self.title.lower()

    @property
    def title(self):
        return "MariaDB" if self.is_mariadb else "MySQL"

    def threadings(self):
        """{connection or pool: the options for it}, of what the program has."""
        found = {"connection": ["--thread-handling=one-thread-per-connection"]}
        if self.is_mariadb or "Percona" in self.version:
            return {**found, "pool": ["--thread-handling=pool-of-threads"]}
        # The options of a plugin that can be loaded are among those that it tells.
        help_ = subprocess.run([self.program, "--no-defaults", *mariadb.user_option(), POOL,
                                "--verbose", "--help"], capture_output=True, text=True, check=False)
        return {**found, "pool": [POOL]} if "--thread-pool-size" in help_.stdout else found

    def server(self, *words, **named):
        """As mariadb.MariaDb is made, of this program."""
        kind = mariadb.MariaDb if self.is_mariadb else MySql
        return kind(*words, **named, program=self.program)

    def install(self, data, place=None):
        """Fills the folder `data`, which is made: root has no password there. With `place`, a
        roots.Place that has it, by the programs that are there."""
        data.mkdir()
        command = (["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db",
                    "--auth-root-authentication-method=normal", "--force",
                    f"--innodb-log-file-size={mariadb.REDO_LOG}"] if self.is_mariadb else
                   [self.program, "--no-defaults", "--initialize-insecure", f"--datadir={data}",
                    MySql.OPTIONS[0]])
        command += [f"--tmpdir={data.parent}", *mariadb.user_option()]
        done = subprocess.run(place.command(command) if place else command, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise processes.ProcessError(f"{command[0]} made no data directory:\n{done.stdout}")


def of(program):
    """The Product of a name or a path; ProcessError when it is none."""
    try:
        version = mariadb.version(program)
    except OSError as problem:
        raise processes.ProcessError(f"{program}: {problem.strerror}") from None
    except subprocess.CalledProcessError as problem:
        raise processes.ProcessError(f"{program} --version ended with status {problem.returncode}"
                                     f": {(problem.stderr or '').strip()}") from None
    if " Ver " not in version:
        raise processes.ProcessError(f"{program} is neither MariaDB's server nor MySQL's: its "
                                     f"--version says \"{version}\"")
    return Product(program, version)


def described(program):
    """Of the Product, as plain data."""
    product = of(program)
    return {"name": product.name, "title": product.title, "version": product.version,
            "threadings": product.threadings()}
