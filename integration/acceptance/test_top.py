"""`ringroad top` in a terminal of its own, and in a pipe.

     this test ══ pseudo-terminal ══ ringroad top ── the files of preloaded processes
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from . import support

ENTER, LEAVE, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"
LINE = re.compile(r"\x1b\[[0-9]+;1H")
ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")

# The first process of a session, as a shell is: the terminal hangs up when it ends, not before.
SESSION = """
import fcntl, signal, subprocess, sys, termios
fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)
for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
terminal = int(sys.argv[1])
program = subprocess.Popen(sys.argv[2:], stdin=terminal, stdout=terminal, stderr=terminal)
print(program.pid, flush=True)
print(program.wait(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.fixture(name="busy", scope="module")
def fixture_busy(tmp_path_factory):
    """A host with a preloaded server and a client of it that asks all the time."""
    host = support.Host(tmp_path_factory.mktemp("top"))
    policy = host.policy("demo-rule", ["1-65535"], promote_after="{ messages = 2 }")
    preload = host.preload(policy)
    server = support.Talker("serve", "127.0.0.1", preload=preload, program="crowd.py")
    caller = support.Talker("call", "127.0.0.1", server.line().split()[1], preload=preload,
                            program="crowd.py")
    with server, caller:
        assert caller.tell("open 30") == "ok"
        caller.write("ping 4 600")
        support.wait_for(lambda: len(host.on_channel(caller.pid)) >= 4, "the busy ones to be on channels")
        host.server, host.caller = server.pid, caller.pid
        yield host


class Screen:
    """The command in a terminal of so many rows and columns."""

    def __init__(self, host, *words, rows=24, columns=100, interval=0.2, environment=None):
        # The other end stays open here, so that its settings can still be asked for.
        self.fd, self.other = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.other)
        self.text = ""
        command = [host.tool.command, "top", "--interval", str(interval), "--directory", host.runtime,
                   *words]
        self.session = subprocess.Popen(
            ["/usr/bin/python3", "-I", "-c", SESSION, str(self.other), *map(str, command)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[self.other],
            env=os.environ | {"TERM": "xterm"} | (environment or {}), start_new_session=True)
        self.pid = int(self.session.stdout.readline())
        self.status = None

    def read(self, timeout_s=0.1):
        ready, _, _ = select.select([self.fd], [], [], timeout_s)
        if not ready:
            return False
        try:
            part = os.read(self.fd, 65536)
        except OSError:  # EIO: the other end is closed
            part = b""
        self.text += part.decode(errors="replace")
        return bool(part)

    def until(self, condition, what, timeout_s=20):
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"no {what}: {self.text[-2000:]!r}"
            self.read()

    def frames(self):
        """Complete ones, as lists of lines without what steers the terminal."""
        return [[ESCAPE.sub("", line) for line in LINE.split(frame)]
                for frame in self.text.split(HOME)[1:-1]]

    def next_frame(self, fits=lambda frame: True, what="frame"):
        seen = len(self.frames())
        self.until(lambda: any(fits(frame) for frame in self.frames()[seen:]), what)
        return next(frame for frame in self.frames()[seen:] if fits(frame))

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settings(self):
        return termios.tcgetattr(self.other)

    def ended(self):
        """Whether it has; its status is what the session's first process said then."""
        if self.status is None and select.select([self.session.stdout], [], [], 0)[0]:
            self.status = int(self.session.stdout.readline())
        return self.status is not None

    def end(self):
        self.until(self.ended, "end")
        while self.read():
            pass
        return self.status, self.settings()

    def hang_up(self):
        os.close(self.fd)
        self.fd = os.open("/dev/null", os.O_RDONLY)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
        self.session.kill()
        self.session.communicate()
        os.close(self.fd)
        os.close(self.other)


def is_measured(frame):
    return len(frame) > 3 and "measuring" not in frame[1]


@pytest.mark.parametrize("end", ["q", "\x03"])
def test_the_terminal_is_left_as_it_was(busy, end):
    with Screen(busy) as screen:
        frame = screen.next_frame(is_measured)
        assert "by process, sorted by bytes" in frame[0] and "2 processes, 60 streams" in frame[0]
        assert frame[2].split()[:4] == ["PID", "PROGRAM", "STREAMS", "ON-CHANNEL"]
        assert {line.split()[0] for line in frame[3:]} == {str(busy.server), str(busy.caller)}
        assert screen.settings() != screen.before  # no echo, keys at once
        screen.press(end)
        status, settings = screen.end()
        assert status == 0 and settings == screen.before
        assert screen.text.startswith(ENTER) and screen.text.endswith(LEAVE)
        assert screen.text.count("\x1b[?25l") == screen.text.count("\x1b[?25h") == 1


def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was_and_is_what_ended_it(busy):
    for number in (signal.SIGTERM, signal.SIGHUP):
        with Screen(busy) as screen:
            screen.next_frame()
            os.kill(screen.pid, number)
            status, settings = screen.end()
            assert status == -number and settings == screen.before and screen.text.endswith(LEAVE)


def test_while_it_is_stopped_the_terminal_is_as_it_was(busy):
    with Screen(busy) as screen:
        screen.next_frame()
        screen.press("\x1a")
        screen.until(lambda: screen.text.endswith(LEAVE), "return from the other screen")
        support.wait_for(lambda: open(f"/proc/{screen.pid}/stat", encoding="ascii").read()
                         .rsplit(")")[-1].split()[0] == "T", "it to stop")
        assert screen.settings() == screen.before
        os.kill(screen.pid, signal.SIGCONT)
        screen.until(lambda: screen.text.count(ENTER) == 2, "other screen")
        screen.next_frame(is_measured)
        screen.press("q")
        assert screen.end() == (0, screen.before)


def test_it_follows_the_size_of_the_terminal_however_small(busy):
    with Screen(busy, "--by", "stream", rows=24, columns=200) as screen:
        frame = screen.next_frame(is_measured)
        assert len(frame) == 24 and "demo-rule" in frame[3]
        for rows, columns in ((10, 40), (3, 20), (2, 10), (1, 1), (1, 300), (50, 1), (70, 250), (24, 80)):
            screen.resize(rows, columns)
            frame = screen.next_frame(lambda frame, rows=rows, columns=columns:
                                      len(frame) == min(rows, 63) and
                                      max(map(len, frame)) <= columns, f"{rows} x {columns}")
            assert "\n" not in "".join(frame)
        frame = screen.next_frame()
        assert len(frame) == 24 and max(map(len, frame)) == 80
        # Where the size is not known.
        screen.resize(0, 0)
        screen.next_frame(lambda frame: len(frame) == 24)
        screen.press("q")
        assert screen.end() == (0, screen.before)


def test_keys_change_what_is_shown_at_once(busy):
    with Screen(busy, interval=30, rows=12, columns=160) as screen:
        def title_after(keys):
            seen = len(screen.frames())
            screen.press(keys)
            screen.until(lambda: len(screen.text.split(HOME)) - 1 > seen + 1, "answer to a key")
            return [ESCAPE.sub("", line) for line in LINE.split(screen.text.split(HOME)[-1])]

        screen.until(lambda: HOME in screen.text, "screen")
        assert "by stream" in title_after("b")[0]
        assert "by rule" in title_after("b")[0]
        assert "demo-rule" in title_after("u")[-1]
        assert "by process" in title_after("p")[0]
        assert "sorted by tx " in title_after("s")[0]
        assert "sorted by bytes " in title_after("S")[0]
        assert "(reversed)" in title_after("r")[0]
        assert "quit" in title_after("h")[2]
        title_after("h")
        first = title_after("t")[3:]
        assert title_after("j")[3:] != first
        assert title_after("\x1b[A")[3:] == first
        assert title_after("\x1b[6~")[3:] != first  # a page
        assert title_after("g")[3:] == first
        assert title_after(" " * 50)[3:] != first  # beyond the end: its last page
        assert len(title_after("\x1b\x1b[99~\x1bOZ\xff"))  == 12
        screen.press("q")
        assert screen.end()[0] == 0


def test_a_terminal_that_goes_away_ends_it(busy):
    with Screen(busy) as screen:
        screen.next_frame()
        screen.hang_up()
        support.wait_for(screen.ended, "it to end")
        assert screen.status in (1, -signal.SIGHUP)


def test_without_a_terminal_that_can_do_more_it_prints_one_table_after_the_other(busy):
    done = subprocess.run([busy.tool.command, "top", "--directory", busy.runtime, "--interval", "0.2",
                           "--count", "3"], capture_output=True, text=True, timeout=30, check=True,
                          env=os.environ | {"TERM": "xterm"})
    assert "\x1b" not in done.stdout and done.stderr == ""
    tables = done.stdout.rstrip("\n").split("\n\n")
    assert len(tables) == 3
    for table in tables:
        title, sums, heading, *rows = table.splitlines()
        assert title.startswith("ringroad top ")
        assert float(re.search(r"over (\d+\.\d) s", sums)[1]) >= 0.2
        assert heading.split()[0] == "PID" and len(rows) == 2
    with Screen(busy, "--count", "1", environment={"TERM": "dumb"}) as screen:
        status, settings = screen.end()
        assert (status, settings) == (0, screen.before)
        assert "\x1b" not in screen.text and "demo" not in screen.text and "PROGRAM" in screen.text
    with Screen(busy, "--count", "2", "--batch") as screen:
        assert screen.end()[0] == 0
        assert "\x1b" not in screen.text


def test_rates_are_what_the_counters_say(busy):
    def received():
        totals = busy.ss(busy.caller)["totals"]
        return sum(totals[carrier]["rx_messages"] for carrier in ("tcp", "channel"))

    def top(*words):
        done = subprocess.run([busy.tool.command, "top", "--json", "--directory", busy.runtime,
                               "--interval", "1", "--count", "1", "--pid", str(busy.caller), *words],
                              capture_output=True, text=True, timeout=30, check=True)
        return json.loads(done.stdout)

    reports = []
    for words in ((), ("--by", "stream", "--sort", "rx-msgs"), ("--by", "rule")):
        first = received()
        report = top(*words)
        most = received() - first
        assert report["seconds"] > 0.9
        messages = sum(row["rx_messages"] for row in report["rows"]) * report["seconds"]
        size = sum(row["rx_bytes"] for row in report["rows"]) * report["seconds"]
        # What came between its two readings is a part of what came meanwhile.
        assert 0 < messages <= most * 1.01
        assert size == pytest.approx(4 * messages, rel=0.01)
        reports.append(report)
    by_process, by_stream, by_rule = reports
    row, = by_process["rows"]
    assert (row["pid"], row["streams"]) == (busy.caller, 30) and row["on_channel"] >= 4
    rates = [row["rx_messages"] for row in by_stream["rows"]]
    assert rates == sorted(rates, reverse=True) and len(rates) == 30
    assert all(rate > 0 for rate in rates[:4]) and rates[4:] == [0] * 26
    assert {row["carrier"] for row in by_stream["rows"][:4]} == {"shm"}
    assert [row["rule"] for row in by_rule["rows"]] == ["demo-rule"]
    few = top("--by", "process", "carrier", "tcp")
    assert few["rows"][0]["streams"] == 30 - row["on_channel"]


def test_a_process_that_ends_ends_it_if_it_was_named(busy, host):
    policy = host.policy("short", ["1-65535"])
    with support.Talker("serve", "127.0.0.1", preload=host.preload(policy), program="crowd.py") as server:
        server.line()
        words = [host.tool.command, "top", "--batch", "--interval", "0.1", "--directory", host.runtime,
                 "--pid", str(server.pid)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as top:
            assert top.stdout.readline().startswith("ringroad top")
            server.kill()
            _, errors = top.communicate(timeout=20)
            assert top.returncode == 1 and "the processes have ended" in errors


def test_a_reader_that_reads_no_more_ends_it(busy):
    words = [busy.tool.command, "top", "--interval", "0.1", "--directory", busy.runtime]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as top:
        top.stdout.readline()
        top.stdout.close()
        assert top.wait(timeout=20) in (1, -signal.SIGPIPE)


def test_ss_says_the_same_in_a_terminal_and_in_a_pipe(busy):
    words = [busy.tool.command, "ss", "--directory", busy.runtime, "state", "on_tcp", "--sort", "peer"]
    piped = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(words[0], [str(word) for word in words])
    shown = b""
    try:
        while part := os.read(fd, 65536):
            shown += part
    except OSError:
        pass
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shown.decode().replace("\r\n", "\n") == piped and "ON_TCP" in piped
