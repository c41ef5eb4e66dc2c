"""Runs a suite, plain or preloaded, and says what became of each test.

     run() ── pipe ◀── one_by_one.py: the suite's tests, one after the other, in one process
       │                    │
       └── ringroad ss ◀────┘ (before it ends: how many of its streams were promoted)

A test that hangs or ends its process is `died`; a new process goes on after it.
"""

import os
import select
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from integration.lib import processes

ONE_BY_ONE = Path(__file__).parent / "one_by_one.py"
# Longer than any test takes; one that takes longer hangs.
TEST_LIMIT_S = 60
# When it has not even said that the test hung.
SILENCE_S = TEST_LIMIT_S + 15


@dataclass
class Outcome:
    results: dict = field(default_factory=dict)  # id: ok, fail, error, skip, xfail, xpass, died
    seconds: dict = field(default_factory=dict)  # id: how long it took
    promoted: int = 0
    opened: int = 0
    last_words: dict = field(default_factory=dict)  # id that died: how it ended, the log's end

    def add(self, test, result, seconds):
        """An id may come more than once (a suite runs it in several forms): then with a number."""
        name, number = test, 1
        while name in self.results:
            number += 1
            name = f"{test}#{number}"
        self.results[name] = result
        self.seconds[name] = seconds

    def failing(self):
        return {test: result for test, result in self.results.items()
                if result not in ("ok", "skip", "xfail")}


def run(suite, directory, preload=None, report=None, tell=print):
    """Runs the suite in `directory`, with `preload` added to its environment. `report(pid)`: what
    `ringroad ss` says about a process."""
    outcome = Outcome()
    done = dict(suite.without)
    turn = 0
    while True:
        turn += 1
        last = _run_once(suite, directory, turn, done, outcome, preload, report, tell)
        if last is None:
            return outcome
        done[last] = "died"


def _run_once(suite, directory, turn, done, outcome, preload, report, tell):
    """None when all that was left has been run; else the id of the test that ended the process."""
    without = directory / f"without-{turn}"
    without.write_text("".join(f"{test}\n" for test in done))
    come_read, come_write = os.pipe()
    go_read, go_write = os.pipe()
    command = ["/usr/bin/python3", "-X", "faulthandler", ONE_BY_ONE, "--to", come_write,
               "--go", go_read, "--limit", TEST_LIMIT_S, "--without", without,
               *(f"--resource={name}" for name in suite.resources),
               *(["--tcp-pairs"] if suite.tcp_pairs else []), *suite.names]
    work = directory / f"work-{turn}"
    work.mkdir()
    with open(directory / f"log-{turn}", "wb") as log:
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=work, pass_fds=(come_write, go_read), start_new_session=True,
            env={**os.environ, "HOME": str(work), "TMPDIR": str(work), **(preload or {})})
    os.close(come_write)
    os.close(go_read)
    try:
        now = None
        for line in _lines(come_read, outcome, tell):
            word, _, test = line.partition(" ")
            if word == "run":
                now, began = test, time.monotonic()
            elif word == "end":
                if report:
                    said = report(child.pid) or {}
                    outcome.promoted += said.get("streams_promoted", 0)
                    outcome.opened += said.get("streams_opened", 0)
                return None
            else:
                outcome.add(test, word, time.monotonic() - began if test == now else 0)
                done[test] = word
                if test == now:
                    now = None
        if now is None:
            raise processes.ProcessError(f"{suite.name} ended between two tests, see {log.name}"
                                         f"{processes.tail(Path(log.name))}")
        outcome.add(now, "died", time.monotonic() - began)
        try:
            ended = f"status {child.wait(10)}"
        except subprocess.TimeoutExpired:
            ended = "still there"
        outcome.last_words[now] = f"{ended}{processes.tail(Path(log.name))}"
        return now
    finally:
        os.close(come_read)
        os.close(go_write)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _lines(pipe, outcome, tell):
    """What comes from the pipe, until its end or until nothing comes any more."""
    rest = b""
    shown = time.monotonic()
    while select.select([pipe], [], [], SILENCE_S)[0]:
        data = os.read(pipe, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in lines)
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            tell(f"  {len(outcome.results)} tests so far")
