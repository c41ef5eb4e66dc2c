"""What `ringroad bench net` makes of what its programs tell, and what it does not believe."""

import os
from types import SimpleNamespace

import pytest

from integration.bench import carriers, hosts, net, net_ends, report, run, targets
from integration.lib import processes

TOLD = {"run": "pingpong block 64 1000", "connections": 1, "operations": 1000, "seconds": 0.01,
        "operations_per_s": 100000.0, "bytes_per_s": 6.4e6,
        "client": {"cpu_us_per_operation": 4.0, "switches_per_operation": 1.0},
        "server": {"cpu_us_per_operation": 5.0, "switches_per_operation": 1.5},
        "latency_us": {"min": 8.0, "mean": 10.0, "p50": 9.0, "p90": 10.0, "p99": 17.0,
                       "p99.9": 80.0, "max": 140.0}}
ONE = {"measure": "pingpong", "wait": "block", "connections": 1, "size": 64}
CONNECTING = ONE | {"measure": "connections"}
STREAM = {"local": "", "remote": "", "state": "ON_CHANNEL", "carrier": "rdma", "device": "rxe0",
          "reason": "none", "peer_reason": "none"}
CARRIED = {"streams": [STREAM], "bytes": {"tcp": 32, "channel": 140000}}


def wrong(name, packets, carried=None, key=None, idle=0.0):
    figures = net.figures_of("pingpong", TOLD, packets)
    return "; ".join(net.problems(carriers.of(name), key or ONE, figures, carried, idle))


def test_the_figures_of_a_ping_pong():
    assert net.figures_of("pingpong", TOLD, 4000) == {
        "operations": 1000, "seconds": 0.01, "per_s": 100000.0, "client_cpu_us": 4.0,
        "server_cpu_us": 5.0, "switches": 2.5, "packets": 4.0, "p50_us": 9.0, "p99_us": 17.0,
        "p999_us": 80.0}


def test_a_stream_has_a_bandwidth_and_no_latency():
    figures = net.figures_of("stream", {**TOLD, "latency_us": None}, 0)
    assert figures["mb_per_s"] == 6.4 and "p50_us" not in figures


def test_what_is_where_it_should_be_is_believed():
    assert wrong("tcp", 0) == wrong("unix", 0) == wrong("rdma", 4000, CARRIED) == ""
    assert wrong("rsockets", 4000) == wrong("smc", 4000) == ""
    assert wrong("tcp", 100, idle=5000.0) == "", "the background's"


@pytest.mark.parametrize("name, packets, carried, why", [
    ("tcp", 4000, None, "which have no part"),
    ("rsockets", 0, None, "counted 0.000 packets"),
    ("rdma", 100, CARRIED, "counted 0.100 packets"),
    ("rdma", 4000, None, "does not know the client"),
    ("rdma", 4000, CARRIED | {"streams": []}, "0 of 1 connections"),
    ("rdma", 4000, CARRIED | {"streams": [STREAM | {"carrier": "shm"}]}, "0 of 1 connections"),
    ("rdma", 4000, CARRIED | {"bytes": {"tcp": 70000, "channel": 70000}}, "70000 TCP"),
    ("shm", 4000, {"streams": [STREAM | {"carrier": "shm"}],
                   "bytes": {"tcp": 0, "channel": 140000}}, "which have no part")])
def test_what_is_not_is_told(name, packets, carried, why):
    assert why in wrong(name, packets, carried)


def test_short_connections_stay_on_tcp_but_ringroad_is_there():
    nothing = {"streams": [], "bytes": {"tcp": 128000, "channel": 0}}
    assert wrong("rdma", 0, nothing, CONNECTING) == ""
    assert "does not know" in wrong("rdma", 0, None, CONNECTING)
    assert "counted 0.000" in wrong("rsockets", 0, None, CONNECTING)


class Options:
    measures, sizes, connections, apart = list(net.MEASURES), [64, 4096], 16, False


def rows_of(name):
    bench = net.Net(None, Options, print)
    return [(*key.values(),) for block in bench.blocks() for row in bench.cells()
            for key in [{**block, **row}] if bench.applies(carriers.of(name), key)]


def test_ends_that_are_apart_share_no_processor(monkeypatch):
    monkeypatch.setattr(net_ends.os, "sched_getaffinity", lambda _: {7, 2, 3})
    server, client = ({*net_ends.on_half_of_it(role)[-1].split(",")} for role in ("server", "client"))
    assert server and client and server | client == {"2", "3", "7"} and not server & client
    monkeypatch.setattr(net_ends.os, "sched_getaffinity", lambda _: {4})
    with pytest.raises(processes.ProcessError, match="one processor"):
        net_ends.on_half_of_it("client")


