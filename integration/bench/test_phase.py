"""Which phases are believed. Each record begins as one that was really measured."""

import copy
import json
from pathlib import Path

import pytest

from integration.bench import phase
from integration.lib import ringroad

RECORDED = json.loads((Path(__file__).parent / "testdata" / "phase-native-a-a.json").read_text())
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
    counted = {"tcp": 2000, "channel": moved}
    return tcp | {"carrier": request.param, "label": request.param, "server_known": True,
                  "client_known": True, "client_streams": streams,
                  "server_streams": copy.deepcopy(streams),
                  "bytes": {"tcp": 0, "channel": moved},
                  "whole": tcp["whole"] | {"bytes": counted},
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


@pytest.mark.parametrize("change", [
    {"server_known": True}, {"client_known": True},
    {"whole": {"bytes": {"tcp": 0, "channel": 1}, "server_status": {}}}])
def test_ringroad_must_be_absent_from_a_phase_over_tcp(tcp, change):
    assert "must be without it" in found(tcp | change)


def test_packets_on_rdma_devices_during_tcp_are_a_problem_beyond_the_background(tcp):
    tcp["rdma_packets"] = tcp["queries"]
    assert "packets crossed the RDMA devices" in found(tcp)
    assert found(tcp, idle_packets_per_s=tcp["queries"] / tcp["elapsed_s"]) == ""


def test_a_unix_socket_uses_no_rdma_device_either(tcp):
    assert found(tcp | {"carrier": "unix"}) == ""
    assert "packets crossed" in found(tcp | {"carrier": "unix", "rdma_packets": tcp["queries"]})


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


@pytest.mark.parametrize("share, believed", [(0.995, True), (0.98, False), (0.9, False)])
def test_bytes_are_held_against_the_servers_own_count(channel, share, believed):
    channel["bytes"]["channel"] = int(share * channel["bytes"]["channel"])
    assert ("but the server counted" not in found(channel)) == believed


def test_bytes_on_tcp_before_the_window_are_no_problem(channel):
    whole = channel["whole"]
    whole["bytes"]["tcp"] = whole["bytes"]["channel"]
    whole["server_status"] = {name: 2 * count for name, count in channel["server_status"].items()}
    assert found(channel) == ""


def test_a_window_that_began_before_all_streams_were_promoted_is_a_problem(channel):
    channel["set_up"] = {"promotion_s": None, "seconds": 12.04, "statements": 900}
    assert f"not all on {channel['carrier']} 12.0 s after they were connected" in found(channel)


def test_rdma_without_packets_is_a_problem(channel):
    channel["rdma_packets"] = 0
    assert ("counted 0 packets" in found(channel)) == (channel["carrier"] == "rdma")


def test_a_refused_policy_is_a_problem(channel):
    assert "without its policy" in found(channel | {"policy_problem": "line 3"})


def test_a_rival_is_believed_by_the_devices_alone(tcp):
    rival = tcp | {"carrier": "rsockets", "rdma_packets": tcp["queries"]}
    assert found(rival) == ""
    assert "RDMA devices counted 0 packets" in found(rival | {"rdma_packets": 0})
    assert "Ringroad was in a process" in found(rival | {"server_known": True})


def test_what_others_did_is_what_neither_end_of_the_load_did():
    spent = {"machine_s": 3.0, "cpu_s": 1.0, "processors_s": 4.0}
    assert phase.others_percent(spent, 0.0) == 50
    assert phase.others_percent(spent, 1.5) == 12.5
    assert phase.others_percent(spent, 2.5) == 0  # the clock's ticks


def test_the_line_of_progress_names_the_evidence(tcp, channel):
    assert "tps" in phase.line(tcp) and "streams" not in phase.line(tcp)
    channel["set_up"]["promotion_s"] = 0.25
    assert f"[{THREADS} streams in 0.25 s, " in phase.line(channel)
    assert f"% of bytes on {channel['carrier']}" in phase.line(channel)
    channel["set_up"]["promotion_s"] = None
    assert f"[{THREADS} streams, " in phase.line(channel)


# --- when the window begins ---------------------------------------------------------------------

UP = {"role": "connect", "state": "ON_CHANNEL", "carrier": "rdma"}
OVER = {"role": "connect", "state": "CLOSED", "carrier": "tcp", "reason": "closing"}
PENDING = {"role": "connect", "state": "SWITCHING", "carrier": "tcp", "reason": "pending"}


def seen(client, server):
    """A look at both ends."""
    return [{"known": True, "streams": phase.open_streams(streams)}
            for streams in (listed(client), listed(server))]


def listed(streams):
    return ringroad.Snapshot({1: {"pid": 1, "streams": streams}}).streams(1)


@pytest.mark.parametrize("client, server, there", [
    ([UP, UP], [UP, UP], True),
    ([OVER, UP, UP], [UP, OVER, UP, OVER], True),
    ([UP, UP], [UP, PENDING], False),
    ([UP, PENDING], [UP, UP], False),
    ([UP, OVER], [UP, UP], False),
    ([UP, UP], [], False),
    ([UP, dict(UP, carrier="shm")], [UP, UP], False)])
def test_streams_are_waited_for_at_both_ends_but_not_those_that_are_over(client, server, there):
    assert phase.wanted_streams_are_there(seen(client, server), "rdma", 2) is there


def test_over_tcp_there_is_nothing_to_wait_for():
    assert phase.wanted_streams_are_there(seen([], []), "tcp", 2)


def test_a_stream_that_is_over_is_not_listed_as_one_on_tcp(channel):
    every = [dict(stream) for stream in channel["client_streams"]]
    every.append(dict(every[0], state="CLOSED", carrier="tcp", reason="closing"))
    assert phase.open_streams(every) == channel["client_streams"]


LOOK_S = 0.25


class Timeline:
    """A side whose looks take time, in place of the real clock: the client's end is asked first."""

    def __init__(self, carrier, looks, monkeypatch, ends_at=1e9):
        self.now = 100.0
        self.ends_at = ends_at
        self._looks = iter(looks)
        self._look = None
        server = type("ServerEnd", (), {"look": lambda _: self._look[1]})()
        self.side = phase.Side("label", carrier, server, self, 0.6)
        monkeypatch.setattr(phase.time, "monotonic", lambda: self.now)

    def look(self):
        self.now += LOOK_S
        self._look = next(self._looks, self._look)
        return self._look[0]

    def ends_within(self, seconds):
        self.now += seconds
        return self.now >= self.ends_at

    def warm_up(self):
        return phase.warm_up(self.side, 1)


def test_the_warm_up_lasts_the_same_over_tcp_as_over_a_channel_that_comes_soon(monkeypatch):
    over_tcp = Timeline("tcp", [seen([], [])], monkeypatch).warm_up()
    over_rdma = Timeline("rdma", [seen([PENDING], [PENDING]), seen([UP], [UP])],
                         monkeypatch).warm_up()
    assert over_rdma["seconds"] == over_tcp["seconds"] == pytest.approx(0.6)
    assert over_rdma["promotion_s"] == pytest.approx(2 * LOOK_S + phase.LOOK_EVERY_S)


@pytest.mark.parametrize("took, then", [(2.7, 2.7), (0.61, 0.61), (0.25, 0.6)])
def test_tcp_warms_up_as_long_as_the_channel_did_but_never_less_than_it_must(took, then):
    tcp, channel = (phase.Side(name, name, None, None, 0.6) for name in ("tcp", "rdma"))
    tcp.warm_up_s = 9.0
    phase.match_warm_up(tcp, channel, {"set_up": {"seconds": took}})
    assert (tcp.warm_up_s, channel.warm_up_s) == (then, 0.6)


def test_the_warm_up_goes_on_until_the_last_stream_is_promoted(monkeypatch):
    late = Timeline("rdma", [seen([PENDING], [PENDING])] * 9 + [seen([UP], [UP])],
                    monkeypatch).warm_up()
    assert late["promotion_s"] == late["seconds"] > 10 * LOOK_S


def test_a_promotion_that_never_comes_ends_the_warm_up_at_its_limit(monkeypatch):
    never = Timeline("rdma", [seen([PENDING], [PENDING])], monkeypatch).warm_up()
    assert never["promotion_s"] is None
    assert phase.PROMOTION_LIMIT_S <= never["seconds"] < phase.PROMOTION_LIMIT_S + 2 * LOOK_S


def test_a_process_without_ringroad_is_not_waited_for(monkeypatch):
    without = Timeline("rdma", [[{"known": False, "streams": []}, seen([], [])[1]]], monkeypatch)
    assert without.warm_up() == {"promotion_s": None, "seconds": pytest.approx(LOOK_S)}


def test_a_client_that_ends_ends_the_warm_up(monkeypatch):
    ended = Timeline("rdma", [seen([PENDING], [PENDING])], monkeypatch, ends_at=101.0).warm_up()
    assert ended["promotion_s"] is None and ended["seconds"] < 1.5
