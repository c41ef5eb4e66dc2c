"""Programs of an old libc see the kernel through the build of this machine: the differential tests in Debian 11.

The scenarios and their runner are linked as the products are (packaging/glibc-floor), so that they start there.
"""

import os

import pytest

from lib import roots
from musthold import support

from . import builds

pytestmark = pytest.mark.releases
RELEASE = "bullseye"
# How much is on TCP before a channel, of which the other half is, does not depend on libc. In two, glibc unwinds by its
# libgcc_s through frames that know the one in the program: these end plain, too.
FILTER = ("Scenarios/*_from_the_first_byte"
          "-*a_cleanup_handler_talks_on_and_closes*:*a_handler_ends_its_thread_at_any_moment*")
TESTS_S = 400
SHARDS = 2 * (os.cpu_count() or 1)


def test_scenarios_are_the_kernels_with_an_old_libc(root, tmp_path):
    root(RELEASE)
    where = roots.Place(RELEASE, (support.BUILD,))
    builds.run_in_shards(
        [where.command([support.BUILD / "bin" / "differential_floor", "--gtest_brief=1",
                        f"--gtest_filter={FILTER}"],
                       {"GTEST_TOTAL_SHARDS": SHARDS, "GTEST_SHARD_INDEX": index})
         for index in range(SHARDS)], tmp_path, TESTS_S)
