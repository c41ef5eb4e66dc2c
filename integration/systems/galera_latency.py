"""How long a commit takes where Galera's replication is on TCP and where it is on a channel, in turns, in one run.

   sysbench ── node 1 ═══ 4567 ═══ node 2, node 3        the client's connections stay on TCP

Three nodes on this host, over shared memory; --via rdma is for the virtual machine with Soft-RoCE, where each
node has an address of its own:

   integration/softroce/run --timeout 600 -- python3 -m integration.systems.galera_latency --via rdma --threads 4

Prints what `ringroad ab` says of the three nodes for each number of threads. The tables of all nodes are
compared at the end; the exit status is 1 if they differ, or if something could not be measured.
"""

import sys

from integration.acceptance import support, test_galera
from integration.acceptance.guest import galera as guest
from integration.lib import galera, processes
from integration.systems import commit_latency


def main():
    parser = commit_latency.parser(__doc__)
    parser.add_argument("--via", choices=("shm", "rdma"), default="shm")
    options = parser.parse_args()
    processes.end_on_signals()
    addresses, subnet, more = test_galera.ADDRESSES, {}, {}
    if options.via == "rdma":
        guest.give_the_third_an_address()
        addresses = (guest.CLIENT, *guest.SERVERS)
        subnet = {"subnet": guest.NETWORK}
        more = {"native_aio": False, "provider_options": guest.PATIENT}
    with test_galera.host_for_nodes() as host:
        policy = host.policy("galera", [galera.GROUP_PORT, galera.IST_PORT], via=options.via,
                             promote_after="{ messages = 2 }", **subnet)
        with galera.Cluster(support.prepared_data(), host.directory / "nodes", addresses,
                            support.free_port(addresses[0]), host.preload(policy), **more) as cluster:
            loaded = test_galera.Loaded(host, cluster)
            loaded.is_all_on(options.via)
            measured = [commit_latency.alternate(host, cluster.nodes[0], cluster.nodes, threads, options)
                        for threads in options.threads]
            sums = loaded.nodes_agree()
    commit_latency.tell(sums)
    return 0 if all(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
