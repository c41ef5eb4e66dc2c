"""Tests the verbs channel over Soft-RoCE, and holds what a message takes against raw verbs.

    this machine                  virtual machines, one after the other
  ┌──────────────┐   ┌──────────────────────────────────────────────────────────┐
  │ build/bin/   │──▶│ 1  verbs_channel_test        rxe0 ══ veth ══ rxe1        │
  │ verbs_*,     │   │    verbs_pingpong and ib_write_lat in turns              │
  │ preload_test │   │    scenarios.txt: what programs see, plain and preloaded │
  │              │   │    system calls of a promotion that fail                 │
  │              │   │    the end of a process, over a link that loses packets  │
  │              │──▶│ 2  the peer's host vanishes                              │
  │              │──▶│ 3  the device is removed                                 │
  └──────────────┘   └──────────────────────────────────────────────────────────┘

Each test stands for one part that ran in there; what is not chosen does not run. RINGROAD_TEST_ROUNDS
are the rounds of the comparison.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from integration.acceptance import support

HERE = Path(__file__).parent
RUN = support.ROOT / "integration" / "softroce" / "run"
PROGRAMS = support.BUILD / "bin"
PART_S = 400
ROUNDS = os.environ.get("RINGROAD_TEST_ROUNDS", "5")
pytestmark = pytest.mark.softroce
SCENARIOS = [line for line in (HERE / "scenarios.txt").read_text().splitlines()
             if line and not line.startswith("#")]


def differential(name):
    return f"Scenarios/DifferentialTest.*/{name}_from_the_first_byte"


def over_rdma(wait, *words):
    return ["env", "RINGROAD_TEST_VIA=rdma", 'RINGROAD_TEST_SUBNET="10.9.0.0/16"',
            f"RINGROAD_TEST_WAIT={wait}", *words, PROGRAMS / "preload_test"]


# The command line of each part of the first machine, in this order.
PARTS = {
    "channel": [PROGRAMS / "verbs_channel_test", "--gtest_filter=-VerbsLinkTest.*"],
    "against_write_lat": ["/usr/bin/python3", "-m", "integration.verbs.against_write_lat", PROGRAMS / "verbs_pingpong",
                          ROUNDS],
    "scenarios": [*over_rdma("8s"), f"--gtest_filter={':'.join(map(differential, SCENARIOS))}"],
    "faults": [*over_rdma("4s", "RINGROAD_TEST_EVERY=6"), "--gtest_filter=*PromotionFaultsTest.*/fail"],
    "lossy": [*over_rdma("8s"), "--gtest_repeat=8",
              f"--gtest_filter={differential('close_and_exit_right_after_a_send')}"],
}
# What comes before a part.
BEFORE = {"lossy": 'for link in $(ls /sys/class/net); do'
                   ' [ "$link" = lo ] || tc qdisc add dev "$link" root netem delay 5ms loss 3%; done'}


def script(parts):
    """Runs the parts, whatever becomes of those before; their outputs and statuses are in $OUT."""
    lines = ["export RINGROAD_TEST_ADDRESS=$RINGROAD_SERVER_ADDR"]
    for part in parts:
        lines += [BEFORE.get(part, ""),
                  f'timeout {PART_S} {shlex.join(map(str, PARTS[part]))} >"$OUT/{part}.log" 2>&1',
                  f'echo $? >"$OUT/{part}.status"']
    return "\n".join(lines)


def in_machine(command, limit_s, out, *options):
    """(status, output) of a command in a machine of its own."""
    done = subprocess.run([RUN, "--timeout", str(limit_s), "--out", out, *options, "--",
                           *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False, cwd=support.ROOT,
                          env=support.machine_environment())
    return done.returncode, done.stdout


def from_the_failure(said):
    """What a program said, from where it tells what is wrong; all of it is in the test's output."""
    print(said)
    first = re.search(r"^.*(: Failure$|more than \d+% above|not counted|timed out)", said, re.MULTILINE)
    return said[first.start():] if first else said


@pytest.fixture(name="part", scope="module")
def fixture_part(request, tmp_path_factory):
    """What a part of the first machine said, once it is known to have passed."""
    named = [part for item in request.session.items if item.module is request.module
             for part in PARTS if item.name == f"test_{part}"]
    out = tmp_path_factory.mktemp("verbs") / "out"
    _, console = in_machine(["bash", "-c", script(sorted(named, key=list(PARTS).index))],
                            PART_S * (len(named) + 1), out)

    def passed(part):
        log, status = out / f"{part}.log", out / f"{part}.status"
        said = log.read_text(errors="replace") if log.exists() else ""
        assert status.exists(), f"the machine ended before the part did:\n{console}\n{said}"
        ended = status.read_text().strip()
        assert ended == "0", f"status {ended}: {from_the_failure(said)}"
        return said
    return passed


def test_channel(part):
    part("channel")


def test_against_write_lat(part):
    """A message takes no more than one of ib_write_lat: the program says of what."""
    part("against_write_lat")


def test_scenarios(part):
    # A name that is no longer one of a scenario would go unnoticed.
    assert re.search(rf"PASSED.* {len(SCENARIOS)} tests", part("scenarios"))


def test_faults(part):
    """Every sixth system call of a promotion fails once."""
    part("faults")


def test_lossy(part):
    """What was sent and closed before the process ended arrives over a link that loses packets."""
    part("lossy")


@pytest.mark.parametrize("name", ["AnUnreachablePeerIsGivenUpWithinSecondsAndItsBytesAreKept",
                                  "ADeviceThatIsRemovedEndsItsChannels"])
def test_failures(name, tmp_path):
    status, said = in_machine([PROGRAMS / "verbs_channel_test", f"--gtest_filter=VerbsLinkTest.{name}"],
                              PART_S, tmp_path / "out", "--env", "RINGROAD_BREAK_LINK=1")
    assert status == 0, f"status {status}: {from_the_failure(said)}"
