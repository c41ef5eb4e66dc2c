"""One phase: sysbench against one server over one carrier, with an account of what happened.

                 plain sysbench ──────── TCP ───────────▶ plain mariadbd
      preloaded sysbench ── TCP, then the channel ──▶ preloaded mariadbd

Both servers run all the time, on copies of the same data; only one is under load at a time. What
is measured begins behind a gate (gate.py), when the streams are on the carrier that is wanted.
"""

import time
from dataclasses import dataclass

from lib import procstat, rdma_counters, ringroad
from bench import gate

# When the streams are looked at, as a share of the phase.
SAMPLE_AT = 0.5
# A promotion that takes longer than the warm-up prolongs it, up to this.
PROMOTION_LIMIT_S = 12
LOOK_EVERY_S = 0.02
# In the window no stream has a reason to use TCP: what is left out is the counters' own noise.
CHANNEL_SHARE = 0.99
# Packets that a phase over TCP may see on the RDMA devices, besides twice the idle rate.
STRAY_PACKETS_PER_QUERY = 0.01

SERVER_COUNTERS = ("Questions", "Bytes_sent", "Bytes_received", "Innodb_deadlocks")


@dataclass
class Side:
    """A server, the load for it, and how the two are connected.

    `carrier` is "tcp", "rdma" or "shm"; `warm_up_s` is how long a phase's streams are in use at
    least before the measured window; `tool` (lib.ringroad.Ringroad) is None when nothing at all is
    preloaded in this comparison, and `preload` when nothing is on this side.
    """

    label: str
    carrier: str
    server: object
    load: object
    warm_up_s: float
    preload: dict = None
    tool: object = None

    @property
    def channel(self):
        return self.carrier != "tcp"

    def snapshot(self):
        return self.tool.snapshot() if self.tool else ringroad.Snapshot.empty()


@dataclass
class Account:
    """What had been counted on a side at one moment."""

    totals: dict
    status: dict
    usage: procstat.Usage
    idle_usage: procstat.Usage
    rdma: dict
    snapshot: ringroad.Snapshot

    @classmethod
    def read(cls, side, idle_server):
        rdma = rdma_counters.read_when_quiet()
        snapshot = side.snapshot()
        return cls(snapshot.totals(side.server.pid), side.server.status(*SERVER_COUNTERS),
                   procstat.read(side.server.pid), procstat.read(idle_server.pid), rdma, snapshot)


def measure(side, idle_server, workload, work, threads, seed, seconds=0, events=0):
    """Runs sysbench on `side` and returns the phase's record (plain data, for JSON).

    All figures are of the window that begins when the gate opens; "whole" has the bytes of the
    phase from before its connections, "set_up" what came before the window. `idle_server` is the
    one that is not under load; what it costs meanwhile is recorded. `work` is for files.
    """
    server = side.server
    totals_at_begin = side.snapshot().totals(server.pid)
    status_at_begin = server.status(*SERVER_COUNTERS)
    set_up, window, opened = {}, None, 0.0
    with gate.Gate(work, workload, threads) as barrier:
        def before_start(child):
            nonlocal set_up, window, opened
            barrier.wait_for_connections(child)
            set_up = warm_up(side, child, threads)
            set_up["statements"] = barrier.close(child)
            window = Account.read(side, idle_server)
            opened = time.monotonic()
            barrier.open()

        run = side.load.start(gate.SCRIPT, work / "sysbench.log", threads, seed, seconds, events,
                              {**(side.preload or {}), **barrier.environment}, before_start)
        sample, sampled_at = window.snapshot, "start"
        try:
            if run.goes_on_for(seconds * SAMPLE_AT):
                look = side.snapshot()
                # A look that outlasts the load may find the streams closed.
                if time.monotonic() < opened + seconds:
                    sample, sampled_at = look, "middle"
            report = run.finish()
        finally:
            run.kill()
    ended = time.monotonic()
    server_cpu_s, server_switches = procstat.read(server.pid).since(window.usage)
    idle_cpu_s, _ = procstat.read(idle_server.pid).since(window.idle_usage)
    after = Account.read(side, idle_server)
    rdma = rdma_counters.difference(after.rdma, window.rdma)
    # sysbench counts a connection's statements from its first, its transactions from the clock on.
    report["queries"] -= set_up["statements"]
    report["qps"] = report["queries"] / report["seconds"]
    queries = max(1, report["queries"])
    return {
        **report,
        "label": side.label,
        "carrier": side.carrier,
        "elapsed_s": ended - opened,
        "server_cpu_us_per_query": server_cpu_s * 1e6 / queries,
        "client_cpu_us_per_query": report["client_cpu_s"] * 1e6 / queries,
        "switches_per_query": (server_switches + report["client_switches"]) / queries,
        "server_switches": server_switches,
        "idle_server_cpu_s": idle_cpu_s,
        "server_status": ringroad.difference(after.status, window.status),
        "bytes": ringroad.difference(after.totals, window.totals),
        "whole": {"bytes": ringroad.difference(after.totals, totals_at_begin),
                  "server_status": ringroad.difference(after.status, status_at_begin)},
        "set_up": set_up,
        "policy_problem": after.snapshot.policy_problem(server.pid),
        "server_known": after.snapshot.knows(server.pid),
        "client_known": sample.knows(run.pid),
        "sampled_at": sampled_at,
        "client_streams": open_streams(sample.streams(run.pid)),
        "server_streams": open_streams(sample.streams(server.pid)),
        "rdma": rdma,
        "rdma_packets": rdma_counters.packets(rdma),
    }


