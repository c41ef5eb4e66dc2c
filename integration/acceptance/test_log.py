"""The log: where it goes by the environment and by the policy, one line a decision, and never too many.

     asker ══ 127.0.0.1 ══ echo server        talker.py, both preloaded
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import support
from .test_live_switch import Pair, set_mode

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ringroad python3\.\d+\[(\d+)\] "
                  r"(debug|info|warning|error): \S.*")


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


def policy(host, **limits):
    return host.policy("logged", ["1-65535"], promote_after="{ messages = 2 }",
                       limits={key: f'"{word}"' for key, word in limits.items()})


def preload(host, path, **environment):
    """As Host.preload(), with these RINGROAD_LOG* only."""
    result = {name: value for name, value in host.preload(path).items()
              if not name.startswith("RINGROAD_LOG")}
    return result | {f"RINGROAD_{name}": str(value) for name, value in environment.items()}


def lines_of(path, pid=None):
    text = path.read_text() if path.exists() else ""
    assert text == "" or text.endswith("\n")
    for line in text.splitlines():
        assert LINE.fullmatch(line), line
    return [line for line in text.splitlines() if pid is None or f"[{pid}]" in line]


def wait_for_line(path, pid, words):
    support.wait_for(lambda: any(words in line for line in lines_of(path, pid)),
                     f"a line with {words!r} of {pid}")


def test_each_decision_is_one_line_at_info(host, tmp_path):
    log = tmp_path / "log"
    with Pair(preload(host, policy(host), LOG=log, LOG_LEVEL="info"), 1, host=host) as pair:
        asker = pair.askers[0]
        for pid in (pair.server.pid, asker.pid):
            wait_for_line(log, pid, "(rule logged): goes over its channel")
        set_mode(host, asker.pid, "tcp")
        wait_for_line(log, asker.pid, "is back on TCP: the operator asked for TCP")
        wait_for_line(log, pair.server.pid, "is back on TCP: the peer went back to TCP")
        set_mode(host, asker.pid, "rdma")
        host.wait_for_channels(asker.pid, 1)
        pair.say(asker, 50)
    for pid in (pair.server.pid, asker.pid):
        told = [line.partition("(rule logged): ")[2].partition(":")[0]
                for line in lines_of(log, pid) if "(rule logged)" in line]
        assert told[:3] == ["goes over its channel", "is back on TCP", "goes over its channel"], told
        assert len(told) <= 4  # and the end of the connection


def test_messages_are_not_decisions(host, tmp_path):
    log = tmp_path / "log"
    with Pair(preload(host, policy(host), LOG=log, LOG_LEVEL="debug"), 1, host=host) as pair:
        wait_for_line(log, pair.askers[0].pid, "goes over")
        wait_for_line(log, pair.server.pid, "goes over")
        before = lines_of(log)
        pair.say(pair.askers[0], 500)
        assert lines_of(log) == before


def test_the_policy_says_where_the_log_goes_and_an_edit_moves_it(host, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    path = policy(host, log=first, log_level="info")
    with Pair(preload(host, path), 1, host=host) as pair:
        asker = pair.askers[0]
        wait_for_line(first, asker.pid, "goes over its channel")
        policy(host, log=second, log_level="info")
        wait_for_line(second, asker.pid, "the policy was edited")
        descriptors = support.descriptors(asker.pid)
        length = len(lines_of(first))
        set_mode(host, asker.pid, "tcp")
        wait_for_line(second, asker.pid, "is back on TCP")
        assert len(lines_of(first)) == length
        policy(host, log=second, log_level="error")
        support.wait_for(lambda: host.ss(asker.pid)["policy"]["reloads"] == 2, "the second edit")
        length = len(lines_of(second))
        set_mode(host, asker.pid, "auto")
        set_mode(host, asker.pid, "tcp")
        policy(host, log="off")
        support.wait_for(lambda: host.ss(asker.pid)["policy"]["reloads"] == 3, "the third edit")
        assert len(lines_of(second)) == length
        assert support.descriptors(asker.pid) <= descriptors


def test_the_environment_has_precedence_over_the_policy(host, tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    path = policy(host, log=other, log_level="error")
    with Pair(preload(host, path, LOG=mine, LOG_LEVEL="info"), 1, host=host) as pair:
        wait_for_line(mine, pair.askers[0].pid, "goes over its channel")
    assert not other.exists()
    with Pair(preload(host, path, LOG="off"), 1, host=host):
        pass
    assert not other.exists()


def test_nothing_is_said_unless_asked_for(host):
    path = policy(host, log_level="debug")
    with Pair(preload(host, path), 1, host=host) as pair:
        asker = pair.askers[0]
        set_mode(host, asker.pid, "tcp")
        assert asker.finish() == 0
        assert asker.errors == ""


def test_of_many_lines_a_part_is_left_out_and_counted(host, tmp_path):
    """Two hundred streams move at once, and each move is a line."""
    log, many = tmp_path / "log", 200
    preloaded = preload(host, policy(host, log=log, log_level="info"))
    began = time.monotonic()
    server = support.Talker("serve", "127.0.0.1", preload=preloaded, program="crowd.py")
    caller = support.Talker("call", "127.0.0.1", server.line().split()[1], preload=preloaded, program="crowd.py")
    try:
        assert caller.tell(f"open {many}") == "ok"
        assert caller.tell(f"talk 0 1 {many} 4") == "ok"
        host.wait_for_channels(caller.pid, many)
        set_mode(host, caller.pid, "tcp")
        support.wait_for(lambda: set_mode(host, caller.pid, "auto") and any(
            "left out here" in line for line in lines_of(log, caller.pid)), "the count of what was left out")
        lines = lines_of(log, caller.pid)
        counted = sum(int(match[1]) for line in lines
                      if (match := re.search(r": (\d+) lines? (?:was|were) left out", line)))
        assert counted > 0
        took = time.monotonic() - began
        assert 100 <= len(lines) <= 100 + 2 * (20 * took + 10), (took, len(lines))
    finally:
        caller.kill()
        server.kill()


def test_a_log_that_was_moved_away_is_made_anew(host, tmp_path):
    log = tmp_path / "log"
    with Pair(preload(host, policy(host), LOG=log, LOG_LEVEL="info"), 1, host=host) as pair:
        asker = pair.askers[0]
        wait_for_line(log, asker.pid, "goes over its channel")
        log.rename(tmp_path / "log.1")
        set_mode(host, asker.pid, "tcp")
        wait_for_line(log, asker.pid, "is back on TCP")
        assert not any("back on TCP" in line for line in lines_of(tmp_path / "log.1", asker.pid))


def test_a_pipe_that_nobody_reads_neither_stops_nor_ends_the_program(host, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with Pair(preload(host, policy(host), LOG=pipe, LOG_LEVEL="info"), 1, host=host) as pair:
            asker = pair.askers[0]
            support.wait_for(lambda: b"goes over" in os.read(reader, 65536), "a line in the pipe")
            os.close(reader)
            reader = -1
            for mode in ("tcp", "rdma", "tcp"):
                set_mode(host, asker.pid, mode)
            pair.say(asker, 10)
            assert asker.finish() == 0
    finally:
        if reader >= 0:
            os.close(reader)


def fill(path):
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        for size in (65536, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(pipe, bytes(size))
    finally:
        os.close(pipe)


def test_a_full_standard_error_stops_nothing(host):
    with Pair(preload(host, policy(host), LOG="stderr", LOG_LEVEL="info"), 1, host=host) as pair:
        asker = pair.askers[0]
        fill(f"/proc/{asker.pid}/fd/2")
        for mode in ("tcp", "rdma", "tcp"):
            set_mode(host, asker.pid, mode)
        pair.say(asker, 10)


def test_a_file_that_the_program_has_at_number_2_gets_no_line(host, tmp_path):
    data = tmp_path / "data"
    with Pair(preload(host, policy(host), LOG="stderr", LOG_LEVEL="info"), 1, host=host) as pair:
        asker = pair.askers[0]
        assert asker.tell(f"take 2 {data}") == "taken"
        for mode in ("tcp", "rdma"):
            set_mode(host, asker.pid, mode)
        host.wait_for_channels(asker.pid, 1)
        pair.say(asker, 10)
        assert asker.finish() == 0
        assert data.read_bytes() == b""


INSIDE = r"""
import os, socket, subprocess, sys
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind("/dev/log")
log.settimeout(30)
listener = socket.create_server(("127.0.0.1", 0))
words = dict(os.environ, **dict(word.split("=", 1) for word in sys.argv[1:]))
code = ("import socket, syslog, sys; syslog.openlog('mine'); syslog.syslog('before');"
        "s = socket.create_connection(('127.0.0.1', %d)); syslog.syslog('after')")
