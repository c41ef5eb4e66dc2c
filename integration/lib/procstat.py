"""What a process has cost: processor time and context switches, from /proc.

Processor time is /proc/PID/stat's, which counts threads that have ended; its unit there is the
clock tick (10 ms). Context switches are summed over the threads that exist; a server's connection
threads stay in its thread cache, so they are still there after the load.
"""

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Seconds of processor time, and context switches by thread id."""

    cpu_s: float
    switches: dict

    def since(self, earlier):
        """(processor seconds, context switches) between `earlier` and this."""
        switches = sum(count - earlier.switches.get(thread, 0)
                       for thread, count in self.switches.items())
        return self.cpu_s - earlier.cpu_s, switches


def read(pid, proc="/proc"):
    """The usage of `pid` until now. Raises OSError when there is no such process."""
    root = Path(proc) / str(pid)
    # The command name may hold spaces and brackets: the fields begin after its last bracket.
    fields = (root / "stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    switches = {}
    for thread in sorted((root / "task").iterdir()):
        try:
            switches[int(thread.name)] = _switches((thread / "status").read_text())
        except OSError:
            continue  # the thread ended while the list was read
    return Usage((user + system) / TICKS_PER_S, switches)


def of_rusage(usage, since):
    """The same pair as Usage.since, for a collected process's rusage and an earlier Usage."""
    return (usage.ru_utime + usage.ru_stime - since.cpu_s,
            usage.ru_nvcsw + usage.ru_nivcsw - sum(since.switches.values()))


def _switches(status):
    return sum(int(line.split()[1]) for line in status.splitlines()
               if line.startswith(("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")))


def machine_busy_s(proc="/proc"):
    """Seconds that all processors of this machine have been at work since it started."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = (
        int(field) for field in (Path(proc) / "stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / TICKS_PER_S
