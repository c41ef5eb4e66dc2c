"""Three Galera nodes over RDMA, run inside the virtual machine by test_softroce.py.

   sysbench ── node 1 10.9.0.1 ═══╗
               node 2 10.9.0.2 ═══╬═ rxe0, which talks to itself
               node 3 10.9.0.3 ═══╝
"""

import os
import signal

from lib import checks, galera

from . import support
from .inside_one_host import NETWORK, queue_pairs
from .test_galera import STOPPED_S, THREADS, Loaded, fixture_host  # noqa: F401
from .test_sysbench import INCREMENTS, SEED, check_report, load_for

ADDRESSES = os.environ.get("RINGROAD_RDMA_ADDRS", "").split()
# An emulated machine keeps nobody's time.
PATIENT = "evs.suspect_timeout=PT30S;evs.inactive_timeout=PT60S;evs.install_timeout=PT30S"


def test_a_cluster_keeps_its_tables_equal_whatever_becomes_of_rdma(host, tmp_path):
    preload = host.preload(host.policy("galera", [galera.GROUP_PORT, galera.IST_PORT], via="rdma",
                                       subnet=NETWORK, promote_after="{ messages = 2 }"))
    prepared = support.prepared_data()
    with galera.Cluster(prepared, host.directory / "nodes", ADDRESSES, 23306, preload,
                        native_aio=False, provider_options=PATIENT) as cluster:
        loaded = Loaded(host, cluster)
        before = checks.checksums(cluster.nodes[0])
        run = loaded.start(tmp_path)
        try:
            loaded.is_all_on("rdma")
            assert queue_pairs() == 6
            loaded.goes_on()
            os.kill(cluster.nodes[1].pid, signal.SIGSTOP)
            assert run.goes_on_for(STOPPED_S)
            os.kill(cluster.nodes[1].pid, signal.SIGCONT)
            loaded.goes_on()
            loaded.set_mode("tcp")
            loaded.is_all_on("tcp")
            loaded.goes_on()
            loaded.set_mode("rdma")
            loaded.is_all_on("rdma")
            loaded.goes_on()
            loaded.finish()
        finally:
            run.kill()
        after = loaded.nodes_agree()
        assert after != before
    with host.server("plain", prepared, address=ADDRESSES[0], native_aio=False) as plain:
        check_report(load_for(plain).start(INCREMENTS, tmp_path / "again", THREADS, SEED,
                                           more=loaded.load.repeat).finish())
        assert checks.checksums(plain) == after
