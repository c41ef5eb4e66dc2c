"""The build for aarch64, by a cross-compiler, and its programs in an emulated processor."""

import shutil

from integration.acceptance import support
from integration.lib import roots

from . import builds

ROOT = "bookworm-arm64"
BUILD = support.ROOT / "build" / "aarch64"
# Not the tool: the compiler would take minutes more.
TARGETS = ("ringroad", "ringroad-verbs", "core_test", "policy_test")
TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64")


def missing():
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def build():
    """Unless it is done already."""
    builds.build(BUILD, TARGETS, [
        "-DCMAKE_TOOLCHAIN_FILE=packaging/toolchains/aarch64.cmake",
        f"-DCMAKE_SYSROOT={roots.directory() / ROOT}", "-DRINGROAD_PRECOMPILE=ON",
        # The emulator takes longer than a build waits for the names of tests.
        "-DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST"])


def command(program, *words):
    return ["qemu-aarch64", "-L", roots.directory() / ROOT, BUILD / "bin" / program, *words]
