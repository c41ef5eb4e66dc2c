"""The ends of `ringroad bench redis`, each made by the agent of its host: a Redis server that keeps
nothing on a disk, and redis-benchmark."""

import csv
import subprocess

from integration.bench import net_ends, probe
from integration.lib import processes, procstat, ringroad

PROGRAMS = {"server": "redis-server", "client": "redis-benchmark"}
# Of a TCP port and of a Unix socket it says that with other words before it.
LISTENS = "eady to accept connections"
TITLES = '"test",'


def version(role):
    return subprocess.run([PROGRAMS[role], "--version"], capture_output=True, text=True,
                          check=True).stdout.strip()


def facts(role, address):
    """What the figures depend on at one end, as words; `address` is the other's."""
    return {**probe.facts(role, address), PROGRAMS[role]: version(role)}


class Server(net_ends.Server):
    """Listens on `address` and `port`, or on the Unix socket `path` if that is not ""."""

    def __init__(self, address, port, path, password, work, environment, log, command, patient):
        where = ["--port", 0, "--unixsocket", path] if path else ["--port", port, "--bind", address]
        super().__init__(
            [PROGRAMS["server"], *where, "--requirepass", password, "--save", "", "--appendonly", "no",
             "--dir", work, "--daemonize", "no", "--crash-log-enabled", "no"],
            LISTENS, environment, log, patient)
        self._marked = None
        self._tool = ringroad.Ringroad(command=command) if command else None

    def mark(self):
        self._marked = procstat.read(self._child.pid), self._bytes()

    def spent(self):
        """Since mark(): processor time, context switches, and the bytes that Ringroad has counted,
        None where it does not know the server."""
        usage, carried = self._marked
        cpu_s, switches = procstat.read(self._child.pid).since(usage)
        now = self._bytes()
        return {"cpu_s": cpu_s, "switches": switches,
                "bytes": ringroad.difference(now, carried) if now and carried else None}

    def _bytes(self):
        snapshot = self._tool.snapshot() if self._tool else ringroad.Snapshot.empty()
        return snapshot.totals(self._child.pid) if snapshot.knows(self._child.pid) else None


class Load:
    """One run of redis-benchmark; `words` are its options."""

    def __init__(self, words, environment, log):
        self._child = processes.Child([PROGRAMS["client"], "--csv", *words], log, environment)

    def finish(self, limit_s):
        """Waits for its end: its row by columns, and its processor time and context switches."""
        status = self._child.finish(limit_s)
        row = parse(self._child.log.read_text(errors="replace"))
        if status != 0 or not row:
            raise processes.ProcessError(
                f"{self._child.name} ended with status {status}{processes.tail(self._child.log)}")
        cpu_s, switches = procstat.of_rusage(self._child.usage, procstat.Usage(0.0, {}))
        return {**row, "cpu_s": cpu_s, "switches": switches}

    def close(self):
        self._child.abandon()


def parse(text):
    """The one row that redis-benchmark prints, as numbers by columns; {} when there is none."""
    lines = text.splitlines()
    for titles, row in zip(lines, lines[1:]):
        if titles.startswith(TITLES):
            names, values = csv.reader([titles, row])
            return {name: float(value) for name, value in list(zip(names, values))[1:]}
    return {}
