#!/usr/bin/python3
"""Runs unittest's tests in this process and says on a pipe what becomes of each.

    one_by_one.py [--to FD] [--go FD] [--limit S] [--without FILE] [--resource NAME]
                  [--tcp-pairs] NAME...

A line `run ID` when a test begins and `RESULT ID` when it has ended; `end` after the last. With
--go it then waits for that pipe's end, so that the reader may look at the living process. RESULT is
ok, fail, error, skip, xfail or xpass. IDs in the FILE, one a line, are left out; they may be
patterns of the shell's. With --tcp-pairs Python's socketpair() gives the two ends of a TCP
connection. A test that takes more than S seconds ends the process, with its threads' stacks on
stderr.
"""

import argparse
import faulthandler
import fnmatch
import gc
import os
import socket
import sys
import unittest


class Result(unittest.TestResult):
    """Only the worst that happened to a test counts: subtests and clean-up are parts of it."""

    ORDER = ("ok", "skip", "xfail", "xpass", "fail", "error")

    def __init__(self, say, limit_s):
        super().__init__()
        self._say = say
        self._limit_s = limit_s
        self._worst = "ok"

    def startTest(self, test):
        super().startTest(test)
        self._worst = "ok"
        self._say(f"run {test.id()}")
        faulthandler.dump_traceback_later(self._limit_s, exit=True)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        self._say(f"{self._worst} {test.id()}")

    def _note(self, result, test, why=None):
        if why is not None and result in ("fail", "error"):
            print(f"== {result} {test.id()}\n{self._exc_info_to_string(why, test)}",
                  file=sys.stderr, flush=True)
        if isinstance(test, unittest.suite._ErrorHolder):
            self._say(f"{result} {test.id()}")  # a class's or a module's own set-up
        elif self.ORDER.index(result) > self.ORDER.index(self._worst):
            self._worst = result

    def addError(self, test, err):
        self._note("error", test, err)

    def addFailure(self, test, err):
        self._note("fail", test, err)

    def addSkip(self, test, reason):
        self._note("skip", test)

    def addExpectedFailure(self, test, err):
        self._note("xfail", test)

    def addUnexpectedSuccess(self, test):
        self._note("xpass", test)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._note("fail" if issubclass(err[0], test.failureException) else "error", test, err)


def use_tcp_pairs():
    listener = socket.create_server(("127.0.0.1", 0))

    def tcp_pair(*_):
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]

    socket.socketpair = tcp_pair


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite) or hasattr(test, "_tests"):
            yield from flat(test)
        else:
            yield test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=int, default=1)
    parser.add_argument("--go", type=int)
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--without")
    parser.add_argument("--resource", action="append", default=[])
    parser.add_argument("--tcp-pairs", action="store_true")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    for fd in filter(None, (options.to, options.go)):
        os.set_inheritable(fd, False)

    def say(line):
        os.write(options.to, f"{line}\n".encode())

    without = []
    if options.without:
        with open(options.without, encoding="utf-8") as lines:
            without = lines.read().split()
    names = {name for name in without if "*" not in name}
    patterns = [name for name in without if "*" in name]
    sys.argv = sys.argv[:1]  # what they start as themselves must not take our words
    if options.tcp_pairs:
        use_tcp_pairs()
    try:
        from test import support
        # Nothing unless named, as with regrtest: tests that ask for the network are skipped.
        support.use_resources = options.resource
    except ImportError:
        pass
    loaded = unittest.defaultTestLoader.loadTestsFromNames(options.names)
    chosen = [test for test in flat(loaded)
              if test.id() not in names
              and not any(fnmatch.fnmatchcase(test.id(), pattern) for pattern in patterns)]
    suite = unittest.TestSuite(chosen)
    del loaded, chosen
    # Many tests collect garbage themselves: not all that was imported for the others each time.
    gc.collect()
    gc.freeze()
    suite.run(Result(say, options.limit))
    say("end")
    if options.go is not None:
        os.read(options.go, 1)


if __name__ == "__main__":
    main()