subprocess.run([sys.executable, "-Ic", code % listener.getsockname()[1]], env=words, check=True)
for _ in range(3):
    print(log.recv(4096).decode())
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None,
                    reason="needs root and unshare, for a /dev/log of its own")
@pytest.mark.parametrize("word", ["syslog", "journal"])
def test_syslog_gets_the_lines_and_the_programs_own_keep_their_name(host, word):
    # A policy that is refused is one line, at warn.
    broken = host.directory / "broken.toml"
    broken.write_text("version = 2\n")
    words = [f"{name}={value}" for name, value in preload(host, broken, LOG=word).items()]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec",
         "mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9;"
         "mkdir /dev/shm; mount -t tmpfs none /dev/shm; exec \"$@\"", "sh", sys.executable, "-Ic", INSIDE,
         *words], capture_output=True, text=True, check=False, timeout=support.ANSWER_S)
    assert done.returncode == 0, done
    before, line, after = done.stdout.splitlines()
    assert re.search(r" mine: before", before) and re.search(r" mine: after", after)
    assert re.match(r"<28>python3\.\d+\[\d+\]: ringroad: policy refused, .*broken\.toml:1:", line)


def test_run_leaves_the_log_to_a_policy_that_names_one(host, tmp_path):
    def variables(path, **more):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("RINGROAD_")} | more
        done = subprocess.run([host.tool.command, "run", "--policy", path, "--", "env"], check=True,
                              env=environment, capture_output=True, text=True)
        return dict(re.findall(r"^RINGROAD_(LOG\w*)=(.*)$", done.stdout, re.MULTILINE))

    assert variables(policy(host)) == {"LOG": "stderr", "LOG_LEVEL": "warn"}
    path = policy(host, log=tmp_path / "log", log_level="info")
    assert variables(path) == {}
    assert variables(path, RINGROAD_LOG="off") == {"LOG": "off"}
    assert not Path(tmp_path / "log").exists()
