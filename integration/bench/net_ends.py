"""The ends of `ringroad bench net`, each made by the agent of its host: net_load's server and
client, with what Ringroad says of the latter."""

import json
import os
import shutil
import time
from pathlib import Path

from integration.bench import probe
from integration.lib import processes, procstat, ringroad

PROGRAM = "ringroad-net-load"
START_S = 20
# A bench's connections wait for their promotion in connect and accept.
CONNECT_S = 60


def program(command):
    """The load that came with this `ringroad`; "" without one."""
    folder = Path(os.path.realpath(shutil.which(command) or command)).parent
    for path in (folder / PROGRAM, folder.parent / "libexec" / "ringroad" / PROGRAM):
        if os.access(path, os.X_OK):
            return str(path)
    return ""


def facts(role, address):
    return probe.facts(role, address)


def on_half_of_it(role):
    """The words that start a program on this role's half of the host's processors; ProcessError
    where there is but one."""
    numbers = sorted(os.sched_getaffinity(0))
    middle = len(numbers) // 2
    if middle == 0:
        raise processes.ProcessError("--apart: there is one processor for two ends")
    own = numbers[:middle] if role == "server" else numbers[middle:]
    return ["taskset", "--cpu-list", ",".join(map(str, own))]


def busy():
    """Seconds that the processors have been at work, and that they could have been."""
    return {"busy_s": procstat.machine_busy_s(), "processors_s": time.monotonic() * os.cpu_count()}


class Server:
    """`command` are its words, and it listens once it has said `listens`. `patient`: it is asked to
    end and waited for, else killed."""

    def __init__(self, command, listens, environment, log, patient):
        self._patient, self._listens = patient, listens
        self._child = processes.Child(command, log, environment)

    def wait_until_it_listens(self):
        processes.wait_until(lambda: self._listens in self._child.log.read_text(errors="replace"),
                             START_S, f"{self._child.name} to listen", self._child)

    def evidence(self):
        """What became of it: how it ended or where it hangs, and its last words."""
        doing = (f"it ended with status {self._child.collect()}" if self._child.ends_within(0)
                 else processes.doing(self._child.pid))
        return doing + processes.tail(self._child.log, 6)

    def close(self):
        if self._patient:
            self._child.stop()
        else:
            self._child.abandon()


class Client:
    def __init__(self, load, address, connections, environment, log, command):
        self._child = processes.Talker([*load, "ask", address, connections], log, environment)
        self._tool = ringroad.Ringroad(command=command) if command else None
        self._answers = False

    def wait_until_connected(self):
        said = self._child.line(CONNECT_S)
        self._answers = True
        if said != "connected":
            raise processes.ProcessError(f"the load's client said {said}")

    def perform(self, run, limit_s):
        """What net_load says of a run such as "pingpong block 64 1000"."""
        self._child.tell(run)
        self._answers = False
        told = json.loads(self._child.line(limit_s))
        self._answers = True
        return told

    def carried(self):
        """What Ringroad says of the client; None when it does not know it."""
        snapshot = self._tool.snapshot() if self._tool else ringroad.Snapshot.empty()
        if not snapshot.knows(self._child.pid):
            return None
        return {"streams": snapshot.streams(self._child.pid),
                "bytes": snapshot.totals(self._child.pid)}

    def close(self):
        if self._answers:
            self._child.end()
        else:
            self._child.abandon()
