"""`ringroad bench redis`: Redis under redis-benchmark, by each carrier.

        server's host                                      client's host
   redis-server, one for each carrier  ◀── its carrier ──  redis-benchmark, a new one for each cell
"""

import secrets
from dataclasses import dataclass

from integration.bench import arguments, hosts, meters, run
from integration.bench.meters import COSTS, P50, P99, RATE
from integration.bench.report import Metric

COMMANDS = arguments.choices("redis", "--commands")
CLIENTS, PIPELINES = arguments.default("redis", "--clients"), arguments.default("redis", "--pipeline")
QUICK = {"commands": ["get"], "clients": [1, 16], "pipeline": [1]}
# From the rate of a first run of so many requests (and of a second of SHORT_S, where the first was shorter)
# follows how many the measured run has, within bounds.
FIRST, SHORT_S, BOUNDS = 2000, 0.3, (10_000, 20_000_000)
# A run may take that much longer than it should before it is taken for one that hangs.
PATIENCE_S = 30
# redis-benchmark begins while its connections are being promoted.
CHANNEL_SHARE = 0.9
CHANNEL = Metric("channel_percent", "channel %", 2)


class Redis(run.Bench):
    name = "redis"
    title = "Redis: TCP, Ringroad, its rivals and a Unix socket"
    carriers = arguments.choices("redis", "--carriers")
    packages = {"server": {"redis-server": "redis-server", "ip": "iproute2"},
                "client": {"redis-benchmark": "redis-tools", "ip": "iproute2"}}
    groups, rows, field = ("command", "pipeline"), ("clients",), "clients"
    metrics = (RATE, P50, P99, *COSTS, CHANNEL)
    panels = (RATE, P50)
    rounds, seconds = (5, 3), (2, 1)
    introduction = (
        "redis-benchmark asks a server that keeps nothing on a disk, with one event loop at either "
        "end. A latency is that of a request, with a pipeline that of all requests that were sent at "
        "once. Processor time and context switches are of both processes, a library's threads "
        "included; of redis-benchmark's those of a short run are taken off, which are its start's.",
        "Ringroad's connections are promoted from their first message on, by a policy with "
        "promote_after = { messages = 0 }; redis-benchmark does not wait for that.",
        f"A row with figures has its proof: with Ringroad {CHANNEL_SHARE:.0%} of the server's bytes "
        "at least were on the channel, as many as the values have; over RDMA and with the rivals the "
        "devices counted a packet for each message at least, and with the others none.",
        "\"others %\" is how busy the processors of the client's host were with neither end.")

    def __init__(self, place, options, say):
        super().__init__(place, options, say)
        self._idle_packets_per_s = None

    @staticmethod
    def complete(options):
        whole = {"commands": list(COMMANDS), "clients": CLIENTS, "pipeline": PIPELINES}
        for name, values in (whole | (QUICK if options.quick else {})).items():
            if getattr(options, name) is None:
                setattr(options, name, values)

    def settings(self):
        options = self.options
        ends = self.place.ends.items()
        return {"commands": options.commands, "clients": options.clients,
                "redis": {role: end.host.call("integration.bench.redis_ends:version", role) for role, end in ends},
                "pipeline": options.pipeline, "value": options.value,
                "ringroad": self.place.server.host.call("integration.bench.probe:ringroad_build",
                                                        self.place.server.ringroad)}

    def facts(self):
        options = self.options
        return {**self.place.facts("integration.bench.redis_ends:facts"), "values": f"{options.value} bytes",
                "each measurement": f"{options.seconds} s, {options.rounds} rounds"}

    def cells(self):
        return [{"command": command, "pipeline": pipeline, "clients": clients}
                for command in self.options.commands for pipeline in self.options.pipeline
                for clients in self.options.clients]

    def heading(self, group):
        command, pipeline = group
        at_once = "one request at a time" if pipeline == 1 else f"{pipeline} requests at a time"
        return f"{command.upper()}, {at_once} from each client"

    def line(self, figures):
        share = figures["channel_percent"]
        return f"{figures['per_s']:9.0f}/s  p50 {figures['p50_us']:8.1f} us" + \
            (f"  {share:.1f} % on the channel" if share is not None else "")

    # ---- one carrier's server, and its cells

    def open(self, block, carrier):
        if self._idle_packets_per_s is None:
            self._idle_packets_per_s = meters.idle_packets_per_s(self.place)
        end = self.place.server
        port = end.host.call("integration.lib.template:free_port", end.address)
        path = f"{end.host.work}/redis-{port}" if carrier.name == "unix" else ""
        password = secrets.token_hex(16)  # other hosts on that network are not to use it
        server = end.host.make(
            "integration.bench.redis_ends:Server", end.address, port, path, password, end.host.work,
            self._environment(carrier, "server", port), f"{end.host.work}/{carrier.name}-redis.log",
            end.ringroad if carrier.via else "", carrier.ours)
        opened = Opened(server, [*(["-s", path] if path else ["-h", end.address, "-p", port]),
                                 "-a", password],
                        self._environment(carrier, "client", port))
        run.until_it_listens(opened)
        return opened

    def _environment(self, carrier, role, port):
        keys = {"promote_after": 0} if carrier.via else {}
        return carrier.environment(self.place, role, [port], **keys)

    def measure(self, opened, carrier, key, number):
        try:
            return self._measured(opened, carrier, key)
        except hosts.Silent:
            raise
        except hosts.HostError as problem:
            raise run.CellError(f"{problem}\n    the server: {opened.server.evidence()}") from None

    def _measured(self, opened, carrier, key):
        if not opened.has_value:
            self._run(opened, {"command": "set", "clients": 1, "pipeline": 1}, 1)
            opened.has_value = True
        requests = FIRST * key["pipeline"]
        first = self._run(opened, key, requests)
        if requests / first["rps"] < SHORT_S:  # that was mostly its start
            requests = int(SHORT_S * first["rps"])
            first = self._run(opened, key, requests)
        low, high = BOUNDS
        count = requests + max(low, min(high, int(self.options.seconds * first["rps"])))
        opened.server.mark()
        moved, busy = meters.Moved(self.place), meters.Busy(self.place)
        told = self._run(opened, key, count, 30 * count / first["rps"])
        server = opened.server.spent()
        others_percent = busy.others_percent({"client": told["cpu_s"], "server": server["cpu_s"]})
        figures = figures_of((count, told), (requests, first), server, moved.packets()) | {
            "others_percent": others_percent}
        wrong = problems(carrier, key, figures, server["bytes"], self.options.value,
                         self._idle_packets_per_s)
        if wrong:
            raise run.CellError("; ".join(wrong))
        return figures

    def _run(self, opened, key, requests, more_s=0.0):
        end, limit_s = self.place.client, PATIENCE_S + more_s
        load = end.host.make(
            "integration.bench.redis_ends:Load",
            [*opened.where, "-t", key["command"], "-c", key["clients"], "-P", key["pipeline"],
             "-d", self.options.value, "-n", requests],
            opened.environment, f"{end.host.work}/redis-load.log")
        # Where the agent has not answered it is not asked again; it lets go of all that it has itself.
        try:
            told = load.finish(limit_s, limit_s=2 * limit_s)
        except hosts.Silent:
            raise
        except hosts.HostError:
            load.forget()
            raise
        load.forget()
        return told


