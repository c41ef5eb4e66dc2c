"""`ringroad bench net`: what a connection itself costs, by each carrier and by raw verbs.

        server's host                                      client's host
   net_load serve, one for each carrier  ◀── its carrier ──  net_load ask, a new one for each cell
   perftest's server                     ◀── raw verbs ────  perftest's client
"""

from dataclasses import dataclass

from integration.bench import arguments, carriers, hosts, meters, run, targets
from integration.bench.meters import COSTS, P50, P99, RATE
from integration.bench.report import Metric
from integration.lib import ringroad

# Measures by name: (measure, way of waiting) of a block's key.
MEASURES = {"pingpong-block": ("pingpong", "block"), "pingpong-epoll": ("pingpong", "epoll"),
            "stream": ("stream", "block"), "rate": ("rate", "block"),
            "connections": ("connections", "block"), "promotions": ("promotions", "block")}
# What the load is told to do; a rate is a stream of small messages.
KINDS = {"pingpong": "pingpong", "stream": "stream", "rate": "stream", "connections": "queries",
         "promotions": "queries"}
SIZES = arguments.default("net", "--sizes")
QUICK_SIZES = [64, 4096]
SMALL, LARGE = 64, 65536
# Operations of a first run, from which the length of the measured one follows, and bounds of that.
# More connections than that could run out of ports.
FIRST = {"pingpong": 100, "stream": 50, "rate": 1000, "connections": 20, "promotions": 20}
BOUNDS = {"pingpong": (100, 500_000), "stream": (50, 200_000), "rate": (1000, 20_000_000),
          "connections": (20, 3000), "promotions": (20, 3000)}
# perftest's program for each measure and carrier; its first run has so many iterations, and the
# measured one several times as many, so that the difference of their processor times says something.
RAW = {("pingpong", "write"): ["ib_write_lat"], ("pingpong", "send"): ["ib_send_lat"],
       ("pingpong", "events"): ["ib_send_lat", "-e"],
       ("stream", "write"): ["ib_write_bw"], ("stream", "send"): ["ib_send_bw"],
       ("rate", "write"): ["ib_write_bw"], ("rate", "send"): ["ib_send_bw"]}
RAW_FIRST, RAW_BOUNDS = 100, (500, 1_000_000)
# A cell may take that much longer than it should before it is taken for one that hangs.
PATIENCE_S = 30
# Of Ringroad's bytes.
CHANNEL_SHARE = 0.99
LARGEST_PACKET = 4096

BYTES = Metric("mb_per_s", "MB/s", 1, True, True)
METRICS = {"pingpong": (P50, P99, Metric("p999_us", "p99.9 us", 2), *COSTS),
           "stream": (BYTES, *COSTS), "rate": (RATE, *COSTS),
           **dict.fromkeys(("connections", "promotions"),
                           (RATE, Metric("p50_us", "p50 us", 2), P99, *COSTS))}
HEADINGS = {
    "pingpong": "ping-pong",
    "stream": f"streaming in one direction, sends of {LARGE} bytes",
    "rate": f"messages of {SMALL} bytes in one direction, one thread",
    "connections": f"connect, ask and be answered {SMALL} bytes, close; one after the other",
    "promotions": f"connect and be promoted, ask and be answered {SMALL} bytes, close; one after the other"}

APART = ("Each end had half of the processors for itself (--apart): in no figure is what it saves where the "
         "scheduler puts both on one.")


