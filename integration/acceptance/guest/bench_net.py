"""`ringroad bench net` and `bench redis` over RDMA, run inside the virtual machine by boots.py:
every carrier that there is at work there, and raw verbs beside them."""

import json
import os

from ..test_bench_net import bench, bench_of, rows

CARRIERS = ("tcp", "rdma", "rsockets", "write")


def test_streams_are_measured_beside_raw_verbs(tmp_path):
    done = bench(tmp_path / "out", "--measures", "stream", "--carriers", ",".join(CARRIERS))
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path / "out")
    assert set(found) == {("stream", 1, name) for name in CARRIERS}
    for name in CARRIERS:
        figures = found["stream", 1, name]["figures"]
        assert figures["mb_per_s"]["median"] > 0, found["stream", 1, name]
        # Packets hold 4096 bytes at most, and each is sent and received.
        packets = figures["packets"]["median"]
        assert packets >= 2 * 16 if name != "tcp" else packets < 1
        if name != "write":  # of perftest's it can be less than can be told
            assert figures["client_cpu_us"]["median"] > 0
            ratio = figures["mb_per_s"]["ratio_to_write"]["median"]
            raw = found["stream", 1, "write"]["figures"]["mb_per_s"]["median"]
            assert abs(ratio * raw / figures["mb_per_s"]["median"] - 1) < 0.01


def test_a_device_that_is_not_there_is_said(tmp_path):
    inventory = tmp_path / "hosts.toml"
    inventory.write_text("".join(
        f'[{end}]\naddress = "{os.environ[f"RINGROAD_{end.upper()}_ADDR"]}"\ndevice = "mlx5_7"\n'
        for end in ("server", "client")))
    done = bench(tmp_path / "out", "--measures", "rate", "--carriers", "tcp,write",
                 "--inventory", inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    row = rows(tmp_path / "out")["rate", 1, "write"]
    assert row["figures"] == {} and "there is no device mlx5_7" in row["failed"][0]


def test_redis_is_measured_over_rdma(tmp_path):
    done = bench_of("redis", tmp_path / "out", "--commands", "get", "--clients", "1", "--pipeline",
                    "1", "--seconds", "3", "--carriers", "tcp,rdma,rsockets")
    assert done.returncode == 0, done.stdout + done.stderr
    [table] = json.loads((tmp_path / "out" / "report.json").read_text())["tables"]
    found = {row["carrier"]: row for row in table["rows"]}
    assert found["tcp"]["figures"]["packets"]["median"] < 1
    # A request and its answer, each sent and received.
    assert found["rdma"]["figures"]["packets"]["median"] >= 4 * 0.9
    assert found["rdma"]["figures"]["channel_percent"]["median"] >= 90
    assert found["rsockets"]["failed"] and not found["rsockets"]["figures"]
