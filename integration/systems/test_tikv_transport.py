"""TiKV's transport, on the gRPC that TiKV has: three stores, over shared memory and beside Go programs.

     raft_store load ── store 1 ═══ store 2 ═══ store 3      and etcd, etcdctl: Go, on TCP
"""

import os
import signal
from contextlib import contextmanager

import pytest

from integration.acceptance import support
from integration.acceptance.test_programs import fixture_eager, fixture_host, needs, output, \
    server  # pylint: disable=unused-import

from . import raft_stores

pytestmark = raft_stores.needs_program
AT_ONCE = 16
SIZE = 512
STOPPED_S = 3  # longer than a keepalive's time and time-out


def addresses():
    return [f"127.0.0.1:{support.free_port()}" for _ in range(3)]


def test_stores_agree_whatever_becomes_of_their_streams(host, eager):
    with raft_stores.Stores(host, addresses(), eager) as stores:
        measured = raft_stores.alternate(stores, "shm", rounds=2, seconds=0.5, at_once=AT_ONCE,
                                         size=SIZE)
        commands = sum(report["commands"] for reports in measured.values() for report in reports)
        for victim, harm in ((1, signal.SIGSTOP), (2, signal.SIGKILL)):
            load = stores.start_load(STOPPED_S, AT_ONCE, SIZE)
            os.kill(stores.children[victim].pid, harm)
            # The other two are a majority.
            commands += stores.finish(load)["commands"]
            if harm == signal.SIGSTOP:
                # The keepalive has given it up meanwhile: that works over a channel as well.
                assert "stream to store 2" in stores.children[0].log.read_text()
                os.kill(stores.children[victim].pid, signal.SIGCONT)
            else:
                stores.children[victim].kill()
                stores.again(victim)
            stores.wait_for_carrier("shm")
        commands += stores.run_load(0.5, 1, SIZE)["commands"]
        stores.check_logs(commands)


@contextmanager
def etcd(host, preload=None):
    client, peer = (f"http://127.0.0.1:{support.free_port()}" for _ in range(2))
    with server(host, "etcd", [
            "etcd", "--data-dir", host.directory / "etcd", "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
            client.rpartition(":")[2], preload) as child:
        yield child, client.removeprefix("http://")


def etcdctl(address, *words, preload=None):
    return output(["etcdctl", f"--endpoints={address}", *words], {"ETCDCTL_API": "3", **(preload or {})})


@needs("etcd", "etcdctl")
@pytest.mark.parametrize("with_the_library", [False, True], ids=["plain", "preloaded"])
def test_go_programs_are_talked_to_over_tcp(host, eager, with_the_library):
    """Preloaded, they do not call what is interposed."""
    preload = eager if with_the_library else None
    with etcd(host, preload) as (registry, place), \
            raft_stores.Stores(host, addresses(), eager, place) as stores:
        stores.wait_for_carrier("shm")
        puts = [(f"key{number}".encode(), b"v" * (1 + number * 30_000)) for number in range(4)]
        for key, value in puts:
            assert etcdctl(stores.addresses[0], "put", key.decode(), value.decode(),
                           preload=preload) == b"OK\n"
        for address in stores.addresses:
            for key, value in puts:
                support.wait_for(lambda: etcdctl(address, "get", key.decode(), preload=preload)
                                 == key + b"\n" + value + b"\n", f"{key} in {address}")
        for number, child in enumerate(stores.children):
            support.wait_for(lambda: etcdctl(place, "get", f"/stores/{number + 1}")
                             == f"/stores/{number + 1}\n{len(puts)}\n".encode(),
                             "the registry to be told")
            to_registry = [stream for stream in host.streams(child.pid) if stream["remote"] == place]
            assert [(stream["carrier"], stream["reason"]) for stream in to_registry] == \
                [("tcp", "peer_has_no_ringroad")], to_registry
        assert (host.ss(registry.pid) or {}).get("streams", []) == []
        stores.wait_for_carrier("shm")
        stores.check_logs(0, puts)