class Net(run.Bench):
    name = "net"
    title = "Connections: TCP, Ringroad, its rivals and raw verbs"
    carriers = arguments.choices("net", "--carriers")
    packages = {"server": {"ip": "iproute2"}, "client": {"ip": "iproute2"}}
    groups, rows, field = ("measure", "wait", "connections"), ("size",), "size"
    references = ("tcp", "write", "events")
    rounds, seconds = (5, 3), (1, 1)
    introduction = (
        "A ping-pong's times are whole round trips, each of them counted; perftest, which prints half "
        "a round trip, has its figures doubled. A stream ends when the peer has told that it has the "
        "last byte. Processor time and context switches are of both processes, threads of a library "
        "included, from the first message of the measured run to the last; of perftest's they are "
        "those of a long run less those of a short one.",
        f"With many connections a message is {SMALL} bytes, each connection has one under way, and "
        "there is a thread for each at both ends, or one for all with epoll.",
        "Ringroad's connections are on their channel before the first message, by a policy with "
        "promote_after = { messages = 0 } and a wait; \"polls\" has spin = \"100ms\", \"sleeps\" "
        "spin = \"0us\". Those that are made to ask once stay on TCP, as by the default "
        "promote_after: what they cost is Ringroad's presence. Those that are to be promoted first are, "
        "before connect and accept return.",
        "A row with figures has its proof: Ringroad says that every connection is on the channel and "
        "carried the bytes, the RDMA devices counted as many packets as there were messages at least, "
        "and none beyond the background for what does not use them.",
        "\"others %\" is how busy the processors of the client's host were with neither end of the "
        "load: with other programs, and with what the kernel does on its own account.")

    def __init__(self, place, options, say):
        super().__init__(place, options, say)
        self._idle_packets_per_s = None
        self._raw_first = {}

    @staticmethod
    def complete(options):
        options.measures = options.measures or list(MEASURES)
        options.sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
        if options.connections < 2:
            raise ValueError("--connections: many are two at least")

    def settings(self):
        options = self.options
        if options.apart and not self.place.one_host:
            raise hosts.HostError("--apart: the ends are on two hosts, and so they are apart")
        return {"measures": options.measures, "sizes": options.sizes,
                "connections": options.connections, **({"apart": True} if options.apart else {}),
                "ringroad": self.place.server.host.call("integration.bench.probe:ringroad_build",
                                                        self.place.server.ringroad)}

    def facts(self):
        return {**self.place.facts("integration.bench.net_ends:facts"),
                "each measurement": f"{self.options.seconds} s, {self.options.rounds} rounds"}

    def blocks(self):
        return [dict(zip(("measure", "wait"), MEASURES[name])) for name in self.options.measures]

    def cells(self):
        sizes = sorted({*self.options.sizes, SMALL, LARGE})
        return [{"connections": 1, "size": size} for size in sizes] + [
            {"connections": self.options.connections, "size": SMALL}]

    def applies(self, carrier, key):
        measure, one = key["measure"], key["connections"] == 1
        if isinstance(carrier, carriers.RawVerbs):
            # With -e it waits as epoll does, too; the others do neither.
            there = (measure, carrier.name) in RAW and one and (
                key["wait"] == "block" or carrier.name == "events")
        else:
            there = measure == "pingpong" or not carrier.name.endswith(("-polls", "-sleeps"))
        sizes = {"pingpong": self.options.sizes if one else [SMALL],
                 "stream": [LARGE] if one else []}.get(measure, [SMALL] if one else [])
        return there and key["size"] in sizes

    def metrics_of(self, group):
        return METRICS[group[0]]

    def panels_of(self, group):
        measure, _, connections = group
        return (P50, P99) if measure == "pingpong" and connections == 1 else ()

    def heading(self, group):
        measure, wait, connections = group
        if measure != "pingpong":
            return HEADINGS[measure]
        waits = {"block": "blocking in recv", "epoll": "waiting in epoll_wait"}[wait]
        many = "1 connection" if connections == 1 else f"{connections} connections"
        return f"{HEADINGS[measure]}, {waits}, {many}"

    def conclusions(self, cells):
        rows = targets.table(cells, self.options.carriers)
        return {"Targets": rows} if len(rows) > 1 else {}

    def line(self, figures):
        if "mb_per_s" in figures:
            words = f"{figures['mb_per_s']:9.1f} MB/s"
        elif figures.get("p50_us") is not None:
            words = f"p50 {figures['p50_us']:9.2f} us  p99 {figures['p99_us']:9.2f} us"
        else:
            words = f"{figures['per_s']:9.0f}/s"
        return words + f"  {figures['packets']:.2f} packets an operation"

    def remarks(self, figures):
        return ([APART] if self.options.apart else []) + super().remarks(figures)

    # ---- one carrier's server, and its cells

    def open(self, block, carrier):
        if self._idle_packets_per_s is None:
            self._idle_packets_per_s = meters.idle_packets_per_s(self.place)
        server = self.place.server
        if isinstance(carrier, carriers.RawVerbs):
            if self.options.apart:
                raise run.CellError("--apart: perftest's ends run anywhere")
            return Raw(*(self._gid(end) for end in (server, self.place.client)))
        port = server.host.call("integration.lib.template:free_port")
        address = f"unix:{server.host.work}/{port}" if carrier.name == "unix" else \
            f"[{server.address}]:{port}" if ":" in server.address else f"{server.address}:{port}"
        process = server.host.make(
            "integration.bench.net_ends:Server", [*self._load(server, "server"), "serve", address], "listening",
            self._environment(carrier, "server", port, block["measure"]),
            f"{server.host.work}/{carrier.name}-server.log", carrier.ours)
        opened = Opened(process, address, port)
        run.until_it_listens(opened)
        return opened

    def measure(self, opened, carrier, key, number):
        if isinstance(carrier, carriers.RawVerbs):
            return self._measure_raw(opened, carrier, key)
        with self._client(opened, carrier, key["measure"], key["connections"]) as client:
            return self._measure_load(client, carrier, key)

    def _measure_load(self, client, carrier, key):
        measure, seconds = key["measure"], self.options.seconds
        words = f"{KINDS[measure]} {key['wait']} {key['size']}"
        first = client.perform(f"{words} {FIRST[measure]}")
        low, high = BOUNDS[measure]
        count = max(low, min(high, int(seconds * FIRST[measure] / first["seconds"])))
        moved, busy = meters.Moved(self.place), meters.Busy(self.place)
        told = client.perform(f"{words} {count}",
                              PATIENCE_S + 30 * count * first["seconds"] / FIRST[measure])
        others_percent = busy.others_percent(
            {end: told[end]["cpu_us_per_operation"] * told["operations"] / 1e6
             for end in ("client", "server")})
        figures = figures_of(measure, told, moved.packets()) | {"others_percent": others_percent}
        carried = client.carried() if carrier.via else None
        wrong = problems(carrier, key, figures, carried, self._idle_packets_per_s)
        if wrong:
            raise run.CellError("; ".join(wrong))
        return figures

    def _client(self, opened, carrier, measure, connections):
        end = self.place.client
        return Client(end.host.make(
            "integration.bench.net_ends:Client", self._load(end, "client"), opened.address, connections,
            self._environment(carrier, "client", opened.port, measure),
            f"{end.host.work}/{carrier.name}-client.log", end.ringroad), opened)

    def _environment(self, carrier, role, port, measure):
        at_once = {"promote_after": 0, "wait": "10s"}
        # The load's own connection, by which the runs are arranged, is not to be promoted among them.
        keys = {"promote_after": 100} if measure == "connections" else at_once
        return carrier.environment(self.place, role, [port], **(keys if carrier.via else {}))

    def _load(self, end, role):
        """The words that start it."""
        program = end.host.call("integration.bench.net_ends:program", end.ringroad)
        if not program:
            raise run.CellError(f"{end.host.name}: there is no ringroad-net-load with "
                                f"{end.ringroad}")
        place = end.host.call("integration.bench.net_ends:on_half_of_it", role) if self.options.apart else []
        return [*place, program]

    # ---- perftest

    def _gid(self, end):
        found = end.host.call("integration.lib.perftest:gid", end.address, end.device)
        if not found:
            raise run.CellError(f"{end.host.name}: no RoCEv2 GID of {end.address}")
        return found

    def _measure_raw(self, opened, carrier, key):
        measure, size = key["measure"], key["size"]
        program, *words = RAW[measure, carrier.name]
        words += ["-s", size]
        at = (carrier.name, measure, size)
        if at not in self._raw_first:
            self._raw_first[at] = self._perftest(opened, program, words, RAW_FIRST)
        first = self._raw_first[at]
        low, high = RAW_BOUNDS
        count = max(low, min(high, int(self.options.seconds / first.seconds_each)))
        moved = meters.Moved(self.place)
        told = self._perftest(opened, program, words, count)
        packets = moved.packets()
        figures = {"packets": packets / count, "operations": count, "switches": None,
                   **{f"{role}_cpu_us": 1e6 * more / (count - RAW_FIRST) if more > 0 else None
                      for role, more in ((role, told.cpu_s[role] - first.cpu_s[role])
                                         for role in told.cpu_s)}}
        if "median_us" in told.figures:
            return figures | {"p50_us": 2 * told.figures["median_us"],
                              "p99_us": 2 * told.figures["p99_us"],
                              "p999_us": 2 * told.figures["p99.9_us"]}
        mb_per_s = told.figures["mib_per_s"] * (1 << 20) / 1e6
        return figures | ({"mb_per_s": mb_per_s} if measure == "stream" else
                          {"per_s": mb_per_s * 1e6 / size})

    def _perftest(self, opened, program, words, count):
        server, client = self.place.server, self.place.client
        port = server.host.call("integration.lib.template:free_port")
        words = [*words, "-n", count]
        limit_s = PATIENCE_S + 30 * self.options.seconds
        sides = []
        try:
            for end, gid, more in ((server, opened.server, []),
                                   (client, opened.client, [server.address])):
                sides.append(end.host.make("integration.lib.perftest:Side", program, words, *gid, port,
                                           f"{end.host.work}/{program}-{len(sides)}.log", *more))
                if not more:
                    sides[0].wait_until_it_listens()
            figures, client_s = sides[1].finish(limit_s, limit_s=2 * limit_s)
            _, server_s = sides[0].finish(limit_s, limit_s=2 * limit_s)
        except (hosts.Silent, KeyboardInterrupt, SystemExit):
            sides.clear()  # see Client.__exit__
            raise
        except hosts.HostError as problem:
            raise run.CellError(str(problem)) from None
        finally:
            for side in sides:
                side.forget()
        return Perftest(figures, {"client": client_s, "server": server_s}, count, size_of(words))


