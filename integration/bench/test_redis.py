"""What `ringroad bench redis` makes of what redis-benchmark tells, and what it does not believe."""

import pytest

from integration.bench import carriers, redis, redis_ends

SAID = """ringroad: a warning
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"GET","82372.32","0.305","0.088","0.295","0.399","0.511","1.519"
"""
TOLD = redis_ends.parse(SAID) | {"cpu_s": 1.3, "switches": 900}
FIRST = (200, {"cpu_s": 0.3, "switches": 100})
KEY = {"command": "get", "pipeline": 16, "clients": 4}
CARRIED = {"tcp": 3000, "channel": 120_000}
SERVER = {"cpu_s": 0.5, "switches": 500, "bytes": CARRIED}


def wrong(name, packets, carried=None, idle=0.0):
    figures = redis.figures_of((1000, TOLD), FIRST, SERVER | {"bytes": carried}, packets)
    return "; ".join(redis.problems(carriers.of(name), KEY, figures, carried, 64, idle))


def test_its_row_is_found_among_what_it_prints():
    assert TOLD["rps"] == 82372.32 and TOLD["p99_latency_ms"] == 0.511
    assert redis_ends.parse("Could not connect to Redis") == {}
    assert redis_ends.parse(SAID.splitlines()[1]) == {}


def test_the_figures_are_microseconds_and_without_the_start():
    assert redis.figures_of((1000, TOLD), FIRST, SERVER, 2000) == {
        "operations": 1000, "seconds": 1000 / 82372.32, "per_s": 82372.32, "p50_us": 295.0,
        "p99_us": 511.0, "client_cpu_us": pytest.approx(1250.0), "server_cpu_us": 500.0,
        "switches": 1.5, "packets": 2.0, "channel_percent": pytest.approx(97.56, abs=0.01)}


def test_what_is_where_it_should_be_is_believed():
    assert wrong("tcp", 0) == wrong("unix", 0) == wrong("shm", 0, CARRIED) == ""
    assert wrong("rdma", 125, CARRIED) == wrong("rsockets", 125) == wrong("smc", 125) == ""
    assert wrong("tcp", 100, idle=10_000.0) == "", "the background's"


@pytest.mark.parametrize("name, packets, carried, why", [
    ("tcp", 125, None, "which have no part"),
    ("unix", 125, None, "which have no part"),
    ("shm", 125, CARRIED, "which have no part"),
    ("rsockets", 124, None, "0.125 are the least"),
    ("rdma", 124, CARRIED, "0.125 are the least"),
    ("rdma", 125, None, "does not know the server"),
    ("shm", 0, {"tcp": 120_000, "channel": 60_000}, "120000 TCP"),
    ("shm", 0, {"tcp": 0, "channel": 6_000}, "only 6000 crossed")])
def test_what_is_not_is_told(name, packets, carried, why):
    assert why in wrong(name, packets, carried)
