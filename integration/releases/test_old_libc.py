"""The build of this machine with an old libc: its unit and differential tests in Debian 11.

They are linked as the products are (packaging/glibc-floor), so that they start there.
"""

import os
import subprocess

import pytest

from integration.acceptance import support
from integration.lib import processes, roots

from . import builds

pytestmark = pytest.mark.releases
RELEASE = "bullseye"
# How much is on TCP before a channel, of which the other half is, does not depend on libc. In two, glibc unwinds by its
# libgcc_s through frames that know the one in the program: these end plain, too.
FILTER = ("Scenarios/*_from_the_first_byte"
          "-*a_cleanup_handler_talks_on_and_closes*:*a_handler_ends_its_thread_at_any_moment*")
# In a chroot nobody gets a namespace of users.
UNIT = {"core_test": "-ShmPacket.TheUserNobodyIsOneUserOnlyWhereAllUsersHaveNames", "policy_test": "*",
        "cli_test": "*", "doctor_test": "*"}
TESTS_S = 400
SHARDS = 2 * (os.cpu_count() or 1)


def run(program, tests, directory):
    where = roots.Place(RELEASE, (support.BUILD,))
    builds.run_in_shards(
        [where.command([support.BUILD / "bin" / program, "--gtest_brief=1", f"--gtest_filter={tests}"],
                       {"GTEST_TOTAL_SHARDS": SHARDS, "GTEST_SHARD_INDEX": index})
         for index in range(SHARDS)], directory, TESTS_S)


def test_scenarios_are_the_kernels_with_an_old_libc(root, tmp_path):
    root(RELEASE)
    run("differential_floor", FILTER, tmp_path)


def test_an_allocator_that_opens_a_file_with_its_lock_held_does_not_wait_for_itself(root, tmp_path):
    """There dlsym() allocates memory."""
    root(RELEASE)
    host = support.Host(tmp_path)
    where = roots.Place(RELEASE, (support.BUILD, tmp_path))
    command = where.command([support.BUILD / "bin" / "allocating_program"],
                            host.preload(host.policy("any", ["1-65535"])))
    done = subprocess.run(list(map(str, command)), capture_output=True, check=False,
                          timeout=processes.patient(support.ANSWER_S))
    assert (done.returncode, done.stdout) == (0, b"began\n"), done.stderr


@pytest.mark.parametrize("program", UNIT)
def test_units_are_the_same_with_an_old_libc(root, tmp_path, program):
    root(RELEASE)
    run(program, UNIT[program], tmp_path)
