"""Which phases are believed. Each record begins as one that was really measured."""

import copy
import json
from pathlib import Path

import pytest

from oltp import phase

RECORDED = json.loads((Path(__file__).parent / "testdata" / "oltp-native-a-a.json").read_text())
THREADS = RECORDED["parameters"]["threads"]


@pytest.fixture
def tcp():
    return copy.deepcopy(RECORDED["workloads"][0]["rounds"][0]["tcp"])


@pytest.fixture(params=["rdma", "shm"])
def channel(request, tcp):
    """The recorded phase as it reads when every stream is on the channel."""
    stream = {"local": "10.9.1.1:23306", "remote": "10.9.0.1:40000", "state": "ON_CHANNEL",
              "carrier": request.param, "device": "", "reason": "none", "peer_reason": "none"}
    streams = [dict(stream) for _ in range(THREADS)]
    status = tcp["server_status"]
    moved = status["Bytes_sent"] + status["Bytes_received"]
    return tcp | {"carrier": request.param, "label": request.param, "server_known": True,
                  "client_known": True, "client_streams": streams,
                  "server_streams": copy.deepcopy(streams),
                  "bytes": {"tcp": 2000, "channel": moved},
                  "rdma_packets": 4 * tcp["queries"] if request.param == "rdma" else 0}


def found(record, idle_packets_per_s=0.0):
    return "\n".join(phase.problems(record, THREADS, idle_packets_per_s))


def test_a_plain_phase_is_believed(tcp):
    assert found(tcp) == ""


def test_a_phase_on_the_channel_is_believed(channel):
    assert found(channel) == ""


@pytest.mark.parametrize("change, words", [
    ({"exit_status": 1}, "ended with status 1"),
    ({"fatal": ["FATAL: lost"]}, "FATAL: lost"),
    ({"reconnects": 2}, "reconnected 2 times"),
    ({"errors": 3}, "3 errors"),
])
def test_what_sysbench_reports_is_a_problem_on_either_carrier(tcp, channel, change, words):
    assert words in found(tcp | change)
    assert words in found(channel | change)


def test_deadlocks_that_the_server_counted_too_are_not_a_problem(tcp):
    tcp["errors"] = 3
    tcp["server_status"]["Innodb_deadlocks"] = 3
    assert found(tcp) == ""
    tcp["errors"] = 4
    assert "explain 3 of them" in found(tcp)


@pytest.mark.parametrize("change", [{"server_known": True}, {"client_known": True},
                                    {"bytes": {"tcp": 0, "channel": 1}}])
def test_ringroad_must_be_absent_from_a_phase_over_tcp(tcp, change):
    assert "must be without it" in found(tcp | change)


def test_packets_on_rdma_devices_during_tcp_are_a_problem_beyond_the_background(tcp):
    tcp["rdma_packets"] = tcp["queries"]
    assert "packets crossed the RDMA devices" in found(tcp)
    assert found(tcp, idle_packets_per_s=tcp["queries"] / tcp["elapsed_s"]) == ""


@pytest.mark.parametrize("end", ["client", "server"])
def test_a_stream_left_on_tcp_is_a_problem_with_its_reason(channel, end):
    channel[f"{end}_streams"][1].update(state="ON_TCP", carrier="tcp", reason="memlock")
    assert f"{THREADS - 1} of {THREADS} {end} streams" in found(channel)
    assert "1 x ON_TCP (memlock; peer none)" in found(channel)


def test_a_client_without_ringroad_is_a_problem(channel):
    assert f"0 of {THREADS} client streams" in found(channel | {"client_streams": []})


def test_a_server_without_ringroad_is_a_problem(channel):
    assert "not active in it" in found(channel | {"server_known": False})


def test_the_wrong_channel_is_a_problem(channel):
    other = {"rdma": "shm", "shm": "rdma"}[channel["carrier"]]
    for stream in channel["client_streams"]:
        stream["carrier"] = other
    assert f"0 of {THREADS} client streams" in found(channel)


def test_bytes_are_held_against_the_servers_own_count(channel):
    channel["bytes"]["channel"] = int(0.9 * channel["bytes"]["channel"])
    assert "but MariaDB counted" in found(channel)


def test_rdma_without_packets_is_a_problem(channel):
    channel["rdma_packets"] = 0
    assert ("counted 0 packets" in found(channel)) == (channel["carrier"] == "rdma")


def test_a_refused_policy_is_a_problem(channel):
    assert "without its policy" in found(channel | {"policy_problem": "line 3"})


def test_the_line_of_progress_names_the_evidence(tcp, channel):
    assert "tps" in phase.line(tcp) and "streams" not in phase.line(tcp)
    assert f"[{THREADS} streams, " in phase.line(channel)
    assert f"% of bytes on {channel['carrier']}" in phase.line(channel)
