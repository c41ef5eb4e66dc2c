"""One phase: sysbench against one server over one carrier, with an account of what happened.

                 plain sysbench ──────── TCP ───────────▶ plain mariadbd
      preloaded sysbench ── TCP, then the channel ──▶ preloaded mariadbd

Both servers run all the time, on copies of the same data; only one is under load at a time.
"""

import time
from dataclasses import dataclass

from lib import procstat, rdma_counters, ringroad

# When the streams are looked at, as a share of the phase: late, but surely while they exist.
SAMPLE_AT = 0.75
# The greeting and the first statements travel by TCP; everything else must be on the channel.
CHANNEL_SHARE = 0.95
# Packets that a phase over TCP may see on the RDMA devices, besides twice the idle rate.
STRAY_PACKETS_PER_QUERY = 0.01

SERVER_COUNTERS = ("Questions", "Bytes_sent", "Bytes_received", "Innodb_deadlocks")


@dataclass
class Side:
    """A server, the load for it, and how the two are connected.

    `carrier` is "tcp", "rdma" or "shm"; `tool` (lib.ringroad.Ringroad) is None when nothing at all
    is preloaded in this comparison, and `preload` when nothing is on this side.
    """

    label: str
    carrier: str
    server: object
    load: object
    preload: dict = None
    tool: object = None

    @property
    def channel(self):
        return self.carrier != "tcp"

    def snapshot(self):
        return self.tool.snapshot() if self.tool else ringroad.Snapshot.empty()


def measure(side, idle_server, workload, output, threads, seed, seconds=0, events=0):
    """Runs sysbench on `side` and returns the phase's record (plain data, for JSON).

    `idle_server` is the one that is not under load; what it costs meanwhile is recorded.
    """
    rdma_before = rdma_counters.read_when_quiet()
    server = side.server
    totals_before = side.snapshot().totals(server.pid)
    status_before = server.status(*SERVER_COUNTERS)
    usage_before, idle_before = procstat.read(server.pid), procstat.read(idle_server.pid)
    began = time.monotonic()
    run = side.load.start(workload, output, threads, seed, seconds, events, side.preload)
    sample = ringroad.Snapshot.empty()
    try:
        if run.goes_on_for(seconds * SAMPLE_AT):
            sample = side.snapshot()
        report = run.finish()
    finally:
        run.kill()
    server_cpu_s, server_switches = procstat.read(server.pid).since(usage_before)
    idle_cpu_s, _ = procstat.read(idle_server.pid).since(idle_before)
    status = ringroad.difference(server.status(*SERVER_COUNTERS), status_before)
    rdma = rdma_counters.difference(rdma_counters.read_when_quiet(), rdma_before)
    after = side.snapshot()
    queries = max(1, report["queries"])
    return {
        **report,
        "label": side.label,
        "carrier": side.carrier,
        "elapsed_s": time.monotonic() - began,
        "server_cpu_us_per_query": server_cpu_s * 1e6 / queries,
        "client_cpu_us_per_query": report["client_cpu_s"] * 1e6 / queries,
        "switches_per_query": (server_switches + report["client_switches"]) / queries,
        "server_switches": server_switches,
        "idle_server_cpu_s": idle_cpu_s,
        "server_status": status,
        "bytes": ringroad.difference(after.totals(server.pid), totals_before),
        "policy_problem": after.policy_problem(server.pid),
        "server_known": after.knows(server.pid),
        "client_known": sample.knows(run.pid),
        "client_streams": sample.streams(run.pid),
        "server_streams": sample.streams(server.pid),
        "rdma": rdma,
        "rdma_packets": rdma_counters.packets(rdma),
    }


def problems(record, threads, idle_packets_per_s):
    """What is wrong with a measured phase, as sentences; none when it is what it says it is."""
    found = []
    if record["exit_status"] != 0:
        found.append(f"sysbench ended with status {record['exit_status']}")
    found += record["fatal"]
    if record["reconnects"]:
        found.append(f"sysbench reconnected {record['reconnects']} times")
    deadlocks = record["server_status"]["Innodb_deadlocks"]
    if record["errors"] > deadlocks:
        found.append(f"sysbench saw {record['errors']} errors; deadlocks between its own "
                     f"transactions explain {deadlocks} of them")
    if record["carrier"] == "tcp":
        found += _tcp_problems(record, idle_packets_per_s)
    else:
        found += _channel_problems(record, threads)
    return found


def _tcp_problems(record, idle_packets_per_s):
    found = []
    if record["server_known"] or record["client_known"] or any(record["bytes"].values()):
        found.append("Ringroad was in a process of this phase, which must be without it")
    allowed = stray_packets_allowed(record, idle_packets_per_s)
    if record["rdma_packets"] > allowed:
        found.append(f"{record['rdma_packets']} packets crossed the RDMA devices during a phase "
                     f"over TCP (at most {allowed:.0f} are background)")
    return found


def stray_packets_allowed(record, idle_packets_per_s):
    return (2 * idle_packets_per_s * record["elapsed_s"]
            + STRAY_PACKETS_PER_QUERY * record["queries"])


def _channel_problems(record, threads):
    carrier = record["carrier"]
    if not record["server_known"]:
        return ["ringroad ss does not know the server: the library is not active in it"]
    found = []
    if record["policy_problem"]:
        found.append(f"the server runs without its policy: {record['policy_problem']}")
    for end in ("client", "server"):
        streams = record[f"{end}_streams"]
        there = ringroad.on_channel(streams, carrier)
        if there < threads:
            found.append(f"{there} of {threads} {end} streams were on {carrier}: "
                         f"{reasons(streams, carrier) or 'no other streams were listed'}")
    status = record["server_status"]
    wanted = CHANNEL_SHARE * (status["Bytes_sent"] + status["Bytes_received"])
    if record["bytes"]["channel"] < wanted:
        found.append(f"{record['bytes']['channel']} bytes crossed the channel, but MariaDB "
                     f"counted {status['Bytes_sent']} sent and {status['Bytes_received']} received")
    if carrier == "rdma" and record["rdma_packets"] < record["queries"]:
        found.append(f"the RDMA devices counted {record['rdma_packets']} packets for "
                     f"{record['queries']} queries")
    return found


def reasons(streams, carrier):
    """Why streams are not on `carrier`: "2 x ON_TCP (memlock; peer none)", joined."""
    counts = {}
    for stream in streams:
        if not ringroad.on_channel([stream], carrier):
            words = f"{stream['state']} ({stream['reason']}; peer {stream['peer_reason']})"
            counts[words] = counts.get(words, 0) + 1
    return ", ".join(f"{count} x {words}" for words, count in sorted(counts.items()))


def line(record):
    """The phase in one line of progress."""
    text = (f"{record['tps']:9.1f} tps  p95 {record['p95_ms']:8.3f} ms  "
            f"errors {record['errors'] + record['reconnects']}")
    if record["carrier"] != "tcp":
        there = ringroad.on_channel(record["client_streams"], record["carrier"])
        moved = sum(record["bytes"].values())
        share = 100 * record["bytes"]["channel"] / moved if moved else 0.0
        text += f"  [{there} streams, {share:.1f} % of bytes on {record['carrier']}"
        text += f", {record['rdma_packets']} packets]" if record["carrier"] == "rdma" else "]"
    elif record["rdma_packets"]:
        text += f"  [{record['rdma_packets']} RDMA packets]"
    return text
