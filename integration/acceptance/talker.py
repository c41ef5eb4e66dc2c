#!/usr/bin/python3
"""A small program that knows nothing of Ringroad: a line-based echo server, or its client.

  talker.py serve ADDRESS PORT     says "PORT n"; echoes lines of every client until stdin ends
  talker.py prefork ADDRESS PORT   the same by two workers that it forks: each accepts and echoes
  talker.py children ADDRESS PORT  the same by a child that it forks for each client
  talker.py moved ADDRESS PORT PID the same in the network namespace of process PID, after it has listened in its own
  talker.py ask ADDRESS PORT       connects, says "connected"; for each line on stdin
                                     say TEXT     sends the line, says what came back
                                     bulk BYTES   sends and receives so many, says their digest
                                     take N PATH  makes descriptor N a file of its own, says "taken"
  talker.py untitled ...           the same as without the word, after it has overwritten its environment, as programs do
                                   to show a title
"""

import ctypes
import hashlib
import os
import select
import signal
import socket
import sys
import threading


def listen(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=64)


def serve(address, port):
    listener = listen(address, port)
    print("PORT", listener.getsockname()[1], flush=True)
    threading.Thread(target=accept_all, args=(listener,), daemon=True).start()
    sys.stdin.read()


def prefork(address, port):
    listener = listen(address, port)
    for _ in range(2):
        if os.fork() == 0:
            end_with_the_input()
            accept_all(listener)
    print("PORT", listener.getsockname()[1], flush=True)
    sys.stdin.read()


def children(address, port):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = listen(address, port)
    print("PORT", listener.getsockname()[1], flush=True)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            echo(connection)
            os._exit(0)
        connection.close()


def moved(address, port, pid):
    kept = listen("0.0.0.0", port)
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        if libc.setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    serve(address, port)
    kept.close()


def end_with_the_input():
    def wait():
        # Not a byte is taken from the others.
        select.select([sys.stdin], [], [])
        os._exit(0)
    threading.Thread(target=wait, daemon=True).start()


def accept_all(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection):
    with connection:
        while received := connection.recv(65536):
            connection.sendall(received)


def ask(address, port):
    connection = socket.create_connection((address, port))
    print("connected", flush=True)
    for line in sys.stdin:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "say":
            sent = rest.encode() + b"\n"
            connection.sendall(sent)
            print(receive(connection, len(sent)).decode().rstrip("\n"), flush=True)
        elif verb == "take":
            number, path = rest.split(" ", 1)
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), int(number))
            print("taken", flush=True)
        else:
            sent = bytes(index * 31 % 251 for index in range(4096)) * (int(rest) // 4096)
            sender = threading.Thread(target=connection.sendall, args=(sent,))
            sender.start()
            received = receive(connection, len(sent))
            sender.join()
            print("same" if received == sent else "DIFFERENT",
                  hashlib.sha256(received).hexdigest(), flush=True)
    connection.close()


def overwrite_environment():
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        begin, end = map(int, stat.read().rpartition(")")[2].split()[47:49])
    ctypes.memset(begin, ord(" "), end - begin)


def receive(connection, count):
    received = bytearray()
    while len(received) < count:
        part = connection.recv(min(65536, count - len(received)))
        if not part:
            raise EOFError(f"the connection ended after {len(received)} of {count} bytes")
        received += part
    return bytes(received)


if __name__ == "__main__":
    if sys.argv[1] == "untitled":
        overwrite_environment()
        del sys.argv[1]
    {"serve": serve, "prefork": prefork, "children": children,
     "moved": moved, "ask": ask}[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))
