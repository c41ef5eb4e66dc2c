"""`ringroad bench redis`, for real but short, on this machine."""

import json
import os
import shutil

import pytest

from .test_bench_net import bench_of

pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in ("redis-server", "redis-benchmark")),
    reason="not installed: redis-server redis-tools")
CARRIERS = ("tcp", "shm", "unix")


def test_each_carrier_is_measured_and_the_channel_has_the_bytes(tmp_path):
    done = bench_of("redis", tmp_path / "out", "--commands", "get,set", "--clients", "4",
                    "--pipeline", "16", "--seconds", "1", "--carriers", ",".join(CARRIERS))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    rows = [row for table in report["tables"] for row in table["rows"]]
    assert [(row["key"]["command"], row["key"]["clients"], row["carrier"]) for row in rows] == [
        (command, 4, name) for command in ("get", "set") for name in CARRIERS]
    for row in rows:
        assert row["failed"] == [] and row["rounds"] == 1, row
        figures = {name: figure["median"] for name, figure in row["figures"].items()}
        assert figures["per_s"] > 0 < figures["server_cpu_us"]
        assert 0 < figures["p50_us"] <= figures["p99_us"]
        assert ("channel_percent" in figures) == (row["carrier"] == "shm")
    assert "per second: ratio" in done.stdout


def test_a_library_that_does_nothing_is_a_failure_and_has_its_row(tmp_path):
    done = bench_of("redis", tmp_path / "out", "--commands", "get", "--clients", "1", "--pipeline",
                    "1", "--seconds", "1", "--carriers", "tcp,shm",
                    environment={"RINGROAD_DISABLE": "1"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "does not know the server" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")
def test_two_network_namespaces_share_memory(tmp_path):
    done = bench_of("redis", tmp_path / "out", "--netns", "--commands", "get", "--clients", "4", "--pipeline", "16",
                    "--seconds", "1", "--carriers", "tcp,shm")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    rows = {row["carrier"]: row for table in report["tables"] for row in table["rows"]}
    assert rows["tcp"]["failed"] == rows["shm"]["failed"] == [], rows
    assert rows["shm"]["figures"]["channel_percent"]["median"] > 90
