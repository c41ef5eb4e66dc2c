"""The reader of sysbench's reports, on recorded ones."""

from pathlib import Path

import pytest

from integration.lib import sysbench

SAMPLES = Path(__file__).parent / "testdata"
HISTOGRAM_STEP = 1.02


def sample(name):
    return (SAMPLES / name).read_text()


def test_a_report_gives_counts_rates_and_latencies():
    report = sysbench.parse(sample("sysbench_deadlocks.txt"))
    assert report["transactions"] > 0
    assert report["queries"] > 20 * report["transactions"] - 1
    assert report["tps"] == pytest.approx(report["transactions"] / report["seconds"], rel=0.02)
    assert report["qps"] == pytest.approx(report["queries"] / report["seconds"], rel=0.02)
    assert report["latency_min_ms"] < report["p50_ms"] < report["p95_ms"] < report["p99_ms"]
    assert report["p99_ms"] < report["latency_max_ms"] * HISTOGRAM_STEP


def test_ignored_errors_are_counted_apart_from_fatal_ones():
    report = sysbench.parse(sample("sysbench_deadlocks.txt"))
    assert report["errors"] > 0
    assert report["reconnects"] == 0
    assert report["fatal"] == []


def test_the_histogram_holds_every_transaction():
    text = sample("sysbench_deadlocks.txt")
    counted = sum(count for _, count in sysbench.parse_histogram(text))
    assert counted == sysbench.parse(text)["transactions"]


def test_p95_agrees_with_sysbench_to_one_step_of_the_histogram():
    report = sysbench.parse(sample("sysbench_deadlocks.txt"))
    assert report["p95_ms"] == pytest.approx(report["reported_p95_ms"], rel=HISTOGRAM_STEP - 1)


def test_fatal_messages_are_kept():
    text = sample("sysbench_deadlocks.txt") + "FATAL: lost\n"
    assert sysbench.parse(text)["fatal"] == ["FATAL: lost"]


def test_a_run_that_lost_its_server_has_no_report():
    with pytest.raises(sysbench.ReportError, match="no line for transactions"):
        sysbench.parse(sample("sysbench_lost_server.txt"))


def test_a_report_without_a_histogram_is_refused():
    text = "\n".join(line for line in sample("sysbench_deadlocks.txt").splitlines()
                     if "|" not in line)
    with pytest.raises(sysbench.ReportError, match="histogram"):
        sysbench.parse(text)


@pytest.mark.parametrize("percent, expected", [(50, 1.0), (51, 2.0), (90, 2.0), (91, 9.0),
                                               (100, 9.0)])
def test_a_percentile_is_the_smallest_value_that_covers_its_share(percent, expected):
    assert sysbench.percentile([(1.0, 50), (2.0, 40), (9.0, 10)], percent) == expected


def test_an_empty_histogram_has_no_percentile():
    with pytest.raises(ValueError):
        sysbench.percentile([], 50)
