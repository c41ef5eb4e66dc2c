#!/usr/bin/python3
"""A program with thousands of connections, of which few are busy; it knows nothing of Ringroad.

  crowd.py serve       says "PORT n"; echoes what comes over any connection until stdin ends
  crowd.py call PORT   for each line on stdin
                         open COUNT               makes so many connections more
                         talk FIRST STEP COUNT TIMES   so many messages over each of COUNT connections,
                                                  from the FIRST, every STEPth, all at a time
                       and says "ok", or what was wrong
"""

import resource
import select
import socket
import sys


def serve():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
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
    for time in range(times):
        messages = {connection: f"{connection.fileno()}:{time};".encode() * 20
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


def call(port):
    connections = []
    for line in sys.stdin:
        verb, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        if verb == "open":
            for _ in range(numbers[0]):
                connections.append(socket.create_connection(("127.0.0.1", port)))
            print("ok", flush=True)
        else:
            first, step, count, times = numbers
            print(talk(connections[first::step][:count], times), flush=True)


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.argv[1] == "serve":
        serve()
    else:
        call(int(sys.argv[2]))
