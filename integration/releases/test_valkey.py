"""Valkey 9.1 with the build of this machine: a cluster, I/O threads, and children that save.

     valkey-cli ══ master 1 ═══ master 2 ═══ master 3 ═══ replica       all in the root, preloaded
     clients    ══ valkey-server, four threads                          the same by plain processes
"""

from contextlib import contextmanager
from functools import partial

import pytest

from integration.acceptance import support
from integration.lib import processes, roots
from integration.acceptance.test_programs import check_promoted, fixture_eager, fixture_host, \
    output, server  # pylint: disable=unused-import
from integration.acceptance.test_redis import CLIENTS, check_clients_come_back, information, load
from integration.systems.test_redis_cluster import Cluster, check_that_keys_stay

pytestmark = pytest.mark.releases
RELEASE = "sid"
THREADS = 4


@pytest.fixture(name="place")
def fixture_place(root, host):
    root(RELEASE)
    return roots.Place(RELEASE, (host.directory, support.BUILD))


@contextmanager
def valkey(host, place, name, environment, *words):
    """(process, port)"""
    port = support.free_port()
    (host.directory / name).mkdir()
    command = ["valkey-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir",
               host.directory / name, "--enable-debug-command", "local", *words]
    with server(host, f"{name}-server", place.command(command, environment), port) as child:
        yield child, port


def ask(place, port, *words):
    return output(place.command(["valkey-cli", "-p", port, *words])).decode().strip()


def benchmark(port, *words):
    return ["valkey-benchmark", "-p", port, "-c", CLIENTS, *words]


def test_a_cluster_keeps_its_keys_whatever_becomes_of_the_nodes(host, place, eager):
    check_that_keys_stay(Cluster(host, eager, "valkey", place))


def test_threads_that_read_and_write_answer_the_same(host, place, eager):
    outcomes = []
    for name, environment in (("plain", None), ("preloaded", eager)):
        with valkey(host, place, name, environment, "--io-threads", THREADS) as (child, port):
            output(place.command(benchmark(port, "-n", 20_000, "-P", 16, "-d", 500, "--threads", 2,
                                           "-t", "set,get,lpush,lrange_100", "-q"), environment))
            assert int(information(partial(ask, place, port), "io_threaded_reads_processed")) > 0
            ask(place, port, "flushall")
            outcomes.append((load(port, environment), ask(place, port, "debug", "digest")))
            if environment:
                check_promoted(host, child.pid, 5_000_000)
    assert outcomes[0] == outcomes[1] and outcomes[0][1] != "0" * 40


@pytest.mark.parametrize("what,words,counted", [
    ("BGSAVE", (), "rdb_bgsave_in_progress"),
    ("BGREWRITEAOF", ("--appendonly", "yes"), "aof_rewrite_in_progress")])
def test_clients_are_on_channels_again_after_each_child(host, place, eager, what, words, counted):
    with valkey(host, place, "saving", eager, *words) as (child, port):
        run = processes.Child(
            place.command(benchmark(port, "-n", 100_000_000, "-t", "get"), eager),
            host.directory / "load.log")
        check_clients_come_back(host, child, run, partial(ask, place, port), what, counted)
