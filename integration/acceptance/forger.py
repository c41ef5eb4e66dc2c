#!/usr/bin/python3
"""A process that reaches a rendezvous directory, has no key, and holds no connection. For each line on stdin:

  squat PATH HOW          stands under a path; answers each request with its own proof (`reflect`), or not at all
                          (`silent`); says "squats", and "asked HELLO" for each request
  leave                   gives the path up, says "left"
  replay PATH HELLO       sends a request that was seen before, with memory of its own; says what came back
  guess PATH FROM TO      asks for a connection between two ends (address:port) without a proof; the same
  flood PATH COUNT        connects so often and says nothing; says how many were let in
"""

import array
import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading

HELLO = struct.Struct("<4sHHQIIHHI15sB")  # docs/protocol.md, section 1
END = struct.Struct("<16sIHH")
REFUSAL = struct.Struct("<4sHBB")
RING_BYTES = 65536
F_ADD_SEALS, SEALS = 1033, 7


def packet(connection):
    """One packet and how many descriptors came with it, which are closed."""
    data, control, _, _ = connection.recvmsg(4096, 4096)
    count = 0
    for level, kind, content in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds = array.array("i", content[:len(content) // 4 * 4])
            count += len(fds)
            for fd in fds:
                os.close(fd)
    return data, count


def memory(ring_bytes):
    fd = os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096 + 2 * ring_bytes)
    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return fd


def end(text):
    address, port = text.rsplit(":", 1)
    mapped = bytes(10) + b"\xff\xff" + socket.inet_aton(address)
    return END.pack(mapped, 0, int(port), 0)


class Squatter:
    def __init__(self, path, how):
        self._how = how
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(path)
        os.chmod(path, 0o666)
        self._socket.listen(64)
        self._kept = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            hello, _ = packet(connection)
            if not hello:
                continue
            if self._how == "reflect":
                fields = list(HELLO.unpack_from(hello))
                fields[2] = END.unpack_from(hello, HELLO.size + END.size)[2]
                connection.send(HELLO.pack(*fields) + hello[HELLO.size + 2 * END.size:])
            self._kept.append(connection)
            print("asked", hello.hex(), flush=True)

    def leave(self):
        os.unlink(self._path)
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._kept:
            connection.close()


def ask(path, hello):
    """What a listener says to a request: a refusal's number, "answer", or "nothing"."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(10)
    connection.connect(path)
    ring_bytes = HELLO.unpack_from(hello)[5]
    rights = array.array("i", [memory(ring_bytes)])
    connection.sendmsg([hello], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(rights[0])
    data, _ = packet(connection)
    asked.append(connection)
    if not data:
        return "nothing"
    return f"refusal {REFUSAL.unpack(data)[2]}" if len(data) == REFUSAL.size else "answer"


def guess(path, connector, listener):
    port = int(connector.rsplit(":", 1)[1])
    hello = HELLO.pack(b"RRR1", 1, port, 0, 0, RING_BYTES, 0, 0, 0, os.urandom(15), 1)
    return ask(path, hello + end(connector) + end(listener))


def flood(path, count):
    for _ in range(count):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(path)
        except BlockingIOError:
            break
        asked.append(connection)
    return f"in {len(asked)}"


asked = []


def main():
    squatter = None
    ctypes.CDLL(None).umask(0)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "squat":
            squatter = Squatter(*words)
            print("squats", flush=True)
        elif verb == "leave":
            squatter.leave()
            print("left", flush=True)
        elif verb == "replay":
            print(ask(words[0], bytes.fromhex(words[1])), flush=True)
        elif verb == "guess":
            print(guess(*words), flush=True)
        else:
            print(flood(words[0], int(words[1])), flush=True)


if __name__ == "__main__":
    main()
