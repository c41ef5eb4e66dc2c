#!/usr/bin/python3
"""A program with thousands of connections, of which few are busy; it knows nothing of Ringroad.

  crowd.py serve ADDRESS       says "PORT n"; echoes what comes over any connection until stdin ends
  crowd.py call ADDRESS PORT   for each line on stdin
        open COUNT                    makes so many connections more
        close                         closes them all
        talk FIRST STEP COUNT TIMES   so many messages over each of COUNT connections, from the FIRST,
                                      every STEPth, all at a time
      says "ok", or what was wrong;
        ping COUNT SECONDS            messages to and fro over each of COUNT connections
      says [[[ns, end], ...], ...]: for each the answers that took long, and when they came
"""

import json
import resource
import select
import socket
import sys
import time

LONG_NS = 10_000_000


def serve(address):
    listener = socket.create_server((address, 0), backlog=1024)
    print("PORT", listener.getsockname()[1], flush=True)
    listener.setblocking(False)
    connections = {}
    with select.epoll() as waiting:
        waiting.register(listener, select.EPOLLIN)
        waiting.register(sys.stdin, select.EPOLLIN)
        while True:
            for number, _ in waiting.poll():
                if number == listener.fileno():
                    connection, _ = listener.accept()
                    connection.setblocking(False)
                    connections[connection.fileno()] = connection
                    waiting.register(connection, select.EPOLLIN)
                elif number == sys.stdin.fileno():
                    return
                elif data := connections[number].recv(4096):
                    connections[number].sendall(data)  # shorter than any buffer
                else:
                    connections.pop(number).close()


def talk(connections, times):
    for turn in range(times):
        messages = {connection: f"{connection.fileno()}:{turn};".encode() * 20
                    for connection in connections}
        for connection, message in messages.items():
            connection.sendall(message)
        for connection, message in messages.items():
            received = b""
            while len(received) < len(message):
                part = connection.recv(len(message) - len(received))
                if not part:
                    return f"{connection} ended after {received}"
                received += part
            if received != message:
                return f"{connection} gave {received} for {message}"
    return "ok"


def ping(connections, seconds):
    asked, late = {}, {}
    end = time.monotonic() + seconds
    with select.epoll() as waiting:
        known = {connection.fileno(): connection for connection in connections}
        for number, connection in known.items():
            waiting.register(connection, select.EPOLLIN)
            asked[number] = time.monotonic_ns()
            late[number] = []
            connection.sendall(b"ping")
        while asked:
            for number, _ in waiting.poll():
                assert known[number].recv(4) == b"ping"
                now = time.monotonic_ns()
                took = now - asked.pop(number)
                if took >= LONG_NS:
                    late[number].append((took, now))
                if time.monotonic() < end:
                    asked[number] = now
                    known[number].sendall(b"ping")
    return json.dumps([late[number] for number in known])


def call(address, port):
    connections = []
    for line in sys.stdin:
        verb, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        if verb == "open":
            for _ in range(numbers[0]):
                connections.append(socket.create_connection((address, port)))
            print("ok", flush=True)
        elif verb == "close":
            while connections:
                connections.pop().close()
            print("ok", flush=True)
        elif verb == "ping":
            print(ping(connections[:numbers[0]], numbers[1]), flush=True)
        else:
            first, step, count, times = numbers
            print(talk(connections[first::step][:count], times), flush=True)


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        call(sys.argv[2], int(sys.argv[3]))
