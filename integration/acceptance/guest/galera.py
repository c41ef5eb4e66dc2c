"""Three Galera nodes over RDMA, run inside the virtual machine by boots.py.

   sysbench ── node 1 10.9.0.1 rxe0 v0 ═══ veth ═══ v1 rxe1 ┬ 10.9.1.1 node 2
                                       ▲                    └ 10.9.1.2 node 3
                          netem and ip link do their harm here, which nodes 2 and 3 share no part of
"""

import os
import signal

from integration.lib import checks, galera

from .. import support
from .faults import (CABLE, CLIENT, DEVICES, fixture_modules,  # noqa: F401
                            link_down, netem, reach_over_the_cable, tool)
from .one_host import ADDRESS, NETWORK, queue_pairs
from ..test_galera import STOPPED_S, THREADS, Loaded, fixture_host  # noqa: F401
from ..test_sysbench import INCREMENTS, SEED, check_report, load_for

THIRD = "10.9.1.2"
SERVERS = (ADDRESS, THIRD)
# An emulated machine has the fabric to compute besides three servers that apply each transaction.
PAUSE_MS = 200
# It keeps nobody's time.
PATIENT = "evs.suspect_timeout=PT30S;evs.inactive_timeout=PT60S;evs.install_timeout=PT30S"


def give_the_third_an_address():
    tool("ip", "addr", "add", f"{THIRD}/32", "dev", CABLE[1])
    reach_over_the_cable(THIRD)
    tool("ip", "rule", "add", "pref", "20", "from", THIRD, "to", THIRD, "lookup", "local")
    tool("ip", "rule", "add", "pref", "30", "to", THIRD, "lookup", "100")


def test_a_cluster_keeps_its_tables_equal_whatever_becomes_of_rdma(host, tmp_path):
    give_the_third_an_address()
    preload = host.preload(host.policy("galera", [galera.GROUP_PORT, galera.IST_PORT], via="rdma",
                                       subnet=NETWORK, promote_after="{ messages = 2 }"))
    prepared = support.prepared_data()
    with galera.Cluster(prepared, host.directory / "nodes", (CLIENT, *SERVERS), 23306, preload,
                        native_aio=False, provider_options=PATIENT) as cluster:
        loaded = Loaded(host, cluster)
        before = checks.checksums(cluster.nodes[0])
        run = loaded.start(tmp_path, PAUSE_MS)

        def comes_to_rdma():
            support.wait_for(lambda: loaded.set_mode("rdma", 2, check=False) == 0,
                             "all streams to be on RDMA", 60)
            loaded.is_all_on("rdma")
            loaded.goes_on()

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
            comes_to_rdma()
            # A fabric that loses some, and one that loses all.
            with netem("loss", "2%"):
                loaded.goes_on()
            comes_to_rdma()
            with netem("loss", "100%", only_rdma=True):
                loaded.is_on("tcp", cluster.nodes[0])
                loaded.goes_on()
            comes_to_rdma()
            with link_down(SERVERS):
                assert run.goes_on_for(2)
            comes_to_rdma()
            tool("timeout", "20", "rdma", "link", "delete", DEVICES[1])
            loaded.is_all_on("tcp")
            loaded.goes_on()
            tool("rdma", "link", "add", DEVICES[1], "type", "rxe", "netdev", CABLE[1])
            comes_to_rdma()
            # A node that is lost, and comes again. Under load it would never catch up here.
            cluster.nodes[2].kill()
            loaded.goes_on()
            loaded.finish()
            cluster.again(2)
            loaded.is_all_on("rdma")
        finally:
            run.kill()
        after = loaded.nodes_agree()
        assert after != before
    with host.server("plain", prepared, address=ADDRESS, native_aio=False) as plain:
        check_report(load_for(plain).start(INCREMENTS, tmp_path / "again", THREADS, SEED,
                                           more=loaded.load.repeat).finish())
        assert checks.checksums(plain) == after
