"""`ringroad bench oltp` over real verbs, run in the virtual machine by boots.py."""

import os

from integration.bench import oltp

from .. import support
from ..test_bench import bench, rows


def test_a_bench_over_rdma_has_its_proof_and_its_rivals_rows(tmp_path):
    environment = {**os.environ, oltp.TEMPLATE: str(support.prepared_data().parent)}
    done = bench(tmp_path, environment, "--threads", "2", "--rounds", "1", carriers="tcp,rdma,smc")
    assert done.returncode == 0, done.stdout + done.stderr
    tcp, rdma, smc = rows(tmp_path)
    assert (tcp["rounds"], rdma["rounds"]) == (1, 1)
    assert tcp["figures"]["rdma_packets_per_query"]["max"] < 0.5
    assert rdma["figures"]["rdma_packets_per_query"]["min"] >= 1
    assert rdma["figures"]["channel_percent"]["min"] >= 99
    # Its fall back to TCP is seen, and is no figure of SMC-R's.
    assert smc["rounds"] == 0 and "carries the connection by TCP: no SMC device" in smc["failed"][0]
