"""The sources build on Debian 13, with its gcc and glibc, and the differential tests pass there.

Nothing is optimised: the compiler takes a third of the time, and warnings are errors as ever.
"""

import os
import subprocess
from pathlib import Path

import pytest

from lib import processes, roots
from musthold import support

pytestmark = pytest.mark.releases
RELEASE = "trixie"
BUILD = support.ROOT / "build" / RELEASE
TARGETS = ("ringroad", "ringroad-verbs", "ringroad_cli", "preload_test")
CONFIGURE = ["cmake", "-S", support.ROOT, "-B", BUILD, "-G", "Ninja", "--log-level=WARNING",
             "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -DNDEBUG",
             "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
# What depends on libc. How much is on TCP before a channel, of which the other half is, does not.
# glibc 2.41 lets a cancelled send() return with what it has sent. The library ends the thread, as older
# ones do.
FILTER = ("Scenarios/*_from_the_first_byte:StartTest.*:Programs/*:ExportsTest.*:SurfaceTest.*"
          "-*cancelled_while_it_waits_for_room*")
BUILD_S = 900
TESTS_S = 400
SHARDS = 2 * (os.cpu_count() or 1)  # a scenario waits more than it computes


def place():
    """With this user's compiler cache, which is another folder in the root."""
    folder = Path(os.environ.get("CCACHE_DIR") or Path.home() / ".cache" / "ccache")
    folder.mkdir(parents=True, exist_ok=True)
    return roots.Place(RELEASE, (folder,)), {"CCACHE_DIR": str(folder), "CCACHE_NOHASHDIR": "1"}


@pytest.fixture(name="built", scope="module")
def fixture_built(root):
    root(RELEASE)
    where, environment = place()
    for words in (CONFIGURE, ["cmake", "--build", BUILD, "--parallel", os.cpu_count(), "--target",
                              *TARGETS]):
        done = subprocess.run(where.command(words, environment), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                              check=False, timeout=processes.patient(BUILD_S))
        assert done.returncode == 0, done.stdout[-20000:]
    return BUILD


def test_scenarios_are_the_kernels_where_they_were_built(built, tmp_path):
    where, _ = place()
    shards = []
    try:
        for index in range(SHARDS):
            shards.append(processes.Child(where.command(
                [built / "bin" / "preload_test", "--gtest_brief=1", f"--gtest_filter={FILTER}"],
                {"GTEST_TOTAL_SHARDS": SHARDS, "GTEST_SHARD_INDEX": index}), tmp_path / str(index)))
        for shard in shards:
            status = shard.finish(processes.patient(TESTS_S))
            said = shard.log.read_text(errors="replace")
            assert status == 0 and "[  PASSED  ]" in said, said[-20000:]
    finally:
        for shard in shards:
            shard.abandon()
