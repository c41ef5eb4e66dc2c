"""The ends of `ringroad bench redis`, each made by the agent of its host: a Redis server that keeps
nothing on a disk, and redis-benchmark."""

import csv
import subprocess

from bench import net_ends, probe
from lib import processes, procstat, ringroad

PROGRAMS = {"server": "redis-server", "client": "redis-benchmark"}
# Of a TCP port and of a Unix socket it says that with other words before it.
LISTENS = "eady to accept connections"
TITLES = '"test",'


def facts(role, address):
    """What the figures depend on at one end, as words; `address` is the other's."""
    program = PROGRAMS[role]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return {**probe.facts(role, address), program: version.stdout.strip()}


class Server(net_ends.Server):
    """Listens on `address` and `port`, or on the Unix socket `path` if that is not ""."""

    def __init__(self, address, port, path, work, environment, log, command, patient):
        where = ["--port", 0, "--unixsocket", path] if path else ["--port", port, "--bind", address]
        super().__init__(
            [PROGRAMS["server"], *where, "--save", "", "--appendonly", "no", "--protected-mode", "no",
             "--dir", work, "--daemonize", "no"], LISTENS, environment, log, patient)
        self._tool = ringroad.Ringroad(command=command) if command else None

    def spent(self):
        """Until now: processor time, context switches, and what Ringroad says of its bytes, None
        where it does not know the server."""
        usage = procstat.read(self._child.pid)
        snapshot = self._tool.snapshot() if self._tool else ringroad.Snapshot.empty()
        known = snapshot.knows(self._child.pid)
        return {"cpu_s": usage.cpu_s, "switches": sum(usage.switches.values()),
                "bytes": snapshot.totals(self._child.pid) if known else None}


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
