"""Real servers over RDMA, run inside the virtual machine by boots.py: what they answer is what they
answer over TCP.

   redis-cli, curl, wrk, iperf3 ── 10.9.0.1 rxe0 ═══ veth ═══ rxe1 10.9.1.1 ── redis-server, nginx, iperf3
"""

import hashlib
import json
import subprocess

import pytest

from integration.systems import raft_stores

from .. import support
from .faults import CLIENT
from .one_host import ADDRESS, NETWORK
from ..test_programs import AT_ONCE, check_promoted, cut_short_by_iperf3, needs, output, server

COMMANDS = 2000
LONGEST = 4000
FILE_BYTES = 3_000_000
TCP, RDMA = "tcp", "rdma"


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.fixture(name="preloads")
def fixture_preloads(host):
    """What is preloaded for each carrier."""
    policy = host.policy("programs", ["1-65535"], via="rdma", subnet=NETWORK,
                         **AT_ONCE | {"wait": '"20s"'})
    return {TCP: None, RDMA: host.preload(policy)}


@needs("redis-server", "redis-cli")
def test_redis_with_pipelining(host, preloads):
    commands = "".join(
        f"SET key:{number} {'x' * (number * 37 % LONGEST + 1)}\r\nLPUSH list:{number % 7} {number}\r\n"
        for number in range(COMMANDS))
    answers = {}
    for carrier, preload in preloads.items():
        port = support.free_port(ADDRESS)
        (host.directory / carrier).mkdir()
        with server(host, f"redis-{carrier}", [
                "redis-server", "--port", port, "--bind", ADDRESS, "--save", "", "--dir",
                host.directory / carrier, "--protected-mode", "no", "--enable-debug-command", "yes"],
                port, preload) as child:
            ask = ["redis-cli", "-h", ADDRESS, "-p", str(port)]
            done = subprocess.run([*ask, "--pipe"], input=commands, capture_output=True, text=True,
                                  check=False, env={**support.os.environ, **(preload or {})},
                                  timeout=support.ANSWER_S)
            assert f"errors: 0, replies: {2 * COMMANDS}" in done.stdout, done
            answers[carrier] = [output([*ask, *words], preload) for words in (
                ["debug", "digest"], ["lrange", "list:3", "0", "-1"], ["get", "key:108"])]
            if carrier == RDMA:
                check_promoted(host, child.pid, len(commands))
    assert answers[RDMA] == answers[TCP]


@needs("nginx", "curl", "wrk")
def test_nginx_with_files_and_many_requests(host, preloads):
    data = bytes(index * 31 % 251 for index in range(FILE_BYTES))
    (host.directory / "big").write_bytes(data)
    host.directory.chmod(0o755)
    for carrier, preload in preloads.items():
        port = support.free_port(ADDRESS)
        config = host.directory / f"{carrier}.conf"
        config.write_text(f"daemon off; master_process off; pid {host.directory}/{carrier}.pid;\n"
                          f"error_log stderr; events {{}}\n"
                          f"http {{ access_log off; sendfile on;\n"
                          f"  server {{ listen {ADDRESS}:{port}; root {host.directory}; }} }}\n")
        with server(host, f"nginx-{carrier}", ["nginx", "-c", config], port, preload) as child:
            got = output(["curl", "-s", f"http://{ADDRESS}:{port}/big"], preload)
            assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
            text = output(["wrk", "-t", 1, "-c", 4, "-d", "1s", f"http://{ADDRESS}:{port}/{carrier}.conf"],
                          preload)
            assert b"Socket errors" not in text and b"Non-2xx" not in text, text
            if carrier == RDMA:
                check_promoted(host, child.pid, FILE_BYTES)


@needs("iperf3")
@pytest.mark.parametrize("words", [("-P", "2"), ("-R",), ("-Z",)], ids=" ".join)
def test_iperf3(host, preloads, words):
    port = support.free_port(ADDRESS)
    with server(host, "iperf3", ["iperf3", "-s", "-B", ADDRESS, "-p", port], port,
                preloads[RDMA]) as child:
        report = json.loads(output(["iperf3", "-J", "-c", ADDRESS, "-p", port, "-t", 1, *words],
                                   preloads[RDMA]))
        assert "error" not in report, report["error"]
        end = report["end"]
        assert 0 < end["sum_received"]["bytes"] <= end["sum_sent"]["bytes"] + cut_short_by_iperf3(words)
        check_promoted(host, child.pid, end["sum_received"]["bytes"] // 2)


@raft_stores.needs_program
def test_stores_with_tikvs_transport(host):
    """Between all three the way is over the cable: store 2 reaches store 3 as store 1 does."""
    policy = host.policy("raft", ["1-65535"], via="rdma", subnet=NETWORK,
                         promote_after="{ messages = 1 }")
    addresses = [f"{address}:{support.free_port(address)}" for address in (CLIENT, ADDRESS, ADDRESS)]
    # An emulated machine keeps nobody's time: TiKV's own keepalive.
    preload = host.preload(policy) | {"RAFT_KEEPALIVE_MS": "10000"}
    with raft_stores.Stores(host, addresses, preload) as stores:
        measured = raft_stores.alternate(stores, RDMA, rounds=1, seconds=2, at_once=4, size=512)
        stores.check_logs(sum(report["commands"] for reports in measured.values()
                              for report in reports))