def size_of(words):
    return int(words[words.index("-s") + 1])


@dataclass
class Perftest:
    """What a run of perftest told, with the processor time of both ends."""

    figures: dict
    cpu_s: dict
    count: int
    size: int

    @property
    def seconds_each(self):
        if "mean_us" in self.figures:
            return 2e-6 * self.figures["mean_us"]
        return self.size / max(1.0, self.figures["mib_per_s"] * (1 << 20))


@dataclass
class Raw:
    """The devices of both ends with their GIDs' numbers."""

    server: list
    client: list

    def close(self):
        pass


@dataclass
class Opened:
    """A carrier's server."""

    server: hosts.Remote
    address: str
    port: int

    def close(self):
        self.server.forget()


class Client:
    """The client of one cell; a context. What goes wrong is told with what the server does."""

    def __init__(self, remote, opened):
        self._remote, self._opened = remote, opened

    def perform(self, words, limit_s=None):
        limit_s = limit_s or PATIENCE_S
        return self._with_evidence(self._remote.perform, words, limit_s, limit_s=2 * limit_s)

    def carried(self):
        return self._remote.carried()

    def _with_evidence(self, call, *words, **named):
        try:
            return call(*words, **named)
        except hosts.Silent:
            raise
        except hosts.HostError as problem:
            raise run.CellError(f"{problem}\n    the server: {self._opened.server.evidence()}") \
                from None

    def __enter__(self):
        try:
            self._with_evidence(self._remote.wait_until_connected)
        except BaseException as problem:
            self.__exit__(type(problem))
            raise
        return self

    def __exit__(self, kind=None, *_):
        # An agent that owes an answer is not asked again; what it has started goes with it.
        if kind is None or issubclass(kind, Exception) and not issubclass(kind, hosts.Silent):
            self._remote.forget()


