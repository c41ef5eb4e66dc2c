"""The sources build on Debian 13, with its gcc and glibc, and the differential tests pass there."""

import os

import pytest

from . import builds, source

pytestmark = pytest.mark.releases
# What depends on libc. How much is on TCP before a channel, of which the other half is, does not.
FILTER = "Scenarios/*_from_the_first_byte:StartTest.*:Programs/*:ExportsTest.*:SurfaceTest.*"
TESTS_S = 400
SHARDS = 2 * (os.cpu_count() or 1)  # a scenario waits more than it computes


def test_scenarios_are_the_kernels_where_they_were_built(root, tmp_path):
    root(source.RELEASE)
    source.build()
    where, _ = source.place()
    builds.run_in_shards(
        [where.command([source.BUILD / "bin" / "preload_test", "--gtest_brief=1", f"--gtest_filter={FILTER}"],
                       {"GTEST_TOTAL_SHARDS": SHARDS, "GTEST_SHARD_INDEX": index})
         for index in range(SHARDS)], tmp_path, TESTS_S)
