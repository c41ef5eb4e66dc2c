"""`ringroad exporter`: what it tells is what the processes did, in a form that Prometheus takes.

     asker ══ 127.0.0.1 ══ echo server        talker.py, both preloaded
                  exporter ── 127.0.0.1 ── this test, curl, promtool, hostile clients
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager, ExitStack

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client import parser as prometheus

from . import support
from .test_live_switch import Pair, set_mode

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
# What Prometheus 2.42 sends.
PROMETHEUS_ACCEPTS = ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
                      "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None,
                                    reason="not installed: prometheus")


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.fixture(name="preload")
def fixture_preload(host):
    return host.preload(host.policy("metrics", ["1-65535"], promote_after="{ messages = 2 }"))


@contextmanager
def exporter(host, *words, listen="127.0.0.1:0"):
    """The exporter, listening; gives its process, its addresses are in `urls`."""
    process = subprocess.Popen(
        [host.tool.command, "exporter", "--listen", listen, "--directory", host.runtime,
         *map(str, words)], stderr=subprocess.PIPE, text=True)
    try:
        process.urls = []
        for _ in range(1 + list(words).count("--listen")):
            line = process.stderr.readline()
            assert "listening on http://" in line, line + process.stderr.read()
            process.urls.append(re.search(r"http://\S+", line)[0])
        process.url = process.urls[0]
        process.port = int(re.search(r":(\d+)/", process.url)[1])
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def scrape(url, accept="text/plain"):
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}),
                                timeout=support.ANSWER_S) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(text, parse=prometheus.text_string_to_metric_families):
    """Every sample as {(name, label pairs): value}; none may stand twice."""
    result = {}
    for family in parse(text):
        assert family.type != "unknown" and family.documentation, family
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in result, key
            result[key] = sample.value
    return result


def value(found, name, **labels):
    wanted = set(labels.items())
    matches = [number for (sample, pairs), number in found.items()
               if sample == name and wanted <= pairs]
    assert len(matches) == 1, (name, labels, matches)
    return matches[0]


def once(host, *words):
    return subprocess.run([host.tool.command, "exporter", "--once", "--directory", host.runtime,
                           *map(str, words)],
                          capture_output=True, text=True, check=True).stdout


def test_it_tells_what_ss_tells(host, preload):
    with Pair(preload, 3, host=host) as pair, exporter(host) as server:
        for asker in pair.askers:
            pair.say(asker, 3)
        found = samples(scrape(server.url)[1])
        for talker in (pair.server, pair.askers[1]):
            shown = host.ss(talker.pid)
            labels = {"pid": str(talker.pid), "program": shown["program"]}
            assert value(found, "ringroad_streams_opened_total", **labels) == shown["streams_opened"]
            assert (value(found, "ringroad_streams_promoted_total", **labels)
                    == shown["streams_promoted"] == len(shown["streams"]))
            assert value(found, "ringroad_streams", rule="metrics", carrier="shm",
                         **labels) == len(shown["streams"])
            assert value(found, "ringroad_streams", rule="metrics", carrier="tcp", **labels) == 0
            assert value(found, "ringroad_channels", **labels) == shown["channels"]["in_use"]
            assert value(found, "ringroad_policy_status", status="loaded", **labels) == 1
            assert value(found, "ringroad_operator_mode", mode="auto", **labels) == 1
            for carrier, counts in shown["totals"].items():
                for direction, short in (("transmit", "tx"), ("receive", "rx")):
                    for what in ("bytes", "messages"):
                        name = f"ringroad_stream_{direction}_{what}_total"
                        assert (value(found, name, carrier=carrier, **labels)
                                == counts[f"{short}_{what}"]), name
            assert shown["totals"]["channel"]["tx_bytes"] > 0
        assert value(found, "ringroad_exporter_processes") == 4
        set_mode(host, pair.server.pid, "tcp")
        found = samples(scrape(server.url)[1])
        pid = str(pair.server.pid)
        assert value(found, "ringroad_streams_on_tcp", reason="operator", pid=pid) == 3
        assert value(found, "ringroad_streams", carrier="tcp", pid=pid) == 3
        assert value(found, "ringroad_operator_mode", mode="tcp", pid=pid) == 1


def test_counters_do_not_fall_when_streams_close_and_vanish_with_the_process(host, preload):
    with Pair(preload, 2, host=host) as pair, exporter(host) as server:
        before = samples(scrape(server.url)[1])
        asker = pair.askers.pop()
        assert asker.finish() == 0
        support.wait_for(lambda: len(host.streams(pair.server.pid)) == 1, "one stream")
        after = samples(scrape(server.url)[1])
        counters = [key for key in before if key[0].endswith("_total")
                    and ("pid", str(asker.pid)) not in key[1]]
        assert len(counters) > 50
        for key in counters:
            assert after[key] >= before[key], key
        pid = ("pid", str(asker.pid))
        assert any(pid in key[1] for key in before)
        assert not any(pid in key[1] for key in after)


@needs_promtool
def test_promtool_finds_nothing_to_complain_of(host, preload):
    with Pair(preload, 1, host=host), exporter(host) as server:
        kind, text = scrape(server.url)
        assert kind == TEXT
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True,
                              text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_open_metrics_is_for_a_client_that_accepts_it(host, preload):
    with Pair(preload, 1, host=host), exporter(host) as server:
        for accept in (PROMETHEUS_ACCEPTS, "application/openmetrics-text"):
            kind, text = scrape(server.url, accept)
            assert kind == OPENMETRICS
            found = samples(text, openmetrics.text_string_to_metric_families)
            assert text.endswith("\n# EOF\n")
            assert {name for name, _ in found} == {name for name, _ in samples(once(host))}
        for accept in ("text/plain", "*/*", "", "text/html", "application/openmetrics-text;q=0",
                       "application/openmetrics-text;version=7.0.0"):
            assert scrape(server.url, accept)[0] == TEXT, accept


def test_what_cannot_be_read_is_counted(host):
    (host.runtime / "4711").write_bytes(b"nonsense")
    (host.runtime / "4712").write_bytes(b"\0" * 8192)
    found = samples(once(host))
    assert value(found, "ringroad_exporter_unreadable_segments") == 2
    assert value(found, "ringroad_exporter_processes") == 0


def test_a_host_without_preloaded_processes_is_no_error(host):
    shutil.rmtree(host.runtime)
    found = samples(once(host))
    assert value(found, "ringroad_exporter_processes") == 0
    assert value(found, "ringroad_exporter_unreadable_segments") == 0


def test_processes_beyond_the_bound_are_counted_only(host, preload):
    with Pair(preload, 3, host=host):
        found = samples(once(host, "--max-processes", 2))
        assert value(found, "ringroad_exporter_processes") == 4
        assert value(found, "ringroad_exporter_processes_left_out") == 2
        assert len({key for key in found if key[0] == "ringroad_process_info"}) == 2


def test_a_stopped_process_is_told_about(host, preload):
    with Pair(preload, 1, host=host) as pair, exporter(host) as server:
        os.kill(pair.server.pid, signal.SIGSTOP)
        try:
            found = samples(scrape(server.url)[1])
        finally:
            os.kill(pair.server.pid, signal.SIGCONT)
        assert value(found, "ringroad_streams", pid=str(pair.server.pid), carrier="shm") == 1


# ---- HTTP


def ask(port, words, family=socket.AF_INET, host="127.0.0.1"):
    """Everything that the server answers to these bytes, until it closes."""
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(support.ANSWER_S)
        client.connect((host, port))
        client.sendall(words)
        answer = b""
        while True:
            try:
                part = client.recv(65536)
            except ConnectionResetError:
                return answer
            if not part:
                return answer
            answer += part


def test_it_listens_on_ipv6_and_on_several_addresses(host):
    with exporter(host, "--listen", "[::1]:0") as server:
        assert server.urls[1].startswith("http://[::1]:")
        for url in server.urls:
            assert "ringroad_exporter_processes 0" in scrape(url)[1]
    with exporter(host, listen=":0") as server:
        for address in ("127.0.0.1", "[::1]"):
            assert scrape(f"http://{address}:{server.port}/metrics")[0] == TEXT


@pytest.mark.parametrize("request_line, status", [
    (b"GET /metrics HTTP/1.1", 200), (b"GET /metrics?x=1 HTTP/1.0", 200),
    (b"HEAD /metrics HTTP/1.1", 200), (b"GET / HTTP/1.1", 200), (b"GET /x HTTP/1.1", 404),
    (b"GET /metrics/ HTTP/1.1", 404), (b"POST /metrics HTTP/1.1", 405),
    (b"GET " + b"/" * 9000 + b" HTTP/1.1", 431), (b"\x16\x03\x01\x02\x00\x01", 400)])
def test_requests_have_the_status_that_they_deserve(host, request_line, status):
    with exporter(host) as server:
        answer = ask(server.port, request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert int(answer.split()[1]) == status, answer[:200]
        head, _, body = answer.partition(b"\r\n\r\n")
        if request_line.startswith(b"HEAD"):
            assert body == b""
            assert int(re.search(rb"Content-Length: (\d+)", head)[1]) > 0
        else:
            assert int(re.search(rb"Content-Length: (\d+)", head)[1]) == len(body) > 0


def test_a_connection_is_kept_for_more_requests_also_when_they_come_at_once(host):
    with exporter(host) as server:
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert ask(server.port, 3 * request + last).count(b"HTTP/1.1 200 OK") == 4


def test_a_body_is_not_taken_for_a_request(host):
    with exporter(host) as server:
        inner = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = ask(server.port, b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                     % len(inner) + inner)
        assert answer.count(b"HTTP/1.1 ") <= 1 and b"404" not in answer


def test_a_client_that_connects_and_says_nothing_keeps_no_other_out(host):
    with exporter(host) as server, ExitStack() as idle:
        for number in range(500):
            client = idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: " if number % 2 else b"")
        assert scrape(server.url)[0] == TEXT
        assert support.descriptors(server.pid) < 100


def test_a_request_that_drips_in_is_cut_off(host):
    with exporter(host) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            began = time.monotonic()
            closed = False
            while not closed and time.monotonic() - began < support.ANSWER_S:
                client.settimeout(0.5)  # one byte each time that nothing is said
                try:
                    client.sendall(b"x")
                    closed = client.recv(1) == b""
                except TimeoutError:
                    pass
                except OSError:
                    closed = True
            assert closed
            assert time.monotonic() - began < 30


def test_a_client_that_does_not_read_the_answer_holds_up_no_other(host):
    with exporter(host) as server:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            slow.connect(("127.0.0.1", server.port))
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
            assert scrape(server.url)[0] == TEXT


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_with_status_zero(host, name):
    with exporter(host) as server, socket.create_connection(("127.0.0.1", server.port)):
        server.send_signal(getattr(signal, name))
        assert server.wait(10) == 0


@pytest.mark.parametrize("address, words", [
    ("127.0.0.1", "is no address and port"), ("127.0.0.1:99999", "is no address and port"),
    ("::1:9071", "is no address and port"), ("192.0.2.7:9071", "cannot listen on"),
    ("nosuchhost.invalid:9071", "cannot find")])
def test_an_address_that_it_cannot_have_is_named(host, address, words):
    done = subprocess.run([host.tool.command, "exporter", "--listen", address],
                          capture_output=True, text=True, check=False, timeout=support.ANSWER_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_a_port_that_is_taken_is_named(host):
    with exporter(host) as server:
        done = subprocess.run(
            [host.tool.command, "exporter", "--listen", f"127.0.0.1:{server.port}"],
            capture_output=True, text=True, check=False, timeout=support.ANSWER_S)
        assert done.returncode == 1 and "Address already in use" in done.stderr


def test_once_into_a_full_disk_fails():
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([support.BUILD / "bin" / "ringroad", "exporter", "--once"],
                              stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "cannot write" in done.stderr