def warm_up(side, child, threads):
    """Looks at the streams until they are all where they are wanted, and waits for the least time.

    A dict: `seconds`, and `promotion_s`, the time after which all streams were first seen on their
    carrier; None when they were not in PROMOTION_LIMIT_S, or never can be because Ringroad is not
    in the processes. Over TCP the first look is enough.
    """
    began = time.monotonic()
    pids = (child.pid, side.server.pid)
    promotion_s = None
    while promotion_s is None:
        snapshot = side.snapshot()
        now = time.monotonic() - began
        if wanted_streams_are_there(snapshot, pids, side.carrier, threads):
            promotion_s = now
            child.ends_within(max(0.0, side.warm_up_s - now))
        elif (now >= PROMOTION_LIMIT_S or not all(map(snapshot.knows, pids))
              or child.ends_within(LOOK_EVERY_S)):
            break
    return {"seconds": time.monotonic() - began, "promotion_s": promotion_s}


def match_warm_up(tcp, channel, record):
    """Lets the next phase over `tcp` warm up as long as the channel's of `record` did: a promotion
    that takes its time is a longer warm-up."""
    tcp.warm_up_s = max(channel.warm_up_s, record["set_up"]["seconds"])


def wanted_streams_are_there(snapshot, pids, carrier, threads):
    """Whether each of the processes has `threads` streams on the channel, if one is wanted."""
    return carrier == "tcp" or all(
        ringroad.on_channel(open_streams(snapshot.streams(pid)), carrier) >= threads
        for pid in pids)


def open_streams(streams):
    """Without those that are over: a connection that was just closed is listed for a while."""
    return [stream for stream in streams if stream["state"] != ringroad.CLOSED]


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
    if (record["server_known"] or record["client_known"]
            or any(record["whole"]["bytes"].values())):
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
    if record["set_up"]["promotion_s"] is None:
        found.append(f"the streams were not all on {carrier} "
                     f"{record['set_up']['seconds']:.1f} s after they were connected")
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
        promotion_s = record["set_up"]["promotion_s"]
        text += f"  [{there} streams"
        text += f" in {promotion_s:.2f} s" if promotion_s is not None else ""
        text += f", {share:.1f} % of bytes on {record['carrier']}"
        text += f", {record['rdma_packets']} packets]" if record["carrier"] == "rdma" else "]"
    elif record["rdma_packets"]:
        text += f"  [{record['rdma_packets']} RDMA packets]"
    return text
