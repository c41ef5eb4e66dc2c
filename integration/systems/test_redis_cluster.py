"""A Redis cluster: three masters that share the keys, a replica that takes over, and slots that move.

     clients ══ master 1 ═══ master 2 ═══ master 3          each talks to each, over the bus
                                            ╚═══ replica
"""

import hashlib
import socket
import subprocess
from contextlib import ExitStack

from integration.acceptance import support
from integration.acceptance.test_programs import fixture_eager, fixture_host, needs, output, \
    server  # pylint: disable=unused-import

pytestmark = needs("redis-server", "redis-cli", "redis-benchmark")
MASTERS = 3
BUS = 10_000  # from a node's port to that of its bus
KEYS = 500


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count):
    """Their buses have ports, too, which no connection of another program is given meanwhile."""
    ports = set()
    while len(ports) < count:
        bus = support.free_port()
        if bus > 1024 + BUS and is_free(bus - BUS):
            ports.add(bus - BUS)
    return sorted(ports)


class Cluster:
    """Of Redis, or of what stands in a root and has its commands under its own name."""

    def __init__(self, host, environment, product="redis", place=None):
        self.host, self.environment, self.product, self.place = host, environment, product, place
        # A place gives the environment to what it starts, and to nothing else.
        self.own = environment if place is None else {}
        self.ports = free_ports(MASTERS + 1)
        self.nodes = {}
        self._stack = ExitStack()

    def start(self, port):
        (self.host.directory / str(port)).mkdir(exist_ok=True)
        self.nodes[port] = self._stack.enter_context(server(self.host, f"node-{port}", self._command([
            f"{self.product}-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir",
            self.host.directory / str(port), "--cluster-enabled", "yes",
            "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0",
            "--enable-debug-command", "local"]), port, self.own))

    def _command(self, words):
        return words if self.place is None else self.place.command(words, self.environment)

    def ask(self, port, *words):
        return output(self._command([f"{self.product}-cli", "-c", "-p", port, *words]),
                      self.own).decode().strip()

    def arrange(self, *words):
        return self.ask(self.ports[0], "--cluster", *words, "--cluster-yes")

    def agrees(self, ports):
        """All say that all slots are served, and which nodes are there."""
        def says(port):
            info = self.ask(port, "cluster", "info")
            return "cluster_state:ok" in info and f"cluster_known_nodes:{MASTERS + 1}" in info
        support.wait_for(lambda: all(says(port) for port in ports), "the cluster to agree",
                         support.ANSWER_S)

    def digest(self):
        """Of all keys' values, each asked of the node that has it."""
        return hashlib.sha256("\n".join(
            self.pipe(f"GET key:{number}" for number in range(KEYS))).encode()).hexdigest()

    def pipe(self, commands):
        done = subprocess.run(self._command([f"{self.product}-cli", "-c", "-p", str(self.ports[0])]),
                              input="\n".join(commands), capture_output=True, text=True, check=True,
                              timeout=support.ANSWER_S,
                              env={**support.os.environ, **self.own})
        return [line for line in done.stdout.splitlines() if not line.startswith("->")]

    def __enter__(self):
        try:
            for port in self.ports:
                self.start(port)
            places = [f"127.0.0.1:{port}" for port in self.ports]
            self.arrange("create", *places[:MASTERS])
            support.wait_for(lambda: all("cluster_state:ok" in self.ask(port, "cluster", "info")
                                         for port in self.ports[:MASTERS]), "the cluster")
        except BaseException:
            self._stack.close()
            raise
        return self

    def add_replica(self):
        """Of the last master. That one forks to send its keys."""
        self.ask(self.ports[0], "--cluster", "add-node", f"127.0.0.1:{self.ports[MASTERS]}",
                 f"127.0.0.1:{self.ports[0]}", "--cluster-slave", "--cluster-master-id",
                 self.ask(self.ports[MASTERS - 1], "cluster", "myid"))
        self.agrees(self.ports)

    def on_the_bus(self, port):
        """The carriers of a node's connections to the others, one in each direction."""
        return [stream["carrier"] for stream in self.host.streams(self.nodes[port].pid)
                if any(stream[end].endswith(f":{other + BUS}") for other in self.ports
                       for end in ("local", "remote"))]

    def __exit__(self, *failure):
        return self._stack.__exit__(*failure)


def test_keys_stay_whatever_becomes_of_the_nodes(host, eager):
    check_that_keys_stay(Cluster(host, eager))


def check_that_keys_stay(nodes):
    said = []
    with nodes as cluster:
        assert set(cluster.pipe(f"SET key:{number} {'v' * (number * 37 % 900 + 1)}{number}"
                                for number in range(KEYS))) == {"OK"}
        said.append(cluster.digest())
        first, second, third, replica = cluster.ports
        for port in (first, second, third):
            support.wait_for(lambda: cluster.on_the_bus(port) == ["shm"] * 2 * (MASTERS - 1),
                             f"the bus of {port} to be on its channels", support.ANSWER_S)
        cluster.arrange("reshard", f"127.0.0.1:{first}", "--cluster-from",
                        cluster.ask(first, "cluster", "myid"), "--cluster-to",
                        cluster.ask(second, "cluster", "myid"), "--cluster-slots", "300")
        said.append(cluster.digest())
        cluster.add_replica()
        support.wait_for(lambda: cluster.ask(third, "debug", "digest")
                         == cluster.ask(replica, "debug", "digest"), "the replica to be in step",
                         support.ANSWER_S)
        cluster.nodes[third].kill()
        support.wait_for(lambda: "role:master" in cluster.ask(replica, "info", "replication"),
                         "the replica to take over", support.ANSWER_S)
        cluster.agrees((first, second, replica))
        said.append(cluster.digest())
        cluster.start(third)
        cluster.agrees(cluster.ports)
        support.wait_for(lambda: "role:slave" in cluster.ask(third, "info", "replication"),
                         "the lost one to come back as a replica", support.ANSWER_S)
        said.append(cluster.digest())
    assert said == [hashlib.sha256("\n".join(
        "v" * (number * 37 % 900 + 1) + str(number) for number in range(KEYS)).encode()
    ).hexdigest()] * 4
