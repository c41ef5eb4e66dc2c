#!/usr/bin/python3
"""A small program that knows nothing of Ringroad: a line-based echo server, or its client.

  talker.py serve ADDRESS PORT     says "PORT n"; echoes lines of every client until stdin ends
  talker.py ask ADDRESS PORT       connects, says "connected"; for each line on stdin
                                     say TEXT     sends the line, says what came back
                                     bulk BYTES   sends and receives so many, says their digest
"""

import hashlib
import socket
import sys
import threading


def serve(address, port):
    listener = socket.create_server((address, port), backlog=64)
    print("PORT", listener.getsockname()[1], flush=True)
    threading.Thread(target=accept_all, args=(listener,), daemon=True).start()
    sys.stdin.read()


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
        else:
            sent = bytes(index * 31 % 251 for index in range(4096)) * (int(rest) // 4096)
            sender = threading.Thread(target=connection.sendall, args=(sent,))
            sender.start()
            received = receive(connection, len(sent))
            sender.join()
            print("same" if received == sent else "DIFFERENT",
                  hashlib.sha256(received).hexdigest(), flush=True)
    connection.close()


def receive(connection, count):
    received = bytearray()
    while len(received) < count:
        part = connection.recv(min(65536, count - len(received)))
        if not part:
            raise EOFError(f"the connection ended after {len(received)} of {count} bytes")
        received += part
    return bytes(received)


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
