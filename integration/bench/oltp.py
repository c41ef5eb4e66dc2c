"""`ringroad bench oltp`: MariaDB or MySQL under sysbench's OLTP workloads, by each carrier.

        server's host                                      client's host
   the server, one for each carrier,◀── its carrier ──  sysbench behind a gate (phase.py)
   stopped while others are measured
"""

import os
from dataclasses import dataclass

from integration.bench import arguments, hosts, phase, run
from integration.bench.report import Metric
from integration.lib import mariadb, ringroad

WORKLOADS = arguments.choices("oltp", "--workloads")
THREADINGS = arguments.choices("oltp", "--threading")
THREADS = arguments.default("oltp", "--threads")
# Of servers of other names. Where a path leads to shows when it is asked for its version.
PACKAGES = {"mysqld": {"mysqld": "mysql-server", "mysql": "mysql-client"}}
QUICK = {"workloads": ["point_select", "read_write"], "threads": [1, 16],
         "threading": ["connection"]}
SEED = 20240229
# Seconds of light statements at least before each measured window. In an emulated machine a
# promotion takes longer.
WARM_UP_S, WARM_UP_EMULATED_S = 0.2, 0.5
# A server starts in less than a second. On a busy host whose processors are emulated it was more than 30.
START_S = 120
# The first load on a new server is not measured: it fills caches, and shows that the carrier works.
FIRST = ("oltp_read_only", 4, 1)
PREPARE_S = 600
# Beyond a cell's own time: to connect and promote, and what lib.sysbench gives a run to end.
CALL_S = 150
# Names a directory that lib.template has made or may make, on the server's host.
TEMPLATE = "RINGROAD_BENCH_TEMPLATE"
# What of a phase's record is kept as it is.
KEPT = ("tps", "qps", "transactions", "queries", "errors", "seconds", "p50_ms", "p95_ms", "p99_ms",
        "latency_avg_ms", "latency_max_ms", "server_cpu_us_per_query", "client_cpu_us_per_query",
        "switches_per_query", "others_percent", "bytes", "rdma", "rdma_packets", "set_up", "server_status",
        "sampled_at", "carrier")

TPS = Metric("tps", "tps", 1, True, True)
P95 = Metric("p95_ms", "p95 ms", 3, False, True)


