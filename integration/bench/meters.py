"""What benches of one server and one load count beside it: packets, and what else was at work."""

from integration.bench.report import Metric
from integration.lib import rdma_counters

# Packets an operation that may cross RDMA devices beside what is measured.
STRAY = 0.01

P50 = Metric("p50_us", "p50 us", 2, False, True)
P99 = Metric("p99_us", "p99 us", 2)
RATE = Metric("per_s", "per second", 0, True, True)
COSTS = (Metric("client_cpu_us", "client CPU us/op", 2), Metric("server_cpu_us", "server CPU us/op", 2),
         Metric("switches", "switches/op", 2), Metric("packets", "packets/op", 2),
         Metric("others_percent", "others %", 0))


def hosts_of(place):
    ends = [place.client] if place.one_host else place.ends.values()
    return [end.host for end in ends]


def idle_packets_per_s(place):
    """What crosses the RDMA devices where nothing is measured."""
    return sum(host.call("integration.lib.rdma_counters:idle_packets_per_s") for host in hosts_of(place))


class Moved:
    """The RDMA devices' packets from now on."""

    def __init__(self, place):
        self._hosts = hosts_of(place)
        self._before = self._read()

    def packets(self):
        return sum(rdma_counters.packets(rdma_counters.difference(after, before))
                   for after, before in zip(self._read(), self._before))

    def _read(self):
        return [host.call("integration.lib.rdma_counters:read_when_quiet") for host in self._hosts]


class Busy:
    """How busy the client's host is from now on."""

    def __init__(self, place):
        self._host, self._one_host = place.client.host, place.one_host
        self._before = self._read()

    def _read(self):
        return self._host.call("integration.bench.net_ends:busy")

    def others_percent(self, used_s):
        """With other things than the load: other programs, and the kernel on its own account.
        `used_s` has the processor time of both of the load's ends."""
        now = self._read()
        used = sum(used_s.values()) if self._one_host else used_s["client"]
        busy, whole = (now[name] - self._before[name] for name in ("busy_s", "processors_s"))
        return max(0.0, 100 * (busy - used) / whole)


def packet_problems(carrier, packets, wanted, idle):
    """What is wrong with so many packets an operation, where `wanted` are the least of a carrier
    that is made of them and `idle` cross the devices anyway: a list of sentences."""
    if carrier.by_device and wanted:
        if packets >= wanted:
            return []
        return [f"the RDMA devices counted {packets:.3f} packets an operation, "
                f"{wanted:.3f} are the least"]
    if carrier.by_device or packets <= STRAY + 2 * idle:
        return []
    return [f"{packets:.3f} packets an operation crossed RDMA devices, which have no part in this"]