def test_a_program_that_is_put_apart_stays_there(tmp_path):
    child = processes.Child([*net_ends.on_half_of_it("server"), "sleep", 60], tmp_path / "log")
    processes.wait_until(lambda: os.readlink(f"/proc/{child.pid}/exe").endswith("sleep"), 10, "sleep", child)
    there = os.sched_getaffinity(child.pid)
    child.abandon()
    assert there and there < os.sched_getaffinity(0)


def test_ends_on_two_hosts_are_apart_anyway():
    class Apart(Options):
        apart = True
    two = SimpleNamespace(one_host=False)

    with pytest.raises(hosts.HostError, match="two hosts"):
        net.Net(two, Apart, print).settings()


def test_raw_verbs_whose_ends_run_anywhere_are_not_held_against_ends_that_are_apart():
    class Apart(Options):
        apart = True

    bench = net.Net(SimpleNamespace(one_host=True, server=None), Apart, print)
    bench._idle_packets_per_s = 0
    with pytest.raises(run.CellError, match="perftest"):
        bench.open({}, carriers.of("write"))


def test_each_row_is_one_that_a_carrier_can_have():
    pingpongs = [("pingpong", wait, *more) for wait in ("block", "epoll")
                 for more in ((1, 64), (1, 4096), (16, 64))]
    streams = [("stream", "block", 1, 65536), ("rate", "block", 1, 64),
               ("connections", "block", 1, 64), ("promotions", "block", 1, 64)]
    assert rows_of("tcp") == rows_of("rdma") == rows_of("rsockets") == pingpongs + streams
    assert rows_of("shm-polls") == rows_of("rdma-sleeps") == pingpongs
    assert rows_of("write") == rows_of("send") == [
        ("pingpong", "block", 1, 64), ("pingpong", "block", 1, 4096), *streams[:2]]
    assert rows_of("events") == [("pingpong", wait, 1, size) for wait in ("block", "epoll")
                                 for size in (64, 4096)]


def test_ratios_are_also_to_raw_verbs():
    bench = net.Net(None, Options, print)
    cells = [{"key": {**ONE, "carrier": name, "round": number}, "figures": {"p50_us": p50}}
             for number in (1, 2) for name, p50 in (("tcp", 100 * number), ("rdma", 50), ("write", 40))]
    tables = report.Tables(cells, [(ONE, name) for name in ("tcp", "rdma", "write")],
                           bench.references, bench.groups, bench.rows, bench.metrics_of)
    table, _ = tables.table(("pingpong", "block", 1))
    to_tcp, to_raw = (table[0].index(title) for title in
                      ("p50 us: ratio", "p50 us: ratio to raw verbs, ib_write"))
    assert [row[to_tcp] for row in table[1:]] == ["-", "0.38 (0.25..0.50)", "0.30 (0.20..0.40)"]
    assert [row[to_raw] for row in table[1:]] == ["3.75 (2.50..5.00)", "1.25 (1.25..1.25)", "-"]
    # There is no row of it here.
    assert not any("-e" in title for title in table[0])


def cell(name, number, p50, wait="block"):
    return {"key": {**ONE, "wait": wait, "carrier": name, "round": number}, "figures": {"p50_us": p50}}


def test_a_target_is_reached_by_the_median_of_rounds_that_both_have():
    cells = [cell("write", 1, 100), cell("write", 2, 100), cell("write", 3, 100),
             cell("rdma-polls", 1, 110), cell("rdma-polls", 2, 300), cell("rdma-polls", 3, 114),
             cell("rdma-polls", 4, 1), cell("tcp", 1, 40.0), cell("shm-polls", 1, 1.1),
             {"key": {**ONE, "carrier": "shm-sleeps", "round": 1}, "failed": "why"}]
    _, *rows = targets.table(cells, ["tcp", "rdma-polls", "shm-polls", "shm-sleeps"])
    assert [row[3:] for row in rows] == [
        ["1.140 (1.100..3.000)", "<= 1.15", "reached"],
        ["0.028 (0.028..0.028)", "<= 0.025", "not reached"], ["-", "<= 0.8", "not measured"]]


def test_where_more_is_better_the_bound_is_the_least():
    target = next(one for one in targets.ALL if one.measure == "rate")
    assert target.is_reached(2.0) and not target.is_reached(1.99) and target.bound == ">= 2"
