"""The sources build on Debian 13, with its gcc and glibc, and the differential tests pass there."""

import os
from pathlib import Path

import pytest

from lib import roots
from musthold import support

from . import builds

pytestmark = pytest.mark.releases
RELEASE = "trixie"
BUILD = support.ROOT / "build" / RELEASE
TARGETS = ("ringroad", "ringroad-verbs", "ringroad_cli", "preload_test")
# What depends on libc. How much is on TCP before a channel, of which the other half is, does not.
# glibc 2.41 lets a cancelled send() return with what it has sent. The library ends the thread, as older
# ones do.
FILTER = ("Scenarios/*_from_the_first_byte:StartTest.*:Programs/*:ExportsTest.*:SurfaceTest.*"
          "-*cancelled_while_it_waits_for_room*")
TESTS_S = 400
SHARDS = 2 * (os.cpu_count() or 1)  # a scenario waits more than it computes


def place():
    """With this user's compiler cache, which is another folder in the root."""
    folder = Path(os.environ.get("CCACHE_DIR") or Path.home() / ".cache" / "ccache")
    folder.mkdir(parents=True, exist_ok=True)
    variables = {name: os.environ[name] for name in ("CCACHE_NOHASHDIR", "CCACHE_SLOPPINESS")
                 if name in os.environ}
    return roots.Place(RELEASE, (folder,)), {"CCACHE_DIR": str(folder), **variables}


@pytest.fixture(name="built", scope="module")
def fixture_built(root):
    root(RELEASE)
    where, environment = place()
    builds.build(BUILD, TARGETS, command=lambda words: where.command(words, environment))
    return BUILD


def test_scenarios_are_the_kernels_where_they_were_built(built, tmp_path):
    where, _ = place()
    builds.run_in_shards(
        [where.command([built / "bin" / "preload_test", "--gtest_brief=1", f"--gtest_filter={FILTER}"],
                       {"GTEST_TOTAL_SHARDS": SHARDS, "GTEST_SHARD_INDEX": index})
         for index in range(SHARDS)], tmp_path, TESTS_S)