def figures_of(run_, first, server, packets):
    """The figures of a cell. `run_` and `first`, the short run before, are pairs of the number of
    requests and what Load.finish told, `server` is what Server.spent did."""
    (count, told), (less, start) = run_, first
    more_s, more_switches = (told[name] - start[name] for name in ("cpu_s", "switches"))
    carried = server["bytes"]
    return {"operations": count, "seconds": count / told["rps"], "per_s": told["rps"],
            "p50_us": 1000 * told["p50_latency_ms"], "p99_us": 1000 * told["p99_latency_ms"],
            "client_cpu_us": 1e6 * more_s / (count - less) if more_s > 0 else None,
            "server_cpu_us": 1e6 * server["cpu_s"] / count,
            "switches": max(0, more_switches) / (count - less) + server["switches"] / count,
            "packets": packets / count,
            "channel_percent": 100 * carried["channel"] / max(1, sum(carried.values()))
                               if carried else None}


def problems(carrier, key, figures, carried, value, idle_packets_per_s):
    """What shows that the figures are not this carrier's: a list of sentences. `carried` is what
    Ringroad told of the server's bytes, if it should."""
    found = []
    if carrier.via and carried is None:
        return ["`ringroad ss` does not know the server"]
    if carrier.via:
        share = carried["channel"] / max(1, sum(carried.values()))
        if share < CHANNEL_SHARE or carried["channel"] < CHANNEL_SHARE * value * figures["operations"]:
            found.append(f"of the bytes only {carried['channel']} crossed the channel, and "
                         f"{carried['tcp']} TCP")
    return found + meters.packet_problems(
        carrier, figures["packets"], 2 / key["pipeline"],
        idle_packets_per_s * figures["seconds"] / figures["operations"])


@dataclass
class Opened:
    """A carrier's server, and how redis-benchmark is told of it."""

    server: hosts.Remote
    where: list
    environment: dict  # of redis-benchmark
    has_value: bool = False  # the one that is asked for

    def close(self):
        self.server.forget()


BENCH = Redis


def main(words):
    return run.main(BENCH, words)
