"""Three stores with the shape of TiKV's transport (raft/), and what is looked at while they run.

   raft_store load ── store 1 ═══ store 2        six streams of batches, one in each direction of each
                        ║           ║            pair; the load is plain, as TiDB is
                        ╚══ store 3 ╝
"""

import functools
import hashlib
import json
import subprocess
from collections import Counter

import pytest

from integration.acceptance import support
from integration.lib import processes

PROGRAM = support.BUILD / "bin" / "raft_store"
needs_program = pytest.mark.skipif(
    not PROGRAM.exists(),
    reason="no raft_store in the build: libgrpc++-dev or protobuf-compiler-grpc was missing")
MODULUS = 251  # of the bytes of raft_store's values


class Stores:
    """A context with the stores running, `preload`ed; each has its log in the host's directory."""

    def __init__(self, host, addresses, preload=None, registry="-"):
        self.host, self.addresses, self.preload, self.registry = host, addresses, preload, registry
        self.children = []
        self.loads = {}

    def __enter__(self):
        try:
            for number in range(len(self.addresses)):
                self.children.append(None)
                self.again(number)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            # All at once: a store that is left without the others has nothing to wait for.
            for child in self.children:
                assert child.stop(), f"a store had to be killed{processes.tail(child.log)}"
        self.kill()

    def kill(self):
        for child in self.children:
            if child:
                child.kill()

    def log(self, number):
        return self.host.directory / f"{number + 1}.raft"

    def again(self, number):
        """Starts a store with the log that it has."""
        self.children[number] = child = processes.Child(
            [PROGRAM, "serve", number + 1, self.log(number), self.registry, *self.addresses],
            self.host.directory / f"store{number + 1}.log", self.preload)
        port = self.addresses[number].rpartition(":")[2]
        listens = ["ss", "-Htln", "sport", "=", f":{port}"]
        processes.wait_until(lambda: subprocess.run(listens, capture_output=True, check=True).stdout,
                             support.ANSWER_S, "a store to listen", child)

    def between(self):
        """Both ends of each stream between two stores: [(carrier at the connector, at the acceptor)]."""
        streams = [stream for child in self.children for stream in self.host.streams(child.pid)]
        accepted = {(stream["remote"], stream["local"]): stream for stream in streams
                    if stream["role"] == "accept"}
        return [(stream["carrier"], accepted[ends]["carrier"] if ends in accepted else "unknown")
                for stream in streams if stream["role"] == "connect"
                for ends in [(stream["local"], stream["remote"])]
                if stream["remote"] in self.addresses]

    def wait_for_carrier(self, carrier):
        count = len(self.addresses) * (len(self.addresses) - 1)
        support.wait_for(lambda: self.between() == [(carrier, carrier)] * count,
                         f"the {count} streams between stores to be on {carrier}", support.ANSWER_S)

    def set_mode(self, mode):
        """As an operator moves what is there now, without a new connection."""
        subprocess.run([self.host.tool.command, "set", "--directory", self.host.runtime, "--wait", "30",
                        *[str(child.pid) for child in self.children], mode],
                       stdout=subprocess.DEVNULL, check=True)

    def channel_bytes(self):
        totals = [self.host.ss(child.pid)["totals"]["channel"] for child in self.children]
        return sum(total["tx_bytes"] + total["rx_bytes"] for total in totals)

    def start_load(self, seconds, at_once, size):
        name = f"load{len(self.loads)}"
        self.loads[name] = size
        return subprocess.Popen(
            [PROGRAM, "load", self.addresses[0], str(seconds), str(at_once), str(size), name],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_load(self, seconds, at_once, size):
        """What the leader measured: {commands, per_s, p50_us, p99_us} of append to commit."""
        return self.finish(self.start_load(seconds, at_once, size), seconds)

    def finish(self, load, seconds=0):
        try:
            said, errors = load.communicate(timeout=seconds + support.ANSWER_S)
        finally:
            load.kill()
            load.wait()
        assert load.returncode == 0, errors
        return json.loads(said)

    def check_logs(self, commands, others=()):
        """All logs are the same bytes, and hold each command of the loads once, with its value, and
        the `others`."""
        digests = {}

        def same():
            digests.update({number: hashlib.sha256(self.log(number).read_bytes()).hexdigest()
                            for number in range(len(self.addresses))})
            return len(set(digests.values())) == 1
        support.wait_for(same, "the logs to be the same", support.ANSWER_S)
        found = entries(self.log(0))
        expected = Counter(others)
        counts = Counter(key.partition(b".")[0].decode() for key, _ in found)
        for name, size in self.loads.items():
            expected.update((f"{name}.{number}".encode(), value(number, size))
                            for number in range(counts[name]))
        assert Counter(found) == expected
        assert len(found) == commands + len(others)
        return digests[0]


def entries(path):
    """The (key, value) of each record of a log, in order."""
    data = path.read_bytes()
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at:at + 4], "little")
        key, _, text = data[at + 4:at + 4 + length].partition(b"\0")
        found.append((key, text))
        at += 4 + length
    assert at == len(data)
    return found


def value(number, size):
    """As raft_store makes it."""
    return pattern(number * 31 % MODULUS, size)


@functools.cache
def pattern(first, size):
    return bytes((first + place * 7) % MODULUS for place in range(size))


def alternate(stores, carrier, rounds, seconds, at_once, size):
    """Loads over TCP and over the carrier in turns, one process and one connection for all:
    {carrier: [what each load measured]}."""
    measured = {"tcp": [], carrier: []}
    for _ in range(rounds):
        for name, mode in (("tcp", "tcp"), (carrier, "auto")):
            stores.set_mode(mode)
            stores.wait_for_carrier(name)
            before = stores.channel_bytes()
            report = stores.run_load(seconds, at_once, size)
            moved = stores.channel_bytes() - before
            # A follower is sent every entry, and the channel's bytes are counted at both ends.
            least = 0 if name == "tcp" else 2 * 2 * report["commands"] * size
            assert moved >= least and (name != "tcp" or moved == 0), (name, moved, least)
            stores.wait_for_carrier(name)
            measured[name].append(report)
    return measured
