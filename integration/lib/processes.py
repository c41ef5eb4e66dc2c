"""Child processes that are started, waited for and stopped by their own process id."""

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

POLL_S = 0.02


class ProcessError(Exception):
    """A child process did not do what was asked of it; the message names it and shows its log."""


class Child:
    """A process with its output in a file.

    Its end is seen through a pidfd, so that waiting does not collect it and the kernel's account
    of it (`usage`) can be read once, by the one that collects.
    """

    def __init__(self, command, log, environment=None, pipes=False):
        """`environment` is added to this process's own. With `pipes` its standard input and output
        are not the log's, but those of `_process`."""
        self.name = os.path.basename(str(command[0]))
        self.log = Path(log)
        self.usage = None
        with open(self.log, "wb") as output:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output, stderr=output,
                env={**os.environ, **(environment or {})})
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self):
        return self._process.pid

    @property
    def status(self):
        """The exit status once collected (negative: a signal's number), else None."""
        return self._process.returncode

    def ends_within(self, seconds):
        """Waits up to `seconds`; true when the process has ended. It is not collected."""
        if self.status is not None:
            return True
        return bool(select.select([self._pidfd], [], [], seconds)[0])

    def collect(self):
        """Waits for the end without a bound and returns the status; sets `usage` (a rusage)."""
        if self.status is None:
            _, status, self.usage = os.wait4(self.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._pidfd)
        return self.status

    def finish(self, limit_s):
        """Waits for its end: the status. ProcessError, and it is killed, when it does not come."""
        if not self.ends_within(limit_s):
            hangs = doing(self.pid)
            self.abandon()
            raise ProcessError(f"{self.name} did not end within {limit_s:g} s; {hangs}"
                               f"{tail(self.log)}")
        return self.collect()

    def stop(self, timeout_s=20):
        """Asks the process to end and kills it when it has not within `timeout_s` seconds.

        Returns true when it ended by itself; a server that had to be killed is worth a failure.
        """
        by_itself = True
        if self.status is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
            by_itself = self.ends_within(timeout_s)
            if not by_itself:
                self.kill()
        self.collect()
        return by_itself

    def kill(self):
        if self.status is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self.collect()

    def abandon(self, patience_s=10):
        """Kills the process; false when the kernel does not let it go (it is in state D): then it
        is left behind."""
        if self.status is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            if not self.ends_within(patience_s):
                return False
            self.collect()
        return True


class Talker(Child):
    """A process that answers lines with lines; its log has what it says on stderr."""

    def __init__(self, command, log, environment=None):
        super().__init__(command, log, environment, pipes=True)
        self._unread = b""

    def tell(self, line):
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # that it has ended is told when an answer is wanted

    def line(self, timeout_s):
        """The next line that it says; ProcessError with its log when none comes."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = max(0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise ProcessError(f"{self.name} said nothing for {timeout_s:g} s; "
                                   f"{doing(self.pid)}{tail(self.log)}")
            said = os.read(self._process.stdout.fileno(), 1 << 16)
            if not said:
                raise ProcessError(f"{self.name} ended with status {self.collect()}{tail(self.log)}")
            self._unread += said
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def end(self, timeout_s=10):
        """Closes its input, at which it should end; one that does not is killed or left behind."""
        self._process.stdin.close()
        if self.ends_within(timeout_s):
            self.collect()
        else:
            self.abandon()
        self._process.stdout.close()


def patient(timeout_s):
    """How long to wait for what must come, where RINGROAD_TEST_PATIENCE times the usual is to be had.

    An emulated machine keeps nobody's time: beside a busy neighbour it may run several times slower.
    """
    return timeout_s * float(os.environ.get("RINGROAD_TEST_PATIENCE", 1))


def wait_until(condition, timeout_s, what, child=None, log=None):
    """Polls `condition` until it is true.

    Raises ProcessError after `timeout_s` seconds, or at once when `child` ends first; the message
    says `what` was awaited and shows the end of `log` (by default the child's).
    """
    log = log or (child and child.log)
    deadline = time.monotonic() + timeout_s
    while not condition():
        if child is None:
            select.select([], [], [], POLL_S)
        elif child.ends_within(POLL_S) and not condition():
            raise ProcessError(f"waiting for {what}: {child.name} ended with status "
                               f"{child.collect()}{tail(log)}")
        if time.monotonic() >= deadline:
            hangs = f"; {child.name}: {doing(child.pid)}" if child else ""
            raise ProcessError(f"waiting for {what}: not within {timeout_s:g} s{hangs}{tail(log)}")


def doing(pid, proc="/proc"):
    """What the threads of a process are doing, in a few words: "2 threads state S in ..."."""
    counts = {}
    for task in sorted(Path(f"{proc}/{pid}/task").glob("*")):
        try:
            state = re.search(r"^State:\s+(\S)", (task / "status").read_text(), re.MULTILINE)[1]
            where = (task / "wchan").read_text().strip("\0 \n")
            call = (task / "syscall").read_text().split()[0]
        except (OSError, TypeError, IndexError):
            continue  # it has ended meanwhile
        words = f"state {state}"
        if call != "running":
            words += f" in system call {call}" + (f" ({where})" if where not in ("", "0") else "")
        counts[words] = counts.get(words, 0) + 1
    return ", ".join(f"{count} thread{'s' if count > 1 else ''} {words}"
                     for words, count in counts.items()) or "it has ended"


def stacks(pid, threads=3, frames=8, timeout_s=60):
    """Where the threads of a process are, innermost function first, one line each; "" without gdb."""
    try:
        said = subprocess.run(["gdb", "-p", str(pid), "-batch", "-nx", "-ex",
                               f"thread apply all backtrace {frames}"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False, timeout=timeout_s).stdout
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    found = [re.findall(r"^#\d+ +(?:0x[0-9a-f]+ in )?(\S+) \(", part, re.MULTILINE)
             for part in re.split(r"^Thread ", said, flags=re.MULTILINE)[1:]]
    return "".join(f"\n    {' < '.join(name for name in names if name != '??')}"
                   for names in found[-threads:])


def tail(log, lines=15):
    """The last lines of a log file, indented, as an appendix to an error message."""
    if log is None:
        return ""
    try:
        text = Path(log).read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return ""
    return "".join(f"\n    {line}" for line in [f"(end of {log})", *text])


class WorkDirectory:
    """A directory on a tmpfs (so that no disk is measured), removed at exit from the context."""

    def __init__(self, prefix):
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}.", dir=parent))

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def end_on_signals():
    """Turns SIGTERM and SIGHUP into SystemExit, so that `finally` clauses stop the servers."""
    def leave(number, _frame):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
