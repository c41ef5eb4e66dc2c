"""What perftest prints becomes figures."""

from pathlib import Path

import pytest

from integration.lib import perftest, processes

DATA = Path(__file__).parent / "testdata"


def printed(name):
    return (DATA / f"perftest_{name}.txt").read_text()


def test_latencies():
    assert perftest.parse(printed("write_lat")) == {
        "median_us": 48.47, "mean_us": 956.5, "p99_us": 12033.41, "p99.9_us": 14218.85}
    assert perftest.parse(printed("send_lat_events")) == {
        "median_us": 3301.28, "mean_us": 3148.21, "p99_us": 7953.19, "p99.9_us": 10011.30}


@pytest.mark.parametrize("unit", ["MB/sec", "MiB/sec"])
def test_bandwidth(unit):
    text = printed("write_bw").replace("MB/sec", unit)
    assert perftest.parse(text) == {"mib_per_s": 34.04, "million_per_s": 0.000545}


@pytest.mark.parametrize("cut", ["#bytes", " 64 "])
def test_nothing_is_made_of_less_than_a_row(cut):
    assert perftest.parse(printed("write_lat").partition(cut)[0]) == {}


def test_a_program_that_fails_is_told_with_what_it_said(tmp_path):
    tool = tmp_path / "ib_write_lat"
    tool.write_text("#!/bin/sh\necho Unable to find the Infiniband device\nexit 1\n")
    tool.chmod(0o755)
    side = perftest.Side(tool, [], "rxe7", 1, 18515, tmp_path / "log", server="10.9.1.1")
    with pytest.raises(processes.ProcessError, match="status 1(.|\n)*Unable to find"):
        side.finish(20)


def test_the_gid_of_an_address(tmp_path):
    def entry(device, index, address, kind):
        for folder, text in (("gids", address), ("gid_attrs/types", kind)):
            (tmp_path / device / "ports/1" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / device / "ports/1" / folder / str(index)).write_text(text + "\n")
    mapped = "0000:0000:0000:0000:0000:ffff:0a09:0101"
    entry("mlx5_0", 0, "fe80:0000:0000:0000:0000:00ff:fe09:0101", "RoCE v2")
    entry("mlx5_0", 2, mapped, "IB/RoCE v1")
    entry("mlx5_0", 10, mapped, "RoCE v2")
    entry("mlx5_1", 1, "fd00:0000:0000:0000:0000:0000:0000:0001", "RoCE v2")
    assert perftest.gid("10.9.1.1", sysfs=tmp_path) == ("mlx5_0", 10)
    assert perftest.gid("fd00::1", sysfs=tmp_path) == ("mlx5_1", 1)
    assert perftest.gid("10.9.1.1", "mlx5_1", sysfs=tmp_path) is None
