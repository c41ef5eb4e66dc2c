#!/usr/bin/python3 -I
"""One end of some connections, in a process; run by test_versions.py with either version of the library.

  talker.py serve ADDRESS            prints its port, then serves until its input ends
  talker.py ask ADDRESS PORT COUNT   opens COUNT connections and does what each line of its input says:

    ask N       N questions on each connection, each answered
    forks       on each connection, a part of an answer is read here and the rest by a forked child
    late N      as "forks", where the first N bytes came before the stream could move to a channel
    end

Each answer to a line is "done" and the number of bytes that came. Bytes are numbered: what is lost, doubled or
put in where it does not belong is an error, and so is an end that is none.
"""

import os
import select
import socket
import struct
import sys
import threading

HEAD = struct.Struct("<I")


def numbered(begin, n):
    return bytes((begin + i) * 7 % 251 for i in range(n))


def take(connection, n):
    got = b""
    while len(got) < n:
        more = connection.recv(n - len(got))
        assert more, f"the end after {len(got)} of {n} bytes"
        got += more
    return got


def serve_one(connection):
    sent = 0
    while head := connection.recv(HEAD.size, socket.MSG_WAITALL):
        wanted = HEAD.unpack(head)[0]
        connection.sendall(numbered(sent, wanted))
        sent += wanted


def serve(address):
    listener = socket.create_server((address, 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    def accept():
        while True:
            threading.Thread(target=serve_one, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


class Asker:
    def __init__(self, address, port):
        self.socket = socket.create_connection((address, port))
        self.read = 0

    def ask(self, n):
        self.socket.sendall(HEAD.pack(n))

    def take(self, n):
        assert take(self.socket, n) == numbered(self.read, n), f"other bytes behind {self.read}"
        self.read += n


def take_in_child(askers, n):
    """A child reads `n` bytes for each of them."""
    child = os.fork()
    if child == 0:
        try:
            for asker in askers:
                asker.take(n)
            os._exit(0)
        except BaseException as problem:  # pylint: disable=broad-exception-caught
            print(f"in the child: {problem!r}", file=sys.stderr, flush=True)
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the child ended with {status}"
    for asker in askers:
        asker.read += n


def ask(address, port, count):
    askers = [Asker(address, port) for _ in range(count)]
    print("done 0", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        before = sum(asker.read for asker in askers)
        if what == "end":
            break
        if what == "late":
            late = int(numbers[0])
            for asker in askers:
                asker.ask(late)
                select.select([asker.socket], [], [])
            # It writes and does not read: the stream may move meanwhile, behind what is unread.
            for _ in range(40):
                for asker in askers:
                    asker.ask(10)
                select.select([], [], [], 0.01)
            for asker in askers:
                take_in_child([asker], late + 400)
        for _ in range(int(numbers[0]) if what == "ask" else 0):
            for asker in askers:
                asker.ask(100)
                asker.take(100)
        if what == "forks":
            for asker in askers:
                asker.ask(5000)
                asker.take(1000)
            take_in_child(askers, 4000)
        print("done", sum(asker.read for asker in askers) - before, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
