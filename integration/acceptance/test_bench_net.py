"""`ringroad bench net` on this machine: TCP over loopback, shared memory, Unix sockets."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from integration.lib import processes

from . import support

LOAD = support.BUILD / "bin" / "ringroad-net-load"


def bench_of(name, out, *words, environment=None):
    return subprocess.run(
        [support.BUILD / "bin" / "ringroad", "bench", name, "--out", out, "--rounds", "1", *words],
        capture_output=True, text=True, check=False, timeout=processes.patient(2 * support.ANSWER_S),
        env={**os.environ, **(environment or {})})


def bench(out, *words, environment=None):
    return bench_of("net", out, *words, environment=environment)


def rows(out):
    """{(measure, connections, carrier): row of the report}"""
    return {(row["key"]["measure"], row["key"]["connections"], row["carrier"]): row
            for table in json.loads((out / "report.json").read_text())["tables"]
            for row in table["rows"]}


@pytest.mark.alone
def test_each_carrier_has_its_rows(tmp_path):
    done = bench(tmp_path / "out", "--measures", "pingpong-block,connections", "--sizes", "64",
                 "--connections", "2", "--carriers", "tcp,shm,unix,rsockets")
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path / "out")
    keys = [("pingpong", 1), ("pingpong", 2), ("connections", 1)]
    assert set(found) == {(*key, name) for key in keys for name in ("tcp", "shm", "unix", "rsockets")}
    for (measure, connections, name), row in found.items():
        if name == "rsockets" and row["failed"]:
            continue  # where there is no device
        assert row["failed"] == [] and row["rounds"] == 1, row
        figures = {name: figure["median"] for name, figure in row["figures"].items()}
        assert 0 < figures["p50_us"] <= figures["p99_us"]
        assert figures["client_cpu_us"] > 0 and figures["server_cpu_us"] > 0
        if measure == "pingpong":
            assert figures["p99_us"] <= figures["p999_us"]
        if name == "unix":
            # No connection through loopback's TCP is as quick to make.
            compared = row["figures"]["per_s" if measure == "connections" else "p50_us"]["ratio"]
            assert compared["median"] > 0 and (measure != "connections" or compared["median"] > 1)
    assert "p50 us: ratio" in done.stdout


def test_a_channel_that_is_not_there_is_a_failure_and_has_its_row(tmp_path):
    done = bench(tmp_path / "out", "--measures", "stream", "--carriers", "tcp,shm",
                 environment={"RINGROAD_DISABLE": "1"})
    assert done.returncode == 1, done.stdout + done.stderr
    found = rows(tmp_path / "out")
    assert found["stream", 1, "tcp"]["figures"]["mb_per_s"]["median"] > 0
    row = found["stream", 1, "shm"]
    assert row["figures"] == {} and "does not know the client" in row["failed"][0]
    assert "not measured [1]" in done.stdout


# In place of the command: the same program, with a preloaded library in rsockets' place.
RIVAL = """
import sys
from integration.bench import carriers, net
class Bad(carriers.Rsockets):
    def obstacle(self, place):
        return ""
    def trouble(self, place):
        return ""
    def environment(self, place, role, ports):
        return {"LD_PRELOAD": sys.argv[1]} if role == "server" else {}
carriers.ALL = tuple(Bad() if carrier.name == "rsockets" else carrier for carrier in carriers.ALL)
net.PATIENCE_S = 2
sys.exit(net.main(sys.argv[2:]))
"""
FAILING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
ssize_t recv(int fd, void* data, size_t n, int flags) {
  static int calls;
  ssize_t (*next)(int, void*, size_t, int);
  *(void**)&next = dlsym(RTLD_NEXT, "recv");
  if (++calls > 20) %s;
  return next(fd, data, n, flags);
}
"""


HUNG = r"said nothing for 2 s; .*the server: 1 thread state S in system call 34"


@pytest.mark.parametrize("measure, does, said", [
    ("pingpong-block", "abort()", r"recv: Connection reset by peer.*the server: it ended with status -6"),
    ("pingpong-block", "for (;;) pause()", HUNG), ("pingpong-epoll", "for (;;) pause()", HUNG)])
def test_a_rival_that_crashes_or_hangs_has_its_row_with_the_evidence(tmp_path, measure, does, said):
    library = tmp_path / "rival.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], check=True, text=True,
                   input=FAILING % does)
    done = subprocess.run(
        [sys.executable, "-c", RIVAL, library, "--ringroad",
         support.BUILD / "bin" / "ringroad", "--out", tmp_path / "out", "--measures",
         measure, "--sizes", "64", "--connections", "2", "--rounds", "1", "--carriers",
         "tcp,rsockets"], capture_output=True, text=True, check=False, timeout=support.ANSWER_S,
        cwd=support.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path / "out")
    assert found["pingpong", 1, "tcp"]["rounds"] == 1
    row = found["pingpong", 1, "rsockets"]
    assert row["rounds"] == 0 and re.search(said, row["failed"][0], re.DOTALL), row["failed"]


@pytest.mark.parametrize("words", [["--measures", "pings"], ["--sizes", "0"], ["--connections", "1"],
                                   ["--carriers", "shm"], ["--carriers", "tcp,pigeon"]])
def test_wrong_words_measure_nothing(tmp_path, words):
    done = bench(tmp_path / "out", *words)
    assert done.returncode == 2 and done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture(name="server")
def fixture_server(tmp_path):
    child = processes.Child([LOAD, "serve", f"unix:{tmp_path}/socket"], tmp_path / "server.log")
    processes.wait_until(lambda: "listening" in child.log.read_text(), 20, "the server", child)
    yield child
    assert child.stop() and child.status in (0, -signal.SIGKILL), child.status


@pytest.fixture(name="client")
def fixture_client(server, tmp_path):
    client = processes.Talker([LOAD, "ask", f"unix:{tmp_path}/socket", "3"], tmp_path / "client.log")
    assert client.line(20) == "connected"
    yield client
    client.end()


@pytest.mark.parametrize("run, operations, size", [
    ("pingpong block 64 50", 150, 64), ("pingpong epoll 300000 20", 60, 300000),
    ("stream block 65536 100", 100, 65536), ("queries block 64 20", 20, 64)])
def test_what_the_load_tells_of_a_run(client, run, operations, size):
    for _ in range(2):
        client.tell(run)
        told = json.loads(client.line(20))
        assert told["run"] == run and told["connections"] == 3
        assert told["operations"] == operations
        assert told["bytes_per_s"] == pytest.approx(operations * size / told["seconds"], rel=0.01)
        assert (told["latency_us"] is None) == run.startswith("stream")
        for end in ("client", "server"):
            assert told[end]["cpu_us_per_operation"] >= 0


def test_a_server_that_dies_ends_the_client(client, server):
    client.tell("pingpong epoll 64 100000000")
    server.kill()
    with pytest.raises(processes.ProcessError, match="status 1(.|\n)*ringroad-net-load: "):
        client.line(20)


def test_a_client_that_hangs_is_told_with_what_it_does(client, server):
    os.kill(server.pid, signal.SIGSTOP)
    client.tell("pingpong block 64 10")
    with pytest.raises(processes.ProcessError, match="said nothing for 0.5 s; 1 thread"):
        client.line(0.5)
    os.kill(server.pid, signal.SIGCONT)
    assert json.loads(client.line(20))["operations"] == 30
