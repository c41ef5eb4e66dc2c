#!/usr/bin/python3
"""A small program that knows nothing of Ringroad: gRPC streams in all directions, without stubs.

  grpc_talker.py serve PORT  serves on 127.0.0.1 until it is ended
  grpc_talker.py ask PORT    asks for everything and prints what was answered, as JSON
"""

import hashlib
import json
import sys
import threading
from concurrent import futures

import grpc

STREAMS = 6
MESSAGES = 300
LARGE_BYTES = 16 << 20
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
           ("grpc.so_reuseport", 0)]
# A large message takes a while on a machine that does other things too.
PATIENCE_S = 60


def body(seed, size):
    block = hashlib.sha256(str(seed).encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def converse(requests, _context):
    """An answer for each message, that depends on all before it."""
    seen = hashlib.sha256()
    for number, request in enumerate(requests):
        seen.update(request)
        yield seen.digest() + body(number, len(request) // 2)


def collect(requests, _context):
    seen, count = hashlib.sha256(), 0
    for request in requests:
        seen.update(request)
        count += 1
    return f"{count} {seen.hexdigest()}".encode()


def deliver(request, context):
    count, size = map(int, request.split())
    for number in range(count):
        yield body(number, size)
    if count == 13:
        context.abort(grpc.StatusCode.DATA_LOSS, "thirteen")


def wait(_request, context):
    """Answers when nobody waits for it any more."""
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(PATIENCE_S)
    return b""


def serve(port):
    server = grpc.server(futures.ThreadPoolExecutor(2 * STREAMS), options=OPTIONS)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("talk", {
        "converse": grpc.stream_stream_rpc_method_handler(converse),
        "collect": grpc.stream_unary_rpc_method_handler(collect),
        "deliver": grpc.unary_stream_rpc_method_handler(deliver),
        "echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
        "wait": grpc.unary_unary_rpc_method_handler(wait)})])
    assert server.add_insecure_port(f"127.0.0.1:{port}") == int(port)
    server.start()
    server.wait_for_termination()


def conversation(channel, number):
    """Half of the messages wait for their answer, the others are sent ahead."""
    answered = threading.Semaphore(1 if number % 2 else 20)

    def requests():
        for message in range(MESSAGES):
            answered.acquire()
            yield body(f"{number}.{message}", message * 7919 % 60000)
    seen, count = hashlib.sha256(), 0
    for answer in channel.stream_stream("/talk/converse")(requests()):
        answered.release()
        seen.update(answer)
        count += 1
    return count, seen.hexdigest()


def outcome(call):
    """What a call came to: its answers' digest, and its status."""
    seen, count = hashlib.sha256(), 0
    try:
        for answer in call:
            seen.update(answer)
            count += 1
    except grpc.RpcError as error:
        return count, seen.hexdigest(), error.code().name, error.details()
    return count, seen.hexdigest(), call.code().name, call.details()


def cancelled(channel):
    call = channel.unary_stream("/talk/deliver")(b"1000000 1000")
    for _ in range(10):
        next(call)
    call.cancel()
    try:
        while next(call):
            pass
    except grpc.RpcError as error:
        return error.code().name
    return "went on"


def ask(port):
    said = []
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        echo = channel.unary_unary("/talk/echo")
        for number in range(100):
            assert echo(body(number, number), timeout=PATIENCE_S) == body(number, number)
        with futures.ThreadPoolExecutor(STREAMS) as pool:
            said += pool.map(lambda number: conversation(channel, number), range(STREAMS))
        said.append(channel.stream_unary("/talk/collect")(
            body(number, 20000) for number in range(1000)).decode())
        said.append(outcome(channel.unary_stream("/talk/deliver")(b"500 30000")))
        said.append(outcome(channel.unary_stream("/talk/deliver")(b"13 100000")))
        large = echo(body("large", LARGE_BYTES), timeout=PATIENCE_S)
        said.append(hashlib.sha256(large).hexdigest())
        said.append(cancelled(channel))
        try:
            channel.unary_unary("/talk/wait")(b"", timeout=0.2)
        except grpc.RpcError as error:
            said.append([error.code().name, error.details()])
        said.append(hashlib.sha256(echo(b"the end", timeout=PATIENCE_S)).hexdigest())
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](sys.argv[2])
