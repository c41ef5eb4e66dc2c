"""`ringroad ab` alternates a database's streams under one sysbench run, and says what it measured.

     sysbench ══ 127.0.0.1 ══ mariadbd        both preloaded; `ringroad ab` moves the server's streams
"""

import json
import os
import signal
import subprocess

import pytest

from . import support
from .test_sysbench import SEED, load_for

pytestmark = support.needs_mariadb
THREADS = 4


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.fixture(name="preload")
def fixture_preload(host):
    return host.preload(host.policy("ab", ["1-65535"], promote_after="{ messages = 4 }"))


@pytest.fixture(name="server")
def fixture_server(host, preload):
    with host.server("server", support.prepared_data(), preload) as server:
        yield server


def load(server, preload, seconds=0):
    """The words of a sysbench run that is preloaded by itself, and reports every second."""
    return ["env", *(f"{name}={value}" for name, value in preload.items()),
            *load_for(server).command("oltp_point_select", THREADS, SEED, seconds,
                                      more=["--report-interval=1"])]


def command(host, *words):
    return [str(host.tool.command), "ab", "--directory", str(host.runtime), *map(str, words)]


def test_each_round_is_a_pair_whose_bytes_went_where_it_says(host, server, preload, tmp_path):
    figures = tmp_path / "ab.json"
    done = subprocess.run(
        command(host, server.pid, "--period", "2s", "--rounds", 2, "--warm-up", "1500ms", "--json",
                figures, "--", *load(server, preload)),
        capture_output=True, text=True, check=False, timeout=support.ANSWER_S)
    assert done.returncode == 0, done
    told = json.loads(figures.read_text())
    assert told["problem"] == ""
    assert [(phase["round"], phase["carrier"]) for phase in told["phases"]] == [
        (1, "tcp"), (1, "channel"), (2, "channel"), (2, "tcp")]
    for phase in told["phases"]:
        assert phase["streams_elsewhere"] == 0 and phase["errors_per_s"] == 0, phase
        # Bytes that were under way when the streams moved are few.
        share = phase["channel_share"]
        assert share > 0.99 if phase["carrier"] == "channel" else share < 0.01, phase
        for measure in ("messages_per_s", "cpu_us_per_message", "tps", "latency_ms"):
            assert phase[measure] > 0, (measure, phase)
        # A transaction is one message, which the server receives in one or two calls.
        assert 0.2 < phase["tps"] / phase["messages_per_s"] < 2, phase
        assert phase["move_ms"] < 1000, phase
    for measure in ("tps", "latency_ms", "messages_per_s", "cpu_us_per_message"):
        summary = told["summary"][measure]
        assert summary["pairs"] == 2 and summary["low"] <= summary["ratio"] <= summary["high"]
    assert "Threads started!" in done.stdout, "what the load says is passed on"
    assert "\nMEASURE " in done.stdout and "transactions/s" in done.stdout
    assert host.ss(server.pid)["operator"] == "auto"


@pytest.mark.parametrize("how", ["SIGINT", "SIGHUP", "SIGPIPE"])
def test_it_sets_back_what_was_set_before_also_when_it_is_interrupted(host, server, preload, how):
    subprocess.run([host.tool.command, "set", "--directory", host.runtime, str(server.pid), "tcp"],
                   check=True, stdout=subprocess.DEVNULL)
    with subprocess.Popen(command(host, server.pid, "--period", "30s", "--warm-up", "0s", "--",
                                  *load(server, preload)),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            support.wait_for(lambda: len(host.streams(server.pid)) == THREADS, "the load to connect")
            if how == "SIGPIPE":
                run.stdout.close()  # as `ringroad ab ... | head -1`: the load's next line cannot be passed on
                run.wait(timeout=support.ANSWER_S)
                run.stdout = None
            else:
                os.kill(run.pid, signal.Signals[how])
            output, errors = run.communicate(timeout=support.ANSWER_S)
        finally:
            run.kill()
    assert run.returncode == 1 and "interrupted" in errors, (output, errors)
    assert host.ss(server.pid)["operator"] == "tcp"
    support.wait_for(lambda: not host.streams(server.pid), "the load to be gone")


def test_a_load_that_ends_too_early_is_told_with_what_was_measured(host, server, preload):
    done = subprocess.run(
        command(host, server.pid, "--period", "1s", "--rounds", 20, "--warm-up", "0s", "--",
                *load(server, preload, seconds=4)),
        capture_output=True, text=True, check=False, timeout=support.ANSWER_S)
    assert done.returncode == 1 and "the load has ended" in done.stderr, done
    assert "ROUND  CARRIER" in done.stdout and "messages/s" in done.stdout
    assert host.ss(server.pid)["operator"] == "auto"


def test_a_process_that_cannot_be_set_back_is_named(host, server, preload):
    with subprocess.Popen(command(host, server.pid, "--period", "30s", "--warm-up", "0s", "--",
                                  *load(server, preload)),
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        try:
            support.wait_for(lambda: host.ss(server.pid)["operator"] == "tcp", "the first phase")
            support.stop(server.pid)
            os.kill(run.pid, signal.SIGINT)
            _, errors = run.communicate(timeout=support.ANSWER_S)
        finally:
            os.kill(server.pid, signal.SIGCONT)
            run.kill()
    assert f"process {server.pid} keeps its mode: it does not answer" in errors, errors


def test_phases_in_which_nothing_was_received_are_told(host, server):
    done = subprocess.run(
        command(host, server.pid, "--period", "100ms", "--rounds", 1, "--warm-up", "0s", "--",
                "sleep", support.ANSWER_S),
        capture_output=True, text=True, check=False, timeout=support.ANSWER_S)
    assert done.returncode == 0 and "In 2 phases the processes received nothing" in done.stdout, done


def test_wrong_words_start_nothing(host, server, preload, tmp_path):
    ran = tmp_path / "ran"
    for words in ([server.pid], ["--", "touch", ran], [os.getpid(), "--", "touch", ran],
                  [server.pid, "--rounds", 21, "--", "touch", ran],
                  [server.pid, "--period", "0", "--", "touch", ran],
                  [server.pid, "--period", "5x", "--", "touch", ran],
                  [server.pid, "--", "/no/such/load"]):
        done = subprocess.run(command(host, *words), capture_output=True, text=True, check=False,
                              timeout=support.ANSWER_S)
        assert done.returncode == 2 and done.stderr, (words, done)
    assert not ran.exists()
