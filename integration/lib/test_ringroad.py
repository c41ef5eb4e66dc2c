"""The reader of `ringroad ss --json` and the writer of policies."""

import tomllib
from pathlib import Path

import pytest

from integration.lib import ringroad

SAMPLE = (Path(__file__).parent / "testdata" / "ringroad_ss.json").read_text()
SERVER, CLIENT = 4711, 4800


def test_totals_add_both_directions_of_each_carrier():
    snapshot = ringroad.Snapshot.parse(SAMPLE)
    assert snapshot.totals(SERVER) == {"tcp": 604 + 130, "channel": 812345 + 41234}


def test_streams_are_counted_by_their_carrier():
    streams = ringroad.Snapshot.parse(SAMPLE).streams(SERVER)
    assert len(streams) == 2
    assert ringroad.on_channel(streams, "rdma") == 1
    assert ringroad.on_channel(streams, "shm") == 0
    assert streams[1]["reason"] == "memlock"
    assert streams[1]["device"] == ""


def test_a_stream_that_left_its_channel_does_not_count():
    streams = [{"state": "RESUMING", "carrier": "rdma"}]
    assert ringroad.on_channel(streams, "rdma") == 0


def test_a_refused_policy_is_reported():
    snapshot = ringroad.Snapshot.parse(SAMPLE)
    assert snapshot.policy_problem(SERVER) == ""
    assert "no such key" in snapshot.policy_problem(CLIENT)


def test_an_unknown_process_and_missing_fields_read_as_nothing():
    snapshot = ringroad.Snapshot.parse('{"processes": [{"pid": 5}]}')
    assert snapshot.knows(5) and not snapshot.knows(6)
    for pid in (5, 6):
        assert snapshot.streams(pid) == []
        assert snapshot.totals(pid) == {"tcp": 0, "channel": 0}


@pytest.mark.parametrize("text", ["", "[]", "ringroad: no such command"])
def test_anything_but_an_object_is_refused(text):
    with pytest.raises(ringroad.RingroadError, match="no JSON object"):
        ringroad.Snapshot.parse(text)


def test_listeners_are_no_streams():
    snapshot = ringroad.Snapshot.parse(
        '{"processes": [{"pid": 5, "streams": [{"role": "listen", "state": "ON_TCP"}]}]}')
    assert snapshot.streams(5) == []


def test_difference_is_by_carrier():
    assert ringroad.difference({"tcp": 5, "channel": 9}, {"tcp": 5, "channel": 2}) == \
        {"tcp": 0, "channel": 7}


def test_a_policy_is_the_rule_that_was_asked_for(tmp_path):
    ringroad.write_policy(tmp_path / "p.toml", 'quote " in it', ["10.9.0.0/16", "fd00::/64"],
                          [23306, "4567-4568"], "rdma", promote_after=3)
    policy = tomllib.loads((tmp_path / "p.toml").read_text())
    assert policy == {"version": 1, "rule": [{
        "name": 'quote " in it', "subnet": ["10.9.0.0/16", "fd00::/64"],
        "port": ["23306", "4567-4568"], "via": "rdma", "promote_after": {"messages": 3}}]}


def test_an_incomplete_build_is_named_with_the_remedy(tmp_path):
    with pytest.raises(ringroad.RingroadError, match=r"libringroad.so is missing: build.*make"):
        ringroad.Ringroad(tmp_path)
