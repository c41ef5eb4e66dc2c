"""The libraries for aarch64 need no newer libraries than those for x86-64, and their parts do the same.

They are cross-built, and the tests are run by an emulated processor on this machine's kernel.
"""

import os
import subprocess

import pytest

from lib import processes
from musthold import support

from . import arm, builds

pytestmark = [pytest.mark.releases, pytest.mark.skipif(bool(arm.missing()),
                                                       reason=f"not installed: {' '.join(arm.missing())}")]
# What the emulator of Debian 12 cannot do.
CANNOT = [
    # TCP_INFO: no stream leaves TCP. MADV_POPULATE_WRITE: it says that all is there, and then a full file
    # system ends the process.
    "AgentTest.*:Boundary.*:ChannelBudgetTest.*:Closed.*:EarlyUse.*:Ends/*:EpollSet.*:Faults/*:"
    "ForgedStream.*:FullRing.*:*ProofOfSwitch.*:SharedStream.*:Stats.A*:Stats.EachCall*:Stream*",
    "TcpCounters.*",
    # The kernel gets twice the room for control messages, and so gives descriptors that nobody sees.
    "Control.TakesNoDescriptors:ShmTransportHostile.*Hellos*",
    # Programs of another processor are not executed.
    "OutsideTest.*",
    # A namespace of users for a child.
    "ShmPacket.TheUserNobody*"]
# They take an emulated processor minutes, or judge by its speed.
LONG = "Allocation.*:Coverage.*:Fuzz.*:Oracle.*:SpinTest.*:StatsFiles.NothingIsMade*:*InAMillionMessages*"
TESTS = {"core_test": f"-{':'.join(CANNOT)}:{LONG}", "policy_test": f"-{LONG}"}
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


@pytest.mark.parametrize("program", TESTS)
def test_units_are_the_same_on_aarch64(built, tmp_path, program):
    assert built
    builds.run_in_shards([["env", f"GTEST_TOTAL_SHARDS={SHARDS}", f"GTEST_SHARD_INDEX={index}",
                           *arm.command(program, "--gtest_brief=1", f"--gtest_filter={TESTS[program]}")]
                          for index in range(SHARDS)], tmp_path, TESTS_S)
