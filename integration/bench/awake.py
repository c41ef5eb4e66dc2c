"""Keeps a host's processors from halting, for benches where their waking is most of what is measured.

While /dev/cpu_dma_latency is open, no processor goes to sleep more deeply than the number of
microseconds that was written to it (Linux, Documentation/admin-guide/pm/cpuidle.rst, "Power
Management Quality of Service for CPUs"). With 0 an idle processor polls, in a virtual machine, too.
"""

import os

PATH = "/dev/cpu_dma_latency"


class Awake:
    """Open as long as this is not closed and its process lives; OSError when that is not to be had."""

    def __init__(self, path=PATH):
        self._file = os.open(path, os.O_WRONLY)
        os.write(self._file, bytes(4))

    def close(self):
        os.close(self._file)
