"""Thousands of connections of which few are busy need as many channels as are busy.

     crowd.py call ══ 10,000 connections, 64 of them hot ══ crowd.py serve      both preloaded
"""

import resource
import threading

import pytest

from . import support

CONNECTIONS = 10_000
HOT = 64
RING = 256 << 10
# What the policy of this test promises for each process: docs/operations.md, "What a stream costs".
DESCRIPTORS_OF_A_CHANNEL = 2
DESCRIPTORS_OF_A_PROCESS = 64
NEEDED = CONNECTIONS + HOT * DESCRIPTORS_OF_A_CHANNEL + DESCRIPTORS_OF_A_PROCESS


class Watch(threading.Thread):
    """The most of everything that two processes had while it looked."""

    def __init__(self, host, *pids):
        super().__init__(daemon=True)
        self.host, self.pids = host, pids
        self.channels = self.pinned = self.descriptors = self.looks = 0
        self.ended = threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.2):
            for pid in self.pids:
                process = self.host.ss(pid)
                if process is None:
                    continue  # it has not told anything yet
                held = [stream for stream in process["streams"] if stream["pinned_bytes"] > 0]
                self.channels = max(self.channels, len(held), process["channels"]["in_use"])
                self.pinned = max(self.pinned, sum(stream["pinned_bytes"] for stream in held))
                self.descriptors = max(self.descriptors, support.descriptors(pid))
                self.looks += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


def crowd(preload):
    server = support.Talker("serve", "127.0.0.1", preload=preload, program="crowd.py")
    caller = support.Talker("call", "127.0.0.1", server.line().split()[1], preload=preload, program="crowd.py")
    return server, caller


def channels_of(host, pid):
    return host.ss(pid)["channels"]


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < NEEDED,
                    reason=f"RLIMIT_NOFILE is below {NEEDED}: raise the hard limit")
def test_ten_thousand_connections_need_the_channels_of_those_that_are_hot(host):
    policy = host.policy("crowd", ["1-65535"], limits={"max_channels": HOT},
                         promote_after="{ messages = 2 }")
    server, caller = crowd(host.preload(policy))
    with server, caller, Watch(host, server.pid, caller.pid) as watch:
        assert caller.tell(f"open {CONNECTIONS}") == "ok"
        assert caller.tell(f"talk 0 1 {CONNECTIONS} 3") == "ok"
        assert channels_of(host, caller.pid)["in_use"] > 0
        before = channels_of(host, caller.pid)["given_back"]
        for first in (0, 1):  # others are hot the second time
            step = CONNECTIONS // HOT

            def hot_are_on_channels(first=first, step=step):
                assert caller.tell(f"talk {first} {step} {HOT} 10") == "ok"
                on_channel = {stream["local"] for stream in host.on_channel(caller.pid)}
                hot = [stream["local"] for stream in host.streams(caller.pid)]
                hot = hot[first::step][:HOT]
                return on_channel == set(hot)

            support.wait_for(hot_are_on_channels, "the hot ones to be on channels", 60)
            assert caller.tell(f"talk {first} {step} {HOT} 200") == "ok"
            process = host.ss(caller.pid)
            assert process["totals"]["channel"]["tx_messages"] > 200 * HOT
        assert channels_of(host, caller.pid)["given_back"] >= before + HOT
        # Nobody is forgotten: the others go on, over whatever carries them.
        assert caller.tell(f"talk 0 1 {CONNECTIONS} 1") == "ok"
        assert len(host.streams(caller.pid)) == CONNECTIONS
    assert watch.looks > 4
    print(f"most: {watch.channels} channels, {watch.pinned >> 20} MiB pinned, "
          f"{watch.descriptors} descriptors")
    assert watch.channels <= HOT
    assert watch.pinned <= HOT * (2 * RING + (16 << 10))
    assert watch.descriptors <= NEEDED


def test_an_accepting_end_with_a_lower_limit_gives_its_channels_to_those_that_are_hot(host):
    few, many, lower = 8, 64, 16
    keys = {"promote_after": "{ messages = 2 }"}
    low = host.policy("low", ["1-65535"], limits={"max_channels": lower}, **keys)
    high = host.policy("high", ["1-65535"], limits={"max_channels": many}, **keys)
    server = support.Talker("serve", "127.0.0.1", preload=host.preload(low), program="crowd.py")
    caller = support.Talker("call", "127.0.0.1", server.line().split()[1], preload=host.preload(high),
                            program="crowd.py")
    with server, caller, Watch(host, server.pid) as watch:
        assert caller.tell(f"open {many}") == "ok"
        assert caller.tell(f"talk 0 1 {many} 3") == "ok"
        for first in (many - few, 0, few):

            def hot_are_on_channels(first=first):
                assert caller.tell(f"talk {first} 1 {few} 20") == "ok"
                return all(stream["state"] == "ON_CHANNEL"
                           for stream in host.streams(caller.pid)[first:first + few])

            support.wait_for(hot_are_on_channels, "the hot ones to be on channels")
        assert channels_of(host, server.pid)["given_back"] > 0
        assert {stream["peer_reason"] for stream in host.streams(caller.pid)} >= {"max_channels"}
    assert 0 < watch.channels <= lower


def test_a_stream_that_is_not_used_pins_nothing_until_it_is_used_again(host):
    policy = host.policy("crowd", ["1-65535"], promote_after="{ messages = 2 }", idle='"500ms"')
    server, caller = crowd(host.preload(policy))
    with server, caller:
        assert caller.tell("open 8") == "ok"
        for _ in range(3):
            assert caller.tell("talk 0 1 8 4") == "ok"
            host.wait_for_channels(caller.pid, 8)
            support.wait_for(lambda: not channels_of(host, caller.pid)["in_use"]
                             and not channels_of(host, server.pid)["in_use"],
                             "the streams to give their channels back")
            assert sum(stream["pinned_bytes"] for stream in host.streams(caller.pid)) == 0
            assert {"idle"} <= {stream[end] for stream in host.streams(caller.pid)
                                for end in ("reason", "peer_reason")}


def test_a_lower_limit_in_an_edited_policy_takes_channels_back(host):
    policy = host.policy("crowd", ["1-65535"], limits={"max_channels": 20},
                         promote_after="{ messages = 2 }")
    server, caller = crowd(host.preload(policy))
    with server, caller:
        assert caller.tell("open 16") == "ok"
        assert caller.tell("talk 0 1 16 4") == "ok"
        host.wait_for_channels(caller.pid, 16)
        text = policy.read_text()
        policy.write_text(text.replace("max_channels = 20", "max_channels = 5"))
        support.wait_for(lambda: channels_of(host, caller.pid)
                         == {"in_use": 5, "max": 5,
                             "given_back": channels_of(host, caller.pid)["given_back"]},
                         "the edit to be taken up")
        assert caller.tell("talk 0 1 16 50") == "ok"
        assert channels_of(host, caller.pid)["in_use"] <= 5
        policy.write_text(text)
        support.wait_for(lambda: caller.tell("talk 0 1 16 1") == "ok"
                         and len(host.on_channel(caller.pid)) == 16, "all to come again")
