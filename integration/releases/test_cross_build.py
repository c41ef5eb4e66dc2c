"""The library builds for aarch64; what is not a TCP connection is tried there, in an emulator of its programs.

The tool, which takes as long to compile as all of this, is built there by hand: packaging/toolchains.
"""

import os
import shutil
import subprocess

import pytest

from musthold import support

from . import builds

pytestmark = pytest.mark.releases
ROOT = "bookworm-arm64"
BUILD = support.ROOT / "build" / "aarch64"
PRODUCTS = ("ringroad", "ringroad-verbs", "ringroad_net_load")
TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64-static")
TESTS_S = 400
# qemu-user does not know TCP_INFO: streams stay on TCP there. Slow ones say the same on each processor.
CORE = ("-Stream*:SharedStream*:ForgedStream*:AgentTest*:TcpCounters*:ProofOfSwitch*:All/WrongProofOfSwitch*:"
        "Boundary*:Closed*:FullRing*:ChannelBudgetTest*:Control*:EarlyUse*:EpollSet*:OutsideTest*:Stats.*:"
        "ShmTransportHostile*:ShmPacket*:Faults*:*InAMillionMessages*:SecurityDocs*")


@pytest.fixture(name="emulated", scope="module")
def fixture_emulated(root):
    """Builds all, and gives a function that makes a command of a program and its words."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        pytest.skip(f"not installed: {' '.join(missing)}")
    sysroot = root(ROOT)
    builds.build(BUILD, [*PRODUCTS, "core_test"],
                 [f"-DCMAKE_TOOLCHAIN_FILE={support.ROOT}/packaging/toolchains/aarch64.cmake",
                  f"-DCMAKE_SYSROOT={sysroot}"])
    return lambda program, *words: [TOOLS[1], "-L", sysroot, *words, BUILD / program]


def test_an_old_glibc_is_enough_on_aarch64(emulated):
    # Not optimised, rdma-core's header asks for a newer function of its own: libringroad-verbs.so is left out.
    done = subprocess.run(["ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error", "-R",
                           "^floor[.](ringroad|ringroad_net_load)$"], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=support.ANSWER_S)
    assert done.returncode == 0 and "out of 2" in done.stdout, done.stdout + done.stderr


def test_a_program_starts_with_the_library_on_aarch64(emulated):
    plain, preloaded = (
        subprocess.run([*map(str, emulated("bin/core_test", *words)), "--gtest_list_tests"], capture_output=True,
                       text=True, check=False, stdin=subprocess.DEVNULL, timeout=support.ANSWER_S)
        for words in ((), ("-E", f"LD_PRELOAD={BUILD}/lib/libringroad.so")))
    assert (plain.returncode, plain.stderr) == (0, "") and plain.stdout
    assert (preloaded.returncode, preloaded.stdout, preloaded.stderr) == (0, plain.stdout, "")


def test_unit_tests_pass_on_aarch64(emulated, tmp_path):
    shards = os.cpu_count() or 1
    builds.run_in_shards(
        [["env", f"GTEST_TOTAL_SHARDS={shards}", f"GTEST_SHARD_INDEX={index}", *emulated("bin/core_test"),
          "--gtest_brief=1", f"--gtest_filter={CORE}"] for index in range(shards)], tmp_path, TESTS_S)
