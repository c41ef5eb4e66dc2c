"""Ranks that compute together: Open MPI over its TCP transport, and PyTorch over gloo.

     rank 0 ═══ rank 1 ═══ rank 2 ═══ rank 0        each result is checked by the rank that has it
"""

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.acceptance import support
from integration.lib import processes
from integration.acceptance.test_programs import fixture_eager, fixture_host, needs, \
    output  # pylint: disable=unused-import

HERE = Path(__file__).parent
RANKS = 3
HAS_TORCH = any(Path(place, "torch").is_dir() for place in ("/usr/lib/python3/dist-packages",))


@needs("mpirun", "mpicc")
def test_open_mpi_over_tcp(host, eager):
    program, over = host.directory / "exchange", host.directory / "over"
    output(["mpicc", "-O1", "-o", program, HERE / "mpi_exchange.c"])
    command = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
               "-n", RANKS, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
               "--mca", "btl_tcp_if_include", "lo", program, over]
    child = processes.Child(command, host.directory / "mpirun.log", eager)
    try:
        def said():
            return [line.split() for line in child.log.read_text().splitlines()]
        processes.wait_until(lambda: len(said()) == RANKS, support.ANSWER_S, "the ranks' results",
                             child)
        assert len({received for _, received in said()}) == 1, said()
        for pid, received in said():
            # Each rank talks to both others, whichever of the two connected, and, before Open MPI 5, to
            # mpirun, which may have forked the next rank meanwhile.
            support.wait_for(lambda pid=int(pid): all_but_forked(host, pid),
                             f"channels: {host.streams(int(pid))}")
            assert host.ss(int(pid))["totals"]["channel"]["rx_bytes"] > int(received) * 0.9
        over.touch()
        assert child.ends_within(support.ANSWER_S) and child.collect() == 0, processes.tail(child.log)
        assert len(said()) == RANKS, processes.tail(child.log)
    finally:
        child.stop()


def all_but_forked(host, pid):
    """Whether a rank's streams are on channels, but for one that its peer had when it forked."""
    streams = host.streams(pid)
    forked = [stream for stream in streams if stream["peer_reason"] == "fork"]
    return RANKS - 1 <= len(streams) <= RANKS and len(forked) <= 1 and \
        len(host.on_channel(pid)) + len(forked) == len(streams)


@pytest.mark.skipif(not HAS_TORCH, reason="not installed: python3-torch (600 MB)")
def test_pytorch_over_gloo(host, eager):
    port = support.free_port()
    environment = {**os.environ, **eager, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        ranks = []
        for rank in range(RANKS):
            ranks.append(subprocess.Popen(
                ["/usr/bin/python3", "-I", HERE / "torch_exchange.py", *map(str, (rank, RANKS, port))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment))
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
        totals = [rank.stdout.readline() for rank in ranks]
        assert len(set(totals)) == 1 and int(totals[0]) > 0, totals
        for rank in ranks:
            # To each of the others.
            support.wait_for(lambda: len(host.on_channel(rank.pid)) >= RANKS - 1,
                             f"channels: {host.streams(rank.pid)}")
            assert host.ss(rank.pid)["totals"]["channel"]["rx_bytes"] > 50_000_000
        assert [rank.communicate("", timeout=support.ANSWER_S) for rank in ranks] == \
            [("", None)] * RANKS
        assert [rank.returncode for rank in ranks] == [0] * RANKS