class Oltp(run.Bench):
    name = "oltp"
    title = "A database under sysbench: TCP, Ringroad and its rivals"
    packages = {"server": {"mariadbd": "mariadb-server", "mariadb": "mariadb-client",
                           "mariadb-install-db": "mariadb-server", "sysbench": "sysbench",
                           "ip": "iproute2"},
                "client": {"sysbench": "sysbench", "ip": "iproute2"}}
    carriers = arguments.choices("oltp", "--carriers")
    groups, rows, field = ("threading", "workload"), ("threads",), "threads"
    metrics = (TPS, Metric("p50_ms", "p50 ms", 3), P95, Metric("p99_ms", "p99 ms", 3),
               Metric("server_cpu_us_per_query", "server us/query", 1, False, True),
               Metric("client_cpu_us_per_query", "client us/query"),
               Metric("switches_per_query", "switches/query", 2, False, True),
               Metric("channel_percent", "channel %", 2),
               Metric("rdma_packets_per_query", "packets/query", 2),
               Metric("others_percent", "others %", 0))
    panels = (TPS, P95)
    rounds, seconds = (5, 3), (2, 2)
    introduction = (
        "Each carrier has its own server on a copy of the same data, in memory; the servers that are "
        "not under load are stopped. A measured window begins when all connections are up, have "
        "been in use for a moment and, with Ringroad, are on the channel; it ends with the load.",
        "A row with figures has its proof: with TCP no packet crossed the RDMA devices beyond the "
        "background and Ringroad was in no process; with Ringroad each stream was on the channel at "
        "both ends and its bytes are the server's own count; RDMA and its rivals moved the devices' "
        "counters by a packet a query at least. What failed that has no figures but says so.",
        "\"others %\" is how busy the processors of the server's host were with neither the server nor "
        "sysbench: with other programs, and with what the kernel does on its own account.")

    def __init__(self, place, options, say):
        super().__init__(place, options, say)
        self._emulated = place.name == "soft-roce"
        self._idle_packets_per_s = None
        # By the number of connections: the others warm up as long as Ringroad's last promotion.
        self._warm_up_s = {}
        self._database = place.server.host.call("integration.lib.servers:described", options.server)
        self.title = self.title.replace("A database", self._database["title"])
        self._threading = threadings(options.threading, self._database)

    @classmethod
    def programs(cls, options):
        if options.server == mariadb.PROGRAM:
            return cls.packages
        common = {"sysbench": "sysbench", "ip": "iproute2"}
        return {"server": {**PACKAGES.get(options.server, {}), **common}, "client": common}

    @staticmethod
    def complete(options):
        if "/" in options.server and not os.path.isabs(options.server):
            raise ValueError(f"--server: {options.server} is neither a name nor a whole path")
        whole = {"workloads": list(WORKLOADS), "threads": THREADS}
        for name, values in (whole | (QUICK if options.quick else {})).items():
            if getattr(options, name) is None:
                setattr(options, name, values)

    def settings(self):
        options = self.options
        return {"workloads": options.workloads, "threads": options.threads,
                "threading": self._threading, "tables": options.tables,
                "table_size": options.table_size, **self._software()}

    def _software(self):
        """Figures of one table are of one build."""
        end = self.place.server
        return {self._database["name"]: self._database["version"],
                "ringroad": end.host.call("integration.bench.probe:ringroad_build", end.ringroad)}

    def facts(self):
        options = self.options
        return {**self.place.facts("integration.bench.oltp_ends:facts"),
                self._database["title"]: self._database["version"],
                "tables": f"{options.tables} of {options.table_size} rows, uniform keys",
                "each measurement": f"{options.seconds} s, {options.rounds} rounds"}

    def blocks(self):
        return [{"threading": threading} for threading in self._threading]

    def cells(self):
        return [{"workload": workload, "threads": threads}
                for workload in self.options.workloads for threads in self.options.threads]

    def heading(self, group):
        threading, workload = group
        return f"oltp_{workload}, " + {"connection": "a thread for each connection",
                                       "pool": f"{self._database['title']}'s thread pool"}[threading]

    def line(self, figures):
        text = f"{figures['tps']:9.1f} tps  p95 {figures['p95_ms']:8.3f} ms"
        if figures["carrier"] in phase.RINGROAD:
            text += f"  {figures['channel_percent']:.1f} % on the channel"
        if figures["rdma_packets"]:
            text += f"  {figures['rdma_packets']} RDMA packets"
        return text

    # ---- one carrier's server and load

    def open(self, block, carrier):
        place, options = self.place, self.options
        server, client = place.server, place.client
        if self._idle_packets_per_s is None:
            self.say("data directory with sysbench's tables")
            self._idle_packets_per_s = server.host.call("integration.lib.rdma_counters:idle_packets_per_s")
        data = server.host.call(
            "integration.bench.oltp_ends:prepare", os.environ.get(TEMPLATE) or f"{server.host.work}/template",
            options.tables, options.table_size, options.server, limit_s=PREPARE_S)
        port = server.host.call("integration.lib.template:free_port")
        connections = max(*options.threads, FIRST[1]) + 20
        words = [*self._database["threadings"][block["threading"]],
                 f"--max-connections={connections}", f"--back-log={connections}",
                 # Threads that end take their count of context switches with them.
                 f"--thread-cache-size={connections}", "--connect-timeout=60"]
        process = server.host.make(
            "integration.bench.oltp_ends:Server", f"{carrier.name}-{block['threading']}", data,
            server.host.work, server.address, port, carrier.environment(place, "server", [port]),
            words, _command(server), carrier.ours, START_S, options.server)
        try:
            process.start(limit_s=START_S + CALL_S)
        except hosts.Silent:
            raise
        except hosts.HostError as problem:
            evidence = process.evidence()
            process.forget()
            raise run.CellError(f"{str(problem).partition('; ')[0].splitlines()[0]}; {evidence}") \
                from None
        socket = process.socket() if carrier.name == "unix" else ""
        load = client.host.make("integration.bench.oltp_ends:client", server.address, port, socket,
                                options.tables, options.table_size, client.host.work,
                                _command(client), not place.one_host)
        side = phase.Side(carrier.name, carrier.via or carrier.name, Patient(process), Patient(load), 0.0,
                          carrier.environment(place, "client", [port]))
        return Pair(process, load, side)

    def measure(self, opened, carrier, key, number):
        if not opened.is_warm:
            self._measured(opened, carrier, *FIRST)
            opened.is_warm = True
        opened.server.resume()
        return self._measured(opened, carrier, f"oltp_{key['workload']}", key["threads"],
                              self.options.seconds, number)

    def _measured(self, opened, carrier, workload, threads, seconds, number=0):
        side = opened.side
        ringroads = bool(carrier.via)
        side.warm_up_s = WARM_UP_EMULATED_S if self._emulated else WARM_UP_S
        if not ringroads:
            side.warm_up_s = max(side.warm_up_s, self._warm_up_s.get(threads, 0.0))
        try:
            record = phase.measure(side, workload, threads, SEED + number, seconds)
        except hosts.Silent:
            raise
        except hosts.HostError as problem:
            raise run.CellError(f"{problem}\n    the server: {opened.server.evidence()}") from None
        opened.server.pause()
        problems = phase.problems(record, threads, self._idle_packets_per_s)
        if problems:
            raise run.CellError("; ".join(problems))
        if ringroads:
            self._warm_up_s[threads] = record["set_up"]["promotion_s"]
        return figures_of(record)


def threadings(wanted, database):
    """What is measured, of `wanted` or (None) of all; a pool that the database has not is refused."""
    if "pool" in (wanted or []) and "pool" not in database["threadings"]:
        raise hosts.HostError(f"--threading: this {database['title']} has no pool, by its own or by a "
                              "plugin thread_pool.so: ask for connection")
    return wanted or [name for name in THREADINGS if name in database["threadings"]]


def figures_of(record):
    """What is kept of a phase's record."""
    queries = max(1, record["queries"])
    moved = sum(record["bytes"].values())
    return {**{name: record[name] for name in KEPT},
            "rdma_packets_per_query": record["rdma_packets"] / queries,
            "channel_percent": 100 * record["bytes"]["channel"] / moved if moved else None,
            "promoted": ringroad.on_channel(record["client_streams"], record["carrier"])}


def _command(end):
    """The `ringroad` of a host, "" when there is none."""
    return end.ringroad if end.host.call("integration.bench.probe:ringroad_library", end.ringroad)[0] else ""


@dataclass
class Pair:
    """A carrier's server and load on their hosts."""

    server: hosts.Remote
    load: hosts.Remote
    side: phase.Side
    is_warm: bool = False

    def close(self):
        try:
            self.load.forget()
        finally:
            self.server.forget()


class Patient:
    """A Remote whose calls may take as long as a cell."""

    def __init__(self, remote):
        self._remote = remote

    def __getattr__(self, name):
        call = getattr(self._remote, name)
        return lambda *words, **named: call(*words, limit_s=CALL_S, **named)


BENCH = Oltp


def main(words):
    return run.main(BENCH, words)
