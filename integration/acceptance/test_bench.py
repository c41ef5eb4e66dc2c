"""`ringroad bench oltp`, for real but short, on this machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from integration.bench import oltp

from . import sshd, support

COMMAND = support.BUILD / "bin" / "ringroad"
SHORT = ("--workloads", "point_select", "--threading", "connection", "--seconds", "1")
pytestmark = support.needs_mariadb
# In place of the command: the same program with what a test changes in it first.
CHANGED = """
import sys
from integration.bench import carriers, oltp
{}
sys.exit(oltp.main(sys.argv[1:]))
"""


@pytest.fixture(name="environment", scope="module")
def fixture_environment():
    support.prepared_data()
    return {**os.environ, oltp.TEMPLATE: str(support.prepared_data().parent)}


def bench(out, environment, *words, carriers="tcp,shm", change=None):
    program = [COMMAND, "bench", "oltp"]
    if change:
        program = [sys.executable, "-c", CHANGED.format(change), "--ringroad", COMMAND]
    return subprocess.run([*program, *SHORT, "--carriers", carriers, "--out", out, *words],
                          capture_output=True, text=True, check=False, env=environment, cwd=support.ROOT)


def rows(out):
    return [row for table in json.loads((out / "report.json").read_text())["tables"]
            for row in table["rows"]]


def test_tcp_and_shared_memory_are_measured_in_turns(tmp_path, environment):
    done = bench(tmp_path, environment, "--threads", "1,4", "--rounds", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path)
    assert [(row["key"]["threads"], row["carrier"], row["rounds"]) for row in found] == [
        (1, "tcp", 2), (1, "shm", 2), (4, "tcp", 2), (4, "shm", 2)]
    for row in found:
        figures = row["figures"]
        assert figures["tps"]["min"] > 0 < figures["server_cpu_us_per_query"]["median"]
        assert figures["p50_ms"]["median"] <= figures["p95_ms"]["median"] \
            <= figures["p99_ms"]["median"]
        assert figures["switches_per_query"]["median"] > 0
        assert ("channel_percent" in figures) == (row["carrier"] == "shm")
    assert found[1]["figures"]["channel_percent"]["min"] >= 99
    assert len(found[1]["figures"]["tps"]["ratio"]["values"]) == 2
    cells = [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text().splitlines()]
    firsts = [cell["key"]["carrier"] for cell in cells[::2]]
    assert set(firsts) == {"tcp", "shm"}
    assert (tmp_path / "oltp-connection-point_select.png").stat().st_size > 1000
    assert "oltp_point_select, a thread for each connection" in (tmp_path / "report.md").read_text()


def test_a_bench_that_is_killed_leaves_nothing_and_goes_on(tmp_path, environment):
    words = ("--threads", "1", "--rounds", "3")
    with subprocess.Popen([COMMAND, "bench", "oltp", *SHORT, "--carriers", "tcp,shm", "--out",
                           tmp_path, *words], stdout=subprocess.PIPE, text=True,
                          env=environment) as running:
        line = next(line for line in running.stdout if "round 1" in line)
        assert "FAILED" not in line
        agents = support.children(running.pid)
        servers = [pid for agent in agents for pid in support.children(agent)]
        assert len(agents) == 2 and servers
        running.send_signal(signal.SIGKILL)
    support.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in agents + servers),
                     "the agents and servers to end")
    kept = (tmp_path / "cells.jsonl").read_text()
    assert kept.count("\n") >= 1
    done = bench(tmp_path, environment, *words)
    assert done.returncode == 0 and "goes on in" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "cells.jsonl").read_text().startswith(kept)
    assert [row["rounds"] for row in rows(tmp_path)] == [3, 3]


# A preloaded library that does one thing to MariaDB before its first word, or when it listens.
RIVAL = """
class Bad(carriers.Rsockets):
    def obstacle(self, place):
        return ""
    def trouble(self, place):
        return ""
    def environment(self, place, role, ports):
        return {{"LD_PRELOAD": "{}"}} if role == "server" else {{}}
