"""Three Galera nodes on this host, over shared memory: they form, run and heal with replication promoted.

   sysbench ── node 1 127.0.1.1 ═══ 4567 ═══ node 2 127.0.1.2 ═══ 4567 ═══ node 3 127.0.1.3
"""

import contextlib
import os
import signal
import subprocess

import pytest

from integration.lib import checks, galera, locks, processes

from . import increments, support
from .test_sysbench import INCREMENTS, SEED, check_report, load_for

ADDRESSES = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
THREADS = 4
STOPPED_S = 2
needs_galera = pytest.mark.skipif(not galera.PROVIDER.exists(),
                                  reason=f"not installed: galera-4 ({galera.PROVIDER})")
pytestmark = [support.needs_mariadb, needs_galera]


class Loaded:
    """A cluster whose first node is written to, and what is looked at meanwhile."""

    def __init__(self, host, cluster):
        self.host, self.cluster = host, cluster
        self.run = self.load = None

    def group_streams(self, node):
        ports = (f":{galera.GROUP_PORT}",)
        return [stream for stream in self.host.streams(node.pid)
                if stream["local"].endswith(ports) or stream["remote"].endswith(ports)]

    def carriers(self):
        return [stream["carrier"] for node in self.cluster.nodes
                for stream in self.group_streams(node)]

    def is_all_on(self, carrier):
        count = len(self.cluster.nodes) * (len(self.cluster.nodes) - 1)
        support.wait_for(lambda: self.carriers() == [carrier] * count,
                         f"the {count} ends of replication streams to be on {carrier}", 60)

    def is_on(self, carrier, node):
        """The streams of one node, that is."""
        count = len(self.cluster.nodes) - 1
        support.wait_for(lambda: [stream["carrier"] for stream in self.group_streams(node)]
                         == [carrier] * count,
                         f"the replication streams of {node.name} to be on {carrier}", 60)

    def start(self, directory, pause_ms=0):
        """`pause_ms`: of each thread, after a transaction."""
        self.load = increments.UntilTold(directory / "stop")
        self.run = load_for(self.cluster.nodes[0]).start(INCREMENTS, directory / "log", THREADS, SEED,
                                                         more=(*self.load.go_on, f"--pause={pause_ms}"))
        return self.run

    def written(self):
        node = self.cluster.nodes[0]
        return node.status("wsrep_last_committed")["wsrep_last_committed"]

    def goes_on(self, more=20):
        before = self.written()
        support.wait_for(lambda: self.written() >= before + more, "transactions", 60)
        assert self.run.goes_on_for(0), "the load was over too soon"

    def finish(self):
        self.load.stop()
        report = self.run.finish()
        check_report(report)
        assert report["transactions"] == self.load.count() > 0

    def nodes_agree(self):
        last = self.written()
        for node in self.cluster.nodes:
            support.wait_for(lambda node=node: node.status("wsrep_last_committed")
                             ["wsrep_last_committed"] == last, f"{node.name} to have it all")
        first, *others = [checks.checksums(node) for node in self.cluster.nodes]
        assert others == [first] * len(others)
        return first

    def set_mode(self, mode, wait_s=60, check=True):
        pids = [str(node.pid) for node in self.cluster.nodes]
        done = subprocess.run([self.host.tool.command, "set", "--directory", self.host.runtime,
                               "--wait", str(wait_s), *pids, mode], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0 or not check, done
        return done.returncode


@contextlib.contextmanager
def host_for_nodes():
    """Where another user may go, as which the nodes run; one cluster at a time, for its fixed ports."""
    with locks.held(support.ROOT / "build" / ".galera.lock"), \
            processes.WorkDirectory("ringroad-galera") as work:
        work.chmod(0o755)
        host = support.Host(work)
        host.runtime.chmod(0o1777)
        yield host


@pytest.fixture(name="host")
def fixture_host():
    with host_for_nodes() as host:
        yield host


def test_a_cluster_forms_runs_and_heals_with_its_replication_promoted(host, tmp_path):
    preload = host.preload(host.policy("galera", [galera.GROUP_PORT, galera.IST_PORT],
                                       promote_after="{ messages = 2 }"))
    prepared = support.prepared_data()
    with galera.Cluster(prepared, host.directory / "nodes", ADDRESSES, support.free_port(ADDRESSES[0]),
                        preload) as cluster:
        loaded, after = heals(host, cluster, tmp_path)
    # The same without a cluster, without Ringroad and without harm.
    with host.server("plain", prepared) as plain:
        check_report(load_for(plain).start(INCREMENTS, tmp_path / "again", THREADS, SEED,
                                           more=loaded.load.repeat).finish())
        assert checks.checksums(plain) == after


def heals(host, cluster, directory):
    """A cluster of three under load, with an operator, a node that stops and one that is lost.

    The load, and what the tables hold at the end.
    """
    loaded = Loaded(host, cluster)
    _, second, third = cluster.nodes
    before = checks.checksums(cluster.nodes[0])
    run = loaded.start(directory)
    try:
        loaded.is_all_on("shm")
        loaded.goes_on()
        # An operator.
        loaded.set_mode("tcp")
        loaded.is_all_on("tcp")
        loaded.goes_on()
        loaded.set_mode("auto")
        loaded.set_mode("rdma")
        loaded.is_all_on("shm")
        loaded.goes_on()
        # A node that is stopped for less than the others' patience.
        os.kill(second.pid, signal.SIGSTOP)
        assert run.goes_on_for(STOPPED_S)
        os.kill(second.pid, signal.SIGCONT)
        loaded.goes_on()
        # A node that is lost, and comes again.
        third.kill()
        loaded.goes_on()
        cluster.again(2)
        loaded.is_all_on("shm")
        loaded.goes_on()
        loaded.finish()
    finally:
        run.kill()
    after = loaded.nodes_agree()
    assert after != before
    return loaded, after
