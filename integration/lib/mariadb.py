"""Throw-away MariaDB servers, each on a copy of a prepared data directory (see template.py)."""

import os
import re
import select
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from . import processes

PROGRAM = "mariadbd"
USER = "sb"
PASSWORD = "sb"
DATABASE = "sbtest"
REDO_LOG = "16M"
START_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 60
ERROR = re.compile(r"^ERROR \d+ \(.*", re.MULTILINE)
# The client's own errors (no server, connection lost) have numbers from 2000 on.
LOST = re.compile(rb"^ERROR 2\d\d\d \(", re.MULTILINE)
# Its crash handler's report: the signal, and a line for each frame.
CRASH = re.compile(r"^\S+ +\S+ (\[ERROR\] .*got signal \d+.*?)$(.*)", re.MULTILINE | re.DOTALL)
FRAME = re.compile(r"^\S+\(.*\[0x[0-9a-f]+\]$", re.MULTILINE)
FRAMES = 8
END_OF_ANSWER = "end-of-answer"


def version(program=PROGRAM):
    """The server's own version line."""
    return subprocess.run([program, "--version"], capture_output=True, text=True,
                          check=True).stdout.strip()


def user_option():
    """The server refuses to run as root unless told so."""
    return ["--user=root"] if os.geteuid() == 0 else []


class MariaDb:
    """One server on a copy of `prepared`; a context that starts and stops it.

    `preload` holds the environment variables that put Ringroad into the server, or nothing.
    The data, the log and the Unix socket live in `work`/`name`. `options` are further words of
    the command line. `program` is a name or a path; one that is a script executes the server, so
    that the server is the process that was started. With `place`, a roots.Place that has `work`,
    the server and its client run there.
    """

    # Beside what MariaDB and MySQL have in common. MariaDB 11.8 would end a transaction, without a deadlock,
    # at a row that another has written meanwhile.
    OPTIONS = (f"--innodb-log-file-size={REDO_LOG}", "--loose-innodb-snapshot-isolation=OFF")

    def __init__(self, name, prepared, work, address, port, preload=None, native_aio=True,
                 options=(), start_timeout_s=START_TIMEOUT_S, program=PROGRAM, place=None):
        self.name = name
        self.address = address
        self.port = port
        self.directory = Path(work) / name
        self.data = self.directory / "data"
        self.log = self.directory / "error.log"
        self._prepared = Path(prepared)
        self._preload = preload
        self._native_aio = native_aio
        self._options = options
        self._program = program
        self._start_timeout_s = start_timeout_s
        self._place = place
        self.socket = self.directory / "socket"
        self._server = None
        self._client = None

    @property
    def pid(self):
        return self._server.pid

    def user_options(self):
        return user_option()

    def client_program(self):
        """MySQL's client speaks to both, and so does MariaDB's."""
        return "mysql" if shutil.which("mariadb") is None else "mariadb"

    def entered(self, command, preload=None):
        """The command line that runs `command` where the server's programs are, and what to add to
        this process's variables for it."""
        if self._place:
            return self._place.command(command, preload), None
        return command, preload

    def start(self):
        if not self.data.exists():  # else it starts again on what it has
            self.directory.mkdir(parents=True)
            shutil.copytree(self._prepared, self.data)
        command, environment = self.entered([
            self._program, "--no-defaults", *self.user_options(), f"--datadir={self.data}",
            # A server that starts removes what others have in the folder of temporary tables.
            f"--tmpdir={self.directory}",
            f"--socket={self.socket}", f"--pid-file={self.directory / 'pid'}",
            f"--port={self.port}", f"--bind-address={self.address}", f"--log-error={self.log}",
            "--innodb-buffer-pool-size=128M", *self.OPTIONS, "--skip-name-resolve",
            *([] if self._native_aio else ["--innodb-use-native-aio=0"]), "--disable-log-bin",
            *self._options], self._preload)
        self._server = processes.Child(command, self.directory / "output", environment)
        processes.wait_until(self._greets, self._start_timeout_s, f"server {self.name} to accept",
                             self._server, self.log)
        self.connect()

    def connect(self):
        """A client for query(), in the place of one that there is."""
        if self._client is not None:
            self._client.kill()
            self._client.communicate()
        self._client = subprocess.Popen(
            self.entered([self.client_program(), "--no-defaults", f"--socket={self.socket}",
                          "--user=root", "--batch", "--skip-column-names", "--unbuffered",
                          "--force"])[0],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)

    def _greets(self):
        """True when the Unix socket answers with the greeting of protocol 10."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self.socket))
                return probe.recv(5)[4:] == b"\x0a"
            except OSError:
                return False

    def query(self, statement):
        """Runs one statement over the Unix socket; a list of rows, each a list of strings."""
        try:
            os.write(self._client.stdin.fileno(),
                     f"{statement};\nSELECT '{END_OF_ANSWER}';\n".encode())
        except BrokenPipeError:
            raise self._silent() from None
        answer = b""
        marker = END_OF_ANSWER.encode() + b"\n"
        while not answer.endswith(marker):
            readable, _, _ = select.select([self._client.stdout], [], [],
                                           processes.patient(ANSWER_TIMEOUT_S))
            received = os.read(self._client.stdout.fileno(), 65536) if readable else b""
            answer += received
            if not received or LOST.search(answer):
                raise self._silent()
        text = answer[:-len(marker)].decode()
        error = ERROR.search(text)
        if error:
            raise processes.ProcessError(f"server {self.name}: {statement}: {error[0]}")
        return [line.split("\t") for line in text.splitlines()]

    def _silent(self):
        return processes.ProcessError(
            f"server {self.name} answers no more{processes.tail(self.log)}")

    def status(self, *names):
        """The named counters of SHOW GLOBAL STATUS, as integers."""
        listed = ", ".join(f"'{name}'" for name in names)
        rows = self.query(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({listed})")
        return {name: int(value) for name, value in rows}

    def kill(self):
        """Ends the server without a chance to say anything."""
        self._server.kill()
        self.stop()

    def abandon(self):
        """Kills the server; one that the kernel does not let go is left behind."""
        if self._server is not None and self._server.abandon():
            self.stop()

    def remove(self):
        """Removes what it has left behind."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def doing(self):
        """How the server ended, or what its threads are doing; and its last words."""
        if not self._server.ends_within(0):
            return (processes.doing(self.pid) + processes.stacks(self.pid)
                    + processes.tail(self.log, 6))
        status = self._server.collect()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        return f"the server ended with {how}{self._where() or processes.tail(self.log, 6)}"

    def _where(self):
        """What the server wrote about its own crash."""
        said = CRASH.search(self.log.read_text(errors="replace")) if self.log.exists() else None
        return "".join(f"\n    {line}" for line in
                       [said[1], *FRAME.findall(said[2])[:FRAMES]]) if said else ""

    def stop(self):
        """Stops the server. True when it ended when asked to, false when it had to be killed."""
        if self._client is not None:
            self._client.kill()
            self._client.communicate()
            self._client = None
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
