"""The libraries for aarch64 need no newer libraries than those for x86-64, and their parts do the same.

They are cross-built, and the tests are run by an emulated processor on this machine's kernel.
"""

import fnmatch
import os
import subprocess
from pathlib import Path

import pytest

from integration.acceptance import support
from integration.lib import processes

from . import arm, builds

pytestmark = [pytest.mark.releases, pytest.mark.skipif(bool(arm.missing()),
                                                       reason=f"not installed: {' '.join(arm.missing())}")]
LEFT_OUT = [line for line in (Path(__file__).parent / "left_out_aarch64.txt").read_text().splitlines()
            if line and not line.startswith("#")]
PROGRAMS = ("core_test", "policy_test")
TESTS_S = 300
SHARDS = 2 * (os.cpu_count() or 1)


@pytest.fixture(name="built", scope="module")
def fixture_built(root):
    root(arm.ROOT)
    arm.build()
    return arm.BUILD


def test_the_libraries_need_no_more_than_the_floor(built):
    done = subprocess.run(["ctest", "--test-dir", built, "--no-tests=error", "--output-on-failure", "-R",
                           r"^floor\.(ringroad|ringroad-verbs)$"],
                          capture_output=True, text=True, check=False,
                          timeout=processes.patient(support.ANSWER_S))
    assert done.returncode == 0 and "tests passed, 0 tests failed out of 2" in done.stdout, done.stdout


def names_of_tests(program):
    """suite.test, as GoogleTest lists them: a suite's name and then its tests, further right."""
    listed = subprocess.run([str(word) for word in arm.command(program, "--gtest_list_tests")], check=True,
                            capture_output=True, text=True, timeout=processes.patient(TESTS_S)).stdout
    suite, names = "", set()
    for line in listed.splitlines():
        words = line.partition("#")[0].split()
        if not line.startswith(" "):
            suite = words[0] if words and words[0].endswith(".") else ""
        elif suite and words:
            names.add(suite + words[0])
    return names


def test_what_is_left_out_is_there(built):
    assert built
    names = set().union(*map(names_of_tests, PROGRAMS))
    assert names and [pattern for pattern in LEFT_OUT
                      if not any(fnmatch.fnmatchcase(name, pattern) for name in names)] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_units_are_the_same_on_aarch64(built, tmp_path, program):
    assert built
    builds.run_in_shards([["env", f"GTEST_TOTAL_SHARDS={SHARDS}", f"GTEST_SHARD_INDEX={index}",
                           *arm.command(program, "--gtest_brief=1", f"--gtest_filter=-{':'.join(LEFT_OUT)}")]
                          for index in range(SHARDS)], tmp_path, TESTS_S)
