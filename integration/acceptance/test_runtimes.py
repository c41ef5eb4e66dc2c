"""Programs on run times with an event loop or threads of their own: node, and gRPC's C core.

     client ── 127.0.0.1 ── server          both plain: the answers to compare with
     client ══ 127.0.0.1 ══ server          both preloaded: the same answers, from a channel
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from . import support
from .test_programs import check_idle, check_promoted, fixture_eager, fixture_host, \
    needs, output, server  # pylint: disable=unused-import

HERE = Path(__file__).parent
needs_grpc = pytest.mark.skipif(importlib.util.find_spec("grpc") is None,
                                reason="not installed: python3-grpcio")


def registers_by_io_uring(node):
    """Whether that Node registers with epoll by io_uring, as its libuv does from 1.50 on."""
    version = subprocess.run([node, "-p", "process.versions.uv"], capture_output=True, text=True,
                             check=False).stdout
    return [int(number) for number in re.findall(r"\d+", version)[:2]] >= [1, 50]


# RINGROAD_NODE names another than the host's.
NODE = os.environ.get("RINGROAD_NODE") or shutil.which("node")
BY_IO_URING = NODE is not None and registers_by_io_uring(NODE)


@needs("node")
@pytest.mark.skipif(BY_IO_URING, reason="this Node registers with epoll by io_uring: the test after this one")
def test_node_with_http_of_both_versions_and_half_closed_sockets(host, eager):
    answers = []
    for name, environment in (("plain", None), ("preloaded", eager)):
        ports = [support.free_port() for _ in range(3)]
        with server(host, name, ["node", HERE / "talker.js", "serve", *ports], ports[-1],
                    environment) as child:
            said = json.loads(output(["node", HERE / "talker.js", "ask", *ports], environment))
            if environment:
                check_promoted(host, child.pid, 10_000_000)
                # What its collector of garbage puts off ends some time.
                check_idle(child.pid, ticks=1)
            answers.append(said)
        assert child.log.read_text() == ""
    assert len(answers[0]) == 271 and answers[0] == answers[1]


@pytest.mark.skipif(not BY_IO_URING, reason="needs a Node with libuv 1.50 or later: RINGROAD_NODE=/path/of/node")
@pytest.mark.parametrize("roles", ["rr", "rp", "pr"])
def test_node_that_registers_by_io_uring_is_served_over_tcp(host, eager, roles):
    answers = []
    for name, of_server, of_client in (("plain", None, None), ("preloaded", *(
            eager if role == "r" else None for role in roles))):
        ports = [support.free_port() for _ in range(3)]
        with server(host, name, [NODE, HERE / "talker.js", "serve", *ports], ports[-1],
                    of_server) as child:
            answers.append(json.loads(output([NODE, HERE / "talker.js", "ask", *ports], of_client)))
            if of_server:
                assert not host.on_channel(child.pid)
    assert answers[0] == answers[1]


@needs_grpc
@pytest.mark.parametrize("strategy", ["epoll1", "poll"])
def test_grpc_with_streams_in_both_directions(host, eager, strategy):
    answers = []
    for name, environment in (("plain", {}), ("preloaded", eager)):
        port = support.free_port()
        chosen = {**environment, "GRPC_POLL_STRATEGY": strategy}
        command = ["/usr/bin/python3", "-I", HERE / "grpc_talker.py"]
        with server(host, name, [*command, "serve", port], port, chosen) as child:
            answers.append(json.loads(output([*command, "ask", port], chosen)))
            if environment:
                check_promoted(host, child.pid, 50_000_000)
                check_idle(child.pid, ticks=1)
    assert answers[0] == answers[1] and answers[0][-2] == ["DEADLINE_EXCEEDED", "Deadline Exceeded"]