carriers.ALL = tuple(Bad() if carrier.name == "rsockets" else carrier for carrier in carriers.ALL)
oltp.START_S = 4
"""
HANGS = "__attribute__((constructor)) static void start(void) { for (;;) pause(); }"
CRASHES = "int listen(int fd, int backlog) { abort(); }"


@pytest.mark.parametrize("source, said", [
    (HANGS, r"not within 4 s.*1 thread state S in system call 34 \(.*pause < "),
    (CRASHES, r"the server ended with SIGABRT.*got signal 6.*rival.so")])
def test_a_rival_that_hangs_or_crashes_has_its_row_with_the_evidence(tmp_path, environment, source,
                                                                    said):
    library = tmp_path / "rival.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], check=True, text=True,
                   input=f"#include <stdlib.h>\n#include <unistd.h>\n{source}\n")
    done = bench(tmp_path / "out", environment, "--threads", "1", "--rounds", "1",
                 carriers="tcp,rsockets", change=RIVAL.format(library))
    assert done.returncode == 0, done.stdout + done.stderr
    tcp, rival = rows(tmp_path / "out")
    assert tcp["rounds"] == 1 and not tcp["failed"]
    assert rival["rounds"] == 0 and rival["failed"][0].startswith("rsockets did not start")
    assert re.search(said, rival["failed"][0], re.DOTALL), rival["failed"][0]


def test_a_ringroad_that_does_nothing_fails(tmp_path, environment):
    """What was to go over the channel and did not is no figure of the channel's."""
    done = bench(tmp_path, environment, "--threads", "1", "--rounds", "1",
                 change="carriers.Ringroad.environment = lambda *_: {}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the library is not active" in rows(tmp_path)[1]["failed"][0]


@pytest.mark.skipif(bool(sshd.obstacle()), reason=sshd.obstacle())
def test_hosts_that_are_reached_by_ssh_are_measured_in_the_same_way(tmp_path, environment):
    with sshd.Sshd(tmp_path / "sshd") as server:
        end = (f'ssh = "root@127.0.0.1"\nssh_options = {json.dumps(server.options)}\n'
               f'address = "127.0.0.1"\nringroad = "{COMMAND}"\n')
        inventory = tmp_path / "hosts.toml"
        inventory.write_text(f"[server]\n{end}\n[client]\n{end}")
        done = bench(tmp_path / "out", environment, "--threads", "2", "--rounds", "1",
                     "--inventory", inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["rounds"] for row in rows(tmp_path / "out")] == [1, 1]


def test_missing_programs_are_named_with_what_installs_them(tmp_path, environment):
    (tmp_path / "bin").mkdir()
    for name in ("sh", "env"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    done = bench(tmp_path / "out", {**environment, "PATH": str(tmp_path / "bin")},
                 change="import integration.bench.probe; "
                        "oltp.Oltp.packages = {'server': {'pigeon': 'pigeons'}, 'client': {}}")
    assert done.returncode == 2
    assert "apt-get install --no-install-recommends pigeons" in done.stderr


@pytest.mark.parametrize("words, said", [
    (("--workloads", "point_select,no_such"), 'no "no_such"; there are point_select, read_only'),
    (("--threads", "4,0"), "0 is not positive"),
    (("--threading", "green"), 'no "green"; there are connection, pool'),
])
def test_wrong_arguments_are_named(tmp_path, words, said):
    done = subprocess.run([COMMAND, "bench", "oltp", "--out", tmp_path, *words],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["oltp", "net", "redis", "model", "accept"])
def test_the_help_has_the_options_that_there_are(name):
    def options_of(text):
        return set(re.findall(r"--[a-z][\w-]*", text))
    told = options_of(subprocess.run([COMMAND, "bench", name, "--help"], check=True, text=True,
                                     capture_output=True).stdout.partition("Options:")[2]
                      .partition("\n\n")[0])
    taken = options_of(subprocess.run(
        [sys.executable, "-c",
         f"from integration.bench import arguments\narguments.parser_of('{name}').print_help()"],
        cwd=support.ROOT, check=True, text=True, capture_output=True).stdout)
    assert told - {"--help"} == taken - {"--ringroad"}
