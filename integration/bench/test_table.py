"""The rows of docs/benchmarks.md out of a report."""

from integration.bench import table


def spread(*values, ratio=None):
    found = {"median": sorted(values)[len(values) // 2], "min": min(values), "max": max(values), "values": [*values]}
    return {**found, "ratio": spread(*ratio)} if ratio else found


def row(carrier, key, figures, failed=()):
    return {"carrier": carrier, "key": key, "rounds": 3 if figures else 0, "figures": figures, "failed": [*failed]}


SELECT = {"workload": "point_select", "threading": "connection", "threads": 4}
PINGPONG = {"measure": "pingpong", "wait": "block", "connections": 1, "size": 64}


def test_a_row_has_the_ratios_of_each_carrier_and_what_loses_is_bold():
    rows = [row("tcp", SELECT, {"tps": spread(1000, 1100, 1200), "p95_ms": spread(1, 1, 1)}),
            row("shm", SELECT, {"tps": spread(1, 1, 1, ratio=(0.9, 0.99, 1.2)),
                                "p95_ms": spread(1, 1, 1, ratio=(0.5, 0.5, 0.5))}),
            row("shm-sleeps", SELECT, {"tps": spread(1, 1, 1, ratio=(1.5, 1.5, 1.5))}),
            row("unix", SELECT, {}, ["it crashed\nhere"])]
    assert table.rows_of("oltp", {"tables": [{"heading": "h", "rows": rows}]}) == [
        ["oltp", "point_select", "4", "1,100.0 tps", "**0.99 (0.90..1.20)**", "0.50", "",
         "sleeps 1.50; Unix socket it crashed", "3"]]


def test_what_a_report_does_not_compare_is_compared_round_by_round():
    rows = [row("tcp", PINGPONG, {"p50_us": spread(10, 10, 10), "p99_us": spread(10, 20, 40)}),
            row("rdma", PINGPONG, {"p50_us": spread(5, 5, 5, ratio=(0.5, 0.5, 0.5)), "p99_us": spread(20, 20, 20)})]
    assert table.rows_of("net", {"tables": [{"heading": "h", "rows": rows}]}) == [
        ["net", "ping-pong, in `recv`", "1 × 64 B", "10.00 p50 us", "0.50", "1.00 (0.50..2.00)", "", "", "3"]]


def test_without_figures_a_row_says_why():
    rows = [row("tcp", SELECT, {"tps": spread(1, 1, 1)}), row("rdma", SELECT, {}, ["no device"])]
    assert table.rows_of("x", {"tables": [{"heading": "h", "rows": rows}]})[0][3:] == ["-", "no device", "", "", "", "0"]
