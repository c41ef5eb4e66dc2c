"""Builds from source for another release, not optimised: the compiler takes a third of the time."""

import os
import subprocess

from integration.acceptance import support
from integration.lib import locks, processes

BUILD_S = 900


def build(folder, targets, options=(), command=lambda words: words):
    """Builds `targets` in `folder`; `command` makes a command line of words, such as one inside a root."""
    configure = ["cmake", "-S", support.ROOT, "-B", folder, "-G", "Ninja", "--log-level=WARNING",
                 "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                 "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -DNDEBUG", "-DCMAKE_C_COMPILER_LAUNCHER=ccache",
                 "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", *options]
    make = ["cmake", "--build", folder, "--parallel", os.cpu_count(), "--target", *targets]
    with locks.held(folder.parent / f".{folder.name}.lock"):
        for words in (configure, make):
            done = subprocess.run(list(map(str, command(words))), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                                  check=False, timeout=processes.patient(BUILD_S))
            assert done.returncode == 0, done.stdout[-20000:]


def run_in_shards(commands, directory, limit_s):
    """Runs test programs of GoogleTest at once; each says that its tests have passed."""
    shards = []
    try:
        for index, command in enumerate(commands):
            shards.append(processes.Child(list(map(str, command)), directory / str(index)))
        for shard in shards:
            status = shard.finish(processes.patient(limit_s))
            said = shard.log.read_text(errors="replace")
            assert status == 0 and "[  PASSED  ]" in said, said[-20000:]
    finally:
        for shard in shards:
            shard.abandon()
