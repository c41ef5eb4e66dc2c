"""Holds sysbench's threads between their connections and sysbench's clock (see gated.lua).

                 set-up and warm-up                    │ the measured window
      connect ── light statements ── gate closed ──────┼─ gate opened ── sysbench's workload ── end
                          ▲               ▲            │
             until the streams are     counters are read while nothing moves
             where they are wanted

sysbench has no warm-up time that its figures leave out, and a stream is promoted in the background
only once it is in use. A phase over TCP has the same gate and the same warm-up.
"""

import os
import re
from pathlib import Path

from integration.lib import processes

SCRIPT = Path(__file__).parent / "gated.lua"
# sysbench itself gives its threads 30 s, connecting included.
LIMIT_S = 12
_CONNECTED = re.compile(r"^gate: connected$", re.MULTILINE)
_STATEMENTS = re.compile(r"^gate: (\d+) statements$", re.MULTILINE)


class Gate:
    """A gate for one run of sysbench; a context that removes its directory `work`/gate."""

    def __init__(self, work, workload, threads):
        self.directory = Path(work) / "gate"
        self.environment = {"OLTP_GATE": str(self.directory), "OLTP_WORKLOAD": workload}
        self._threads = threads
        self._release = self.directory / "open"
        self._close = self.directory / "close"
        self._opened = None

    def __enter__(self):
        self.directory.mkdir()
        os.mkfifo(self._release)
        return self

    def __exit__(self, *_):
        if self._opened is not None:
            os.close(self._opened)
        self._close.unlink(missing_ok=True)
        self._release.unlink()
        self.directory.rmdir()

    def wait_for_connections(self, child):
        """Returns when all threads of `child` (processes.Child) have connected."""
        processes.wait_until(
            lambda: len(_CONNECTED.findall(self._said(child))) >= self._threads,
            LIMIT_S, "sysbench's threads to connect", child)

    def close(self, child):
        """Ends the warm-up; returns when no thread has a statement under way any more, with the
        number of statements that all of them had."""
        self._close.touch()
        processes.wait_until(
            lambda: len(_STATEMENTS.findall(self._said(child))) >= self._threads,
            LIMIT_S, "sysbench's threads to wait at the gate", child)
        return sum(map(int, _STATEMENTS.findall(self._said(child))))

    def open(self):
        """Lets the threads go on: sysbench's clock starts."""
        # Opened for both ways, as that does not wait; it stays open for threads that come late.
        self._opened = os.open(self._release, os.O_RDWR | os.O_CLOEXEC)

    @staticmethod
    def _said(child):
        return child.log.read_text(errors="replace")