def figures_of(measure, told, packets):
    """The figures of a cell, of what net_load has told."""
    operations = told["operations"]
    ends = told["client"], told["server"]
    figures = {"operations": operations, "seconds": told["seconds"],
               "per_s": told["operations_per_s"],
               "client_cpu_us": ends[0]["cpu_us_per_operation"],
               "server_cpu_us": ends[1]["cpu_us_per_operation"],
               "switches": sum(end["switches_per_operation"] for end in ends),
               "packets": packets / operations}
    if measure == "stream":
        figures["mb_per_s"] = told["bytes_per_s"] / 1e6
    if told["latency_us"]:
        figures |= {"p50_us": told["latency_us"]["p50"], "p99_us": told["latency_us"]["p99"],
                    "p999_us": told["latency_us"]["p99.9"]}
    return figures


def problems(carrier, key, figures, carried, idle_packets_per_s):
    """What shows that the figures are not this carrier's: a list of sentences. `carried` is what
    Ringroad told of the client, if it should."""
    found = []
    if carrier.via and carried is None:
        return ["`ringroad ss` does not know the client"]
    stays = carrier.via and key["measure"] == "connections"
    if carrier.via and not stays:
        there = ringroad.on_channel(carried["streams"], carrier.via)
        if there != key["connections"]:
            found.append(f"{there} of {key['connections']} connections are on the channel: "
                         f"{carried['streams']}")
        moved = carried["bytes"]
        if moved["channel"] < CHANNEL_SHARE * sum(moved.values()):
            found.append(f"of the bytes only {moved['channel']} crossed the channel, and "
                         f"{moved['tcp']} TCP")
    wanted = 0 if stays else {"pingpong": 2, "connections": 1, "promotions": 1}.get(key["measure"],
                                                                   key["size"] / LARGEST_PACKET)
    return found + meters.packet_problems(
        carrier, figures["packets"], wanted,
        idle_packets_per_s * figures["seconds"] / figures["operations"])


BENCH = Net


def main(words):
    return run.main(BENCH, words)
