"""sysbench's OLTP workloads: prepare, run, and read the report."""

import math
import re
import subprocess

from . import mariadb, processes, procstat

STARTED = "Threads started!"
START_TIMEOUT_S = 60
OVERTIME_S = 60


def version():
    return subprocess.run(["sysbench", "--version"], capture_output=True, text=True,
                          check=True).stdout.strip()


class ReportError(Exception):
    """sysbench's output is not a complete report."""


class Load:
    """One server's address and tables, as every sysbench command names them. With `socket`, a
    path, the server is there instead."""

    def __init__(self, host, port, tables, table_size, socket=""):
        # Uniform keys: sysbench's default favours a few hot rows and measures their locks.
        self._options = [
            "--db-driver=mysql", *([f"--mysql-socket={socket}", "--mysql-host=localhost"] if socket else
                                   [f"--mysql-host={host}", f"--mysql-port={port}"]),
            f"--mysql-user={mariadb.USER}", f"--mysql-password={mariadb.PASSWORD}",
            f"--mysql-db={mariadb.DATABASE}", f"--tables={tables}", f"--table-size={table_size}",
            "--rand-type=uniform"]

    def prepare(self):
        """Creates and fills the tables. sysbench fills them differently each time, whatever seed
        it is given: servers that shall hold the same data start from copies of one (template.py).
        """
        done = subprocess.run(
            ["sysbench", "oltp_read_write", *self._options, "prepare"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise processes.ProcessError(f"sysbench prepare failed:\n{done.stdout}")

    def start(self, *words, **named):
        """Starts a run as `launch` does and waits until its threads measure; returns a Run."""
        run = self.launch(*words, **named)
        run.wait_until_started()
        return run

    def launch(self, workload, output, threads, seed, seconds=0, events=0, preload=None, more=()):
        """Begins a run as `command` has it; `preload` holds variables to add to the environment.
        Returns a Run.
        """
        return Run(self.command(workload, threads, seed, seconds, events, more), output, seconds,
                   preload)

    def command(self, workload, threads, seed, seconds=0, events=0, more=()):
        """The words of a run limited by `seconds` or by `events` (0: no limit).

        `workload` is a name that sysbench knows or a script's path; `more` are further words.
        """
        return ["sysbench", str(workload), *self._options, f"--threads={threads}",
                f"--time={seconds}", f"--events={events}", f"--rand-seed={seed}", *more,
                "--histogram=on", "--percentile=95", "run"]


class Run:
    """A sysbench process."""

    def __init__(self, command, output, seconds, preload=None):
        self._seconds = seconds
        self.child = processes.Child(command, output, preload)
        self.pid = self.child.pid
        self._at_start = None

    def wait_until_started(self):
        """Returns when its threads have all connected and measure."""
        try:
            processes.wait_until(self._has_started, processes.patient(START_TIMEOUT_S),
                                 "sysbench to connect its threads", self.child)
            self._at_start = self._usage()
        except BaseException:
            self.kill()
            raise

    def _has_started(self):
        return STARTED in self.child.log.read_text(errors="replace")

    def _usage(self):
        try:
            return procstat.read(self.pid)
        except OSError:
            return procstat.Usage(0.0, {})  # a run so short that it is over already

    def goes_on_for(self, seconds):
        """Waits up to `seconds`; false when the run ended within them."""
        return not self.child.ends_within(seconds)

    def finish(self):
        """Waits for the end; the report (see `parse`) with the exit status and the client's cost.

        `client_cpu_s` and `client_switches` count from the moment when the threads had started.
        A run that goes on a minute longer than it was asked to is killed: ProcessError.
        """
        limit = self._seconds + OVERTIME_S
        if not self.child.ends_within(limit):
            hangs = processes.doing(self.pid)
            self.kill()
            raise processes.ProcessError(f"sysbench did not end within {limit:g} s; {hangs}"
                                         f"{processes.tail(self.child.log)}")
        status = self.child.collect()
        text = self.child.log.read_text(errors="replace")
        try:
            report = parse(text)
        except ReportError as problem:
            raise processes.ProcessError(f"sysbench ended with status {status}, {problem}"
                                         f"{processes.tail(self.child.log)}") from None
        report["exit_status"] = status
        report["client_cpu_s"], report["client_switches"] = procstat.of_rusage(
            self.child.usage, self._at_start)
        return report

    def kill(self):
        self.child.abandon()


_NUMBERS = {
    "transactions": r"transactions:\s+(\d+)\s+\(",
    "tps": r"transactions:\s+\d+\s+\(([\d.]+) per sec",
    "queries": r"queries:\s+(\d+)\s+\(",
    "qps": r"queries:\s+\d+\s+\(([\d.]+) per sec",
    "errors": r"ignored errors:\s+(\d+)",
    "reconnects": r"reconnects:\s+(\d+)",
    "seconds": r"total time:\s+([\d.]+)s",
    "latency_min_ms": r"min:\s+([\d.]+)",
    "latency_avg_ms": r"avg:\s+([\d.]+)",
    "latency_max_ms": r"max:\s+([\d.]+)",
    "reported_p95_ms": r"95th percentile:\s+([\d.]+)",
}
_WHOLE = ("transactions", "queries", "errors", "reconnects")


def parse(text):
    """A run's report as a dict: counts, rates per second, latencies in ms, `fatal` messages.

    p50, p95 and p99 come from the histogram, whose steps are 1.8 % wide; sysbench's own percentile
    comes from the same steps and differs by one at most. Raises ReportError when a part of the
    report is missing.
    """
    report = {}
    for name, pattern in _NUMBERS.items():
        found = re.search(rf"^\s*{pattern}", text, re.MULTILINE)
        if found is None:
            raise ReportError(f"its report has no line for {name}")
        report[name] = int(found[1]) if name in _WHOLE else float(found[1])
    histogram = parse_histogram(text)
    if sum(count for _, count in histogram) == 0:
        raise ReportError("its report has no latency histogram")
    for percent in (50, 95, 99):
        report[f"p{percent}_ms"] = percentile(histogram, percent)
    report["fatal"] = [line for line in text.splitlines()
                       if line.startswith(("FATAL", "ALERT"))]
    return report


def parse_histogram(text):
    """The histogram's (upper value in ms, count) pairs, in order."""
    return [(float(value), int(count)) for value, count in
            re.findall(r"^\s*([\d.]+) \|\**\s+(\d+)$", text, re.MULTILINE)]


def percentile(histogram, percent):
    """The smallest value that at least `percent` of the counted events do not exceed."""
    wanted = max(1, math.ceil(sum(count for _, count in histogram) * percent / 100))
    seen = 0
    for value, count in histogram:
        seen += count
        if seen >= wanted:
            return value
    raise ValueError("an empty histogram has no percentiles")
