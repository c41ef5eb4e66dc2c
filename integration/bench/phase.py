"""One phase: sysbench against one server over one carrier, with an account of what happened.

                 plain sysbench ──────── TCP ───────────▶ plain mariadbd
      preloaded sysbench ── TCP, then the channel ──▶ preloaded mariadbd

All servers run all the time, on copies of the same data; only one is under load at a time. What
is measured begins behind a gate (gate.py), when the streams are on the carrier that is wanted.

ServerEnd and ClientEnd are each on the host of its program, and what they take and give is plain
data: `measure` does not know whether they are here or elsewhere (hosts.Remote).
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from integration.bench import gate
from integration.lib import procstat, rdma_counters, ringroad

# When the streams are looked at, as a share of the phase.
SAMPLE_AT = 0.5
# A promotion that takes longer than the warm-up prolongs it, up to this.
PROMOTION_LIMIT_S = 30
LOOK_EVERY_S = 0.02
# In the window no stream has a reason to use TCP: what is left out is the counters' own noise.
CHANNEL_SHARE = 0.99
# What asking the server for its counters adds to them, in bytes.
OWN_BYTES = 1000
# Packets that a phase over TCP may see on the RDMA devices, besides twice the idle rate.
STRAY_PACKETS_PER_QUERY = 0.01

RINGROAD = ("rdma", "shm")
WITHOUT_DEVICES = ("tcp", "unix")
SERVER_COUNTERS = ("Questions", "Bytes_sent", "Bytes_received", "Innodb_deadlocks")


def _look(tool, pid):
    """What `ringroad ss` says of a process now."""
    snapshot = tool.snapshot() if tool else ringroad.Snapshot.empty()
    return {"known": snapshot.knows(pid), "streams": open_streams(snapshot.streams(pid)),
            "totals": snapshot.totals(pid), "policy_problem": snapshot.policy_problem(pid)}


class ServerEnd:
    """A server (lib.mariadb.MariaDb) and what is counted of it on its host.

    `tool` (lib.ringroad.Ringroad) is None when nothing at all is preloaded in this comparison;
    `idle_server` is another one whose cost meanwhile is recorded.
    """

    def __init__(self, server, tool=None, idle_server=None):
        self.server = server
        self._tool = tool
        self._idle_server = idle_server
        self._begin = self._window = None
        self._machine = None

    def begin(self):
        """Before the first connection of a phase."""
        self._begin = (self.look()["totals"], self.server.status(*SERVER_COUNTERS))

    def look(self):
        return _look(self._tool, self.server.pid)

    def mark(self):
        """The measured window begins: nothing moves now."""
        rdma = rdma_counters.read_when_quiet()
        self._window = (self.look()["totals"], self.server.status(*SERVER_COUNTERS),
                        procstat.read(self.server.pid), self._idle_usage(), rdma)
        self._machine = (time.monotonic(), procstat.machine_busy_s())

    def spent(self):
        """What the server has cost since then; the load is over."""
        _, _, usage, idle_usage, _ = self._window
        cpu_s, switches = procstat.read(self.server.pid).since(usage)
        idle_cpu_s, _ = self._idle_usage().since(idle_usage)
        return {"cpu_s": cpu_s, "switches": switches, "idle_cpu_s": idle_cpu_s,
                "machine_s": procstat.machine_busy_s() - self._machine[1],
                "processors_s": (time.monotonic() - self._machine[0]) * os.cpu_count()}

    def counted(self):
        """What has been counted since then, and of the whole phase."""
        totals, status, _, _, rdma = self._window
        rdma = rdma_counters.difference(rdma_counters.read_when_quiet(), rdma)
        look, status_now = self.look(), self.server.status(*SERVER_COUNTERS)
        return {
            "rdma": rdma, "policy_problem": look["policy_problem"], "server_known": look["known"],
            "server_status": ringroad.difference(status_now, status),
            "bytes": ringroad.difference(look["totals"], totals),
            "whole": {"bytes": ringroad.difference(look["totals"], self._begin[0]),
                      "server_status": ringroad.difference(status_now, self._begin[1])}}

    def _idle_usage(self):
        return procstat.read(self._idle_server.pid) if self._idle_server else procstat.Usage(0, {})


class ClientEnd:
    """sysbench on its host, behind a gate. `work` is for files; `own_devices`: the RDMA devices
    here are not those that the server's end counts."""

    def __init__(self, load, work, tool=None, own_devices=False):
        self._load = load
        self._work = Path(work)
        self._tool = tool
        self._own_devices = own_devices
        self._rdma = {}
        self._run = self._gate = self._stack = None

    def is_beside_the_server(self):
        return not self._own_devices

    def launch(self, workload, threads, seed, seconds, events, preload):
        """Returns when all connections are up and in use."""
        with contextlib.ExitStack() as stack:
            self._gate = stack.enter_context(gate.Gate(self._work, workload, threads))
            self._run = self._load.launch(
                gate.SCRIPT, self._work / "sysbench.log", threads, seed, seconds, events,
                {**preload, **self._gate.environment})
            stack.callback(self._run.kill)
            self._gate.wait_for_connections(self._run.child)
            self._stack = stack.pop_all()

    def look(self):
        return _look(self._tool, self._run.pid)

    def ends_within(self, seconds):
        return self._run.child.ends_within(seconds)

    def close_gate(self):
        """The number of statements until then."""
        return self._gate.close(self._run.child)

    def open_gate(self):
        self._rdma = rdma_counters.read_when_quiet() if self._own_devices else {}
        self._gate.open()
        self._run.wait_until_started()

    def finish(self):
        return self._run.finish()

    def rdma(self):
        """What the devices here have counted since the gate was opened."""
        if not self._own_devices:
            return {}
        return rdma_counters.difference(rdma_counters.read_when_quiet(), self._rdma)

    def end(self):
        """Ends the run if it still goes on; always to be called after `launch`."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    stop = end


@dataclass
class Side:
    """The two ends of a load and how they are connected.

    `carrier` is "tcp", "rdma", "shm" or a rival's name; `warm_up_s` is how long a phase's streams
    are in use at least before the measured window; `preload` is the client's environment.
    """

    label: str
    carrier: str
    server_end: object
    client_end: object
    warm_up_s: float
    preload: dict = None


def measure(side, workload, threads, seed, seconds=0, events=0):
    """Runs sysbench on `side` and returns the phase's record (plain data, for JSON).

    All figures are of the window that begins when the gate opens; "whole" has the bytes of the
    phase from before its connections, "set_up" what came before the window.
    """
    server, client = side.server_end, side.client_end
    server.begin()
    client.launch(workload, threads, seed, seconds, events, side.preload or {})
    try:
        set_up = warm_up(side, threads)
        set_up["statements"] = client.close_gate()
        sample, sampled_at = [end.look() for end in (client, server)], "start"
        server.mark()
        opened = time.monotonic()
        client.open_gate()
        if not client.ends_within(seconds * SAMPLE_AT):
            look = [end.look() for end in (client, server)]
            # A look that outlasts the load may find the streams closed.
            if time.monotonic() < opened + seconds:
                sample, sampled_at = look, "middle"
        report = client.finish()
        ended = time.monotonic()
        spent = server.spent()
    finally:
        client.end()
    counted = server.counted()
    rdma = {**counted["rdma"], **{f"client {name}": counters
                                  for name, counters in client.rdma().items()}}
    # sysbench counts a connection's statements from its first, its transactions from the clock on.
    report["queries"] -= set_up["statements"]
    report["qps"] = report["queries"] / report["seconds"]
    queries = max(1, report["queries"])
    return {
        **report,
        **counted,
        "label": side.label,
        "carrier": side.carrier,
        "elapsed_s": ended - opened,
        "server_cpu_us_per_query": spent["cpu_s"] * 1e6 / queries,
        "client_cpu_us_per_query": report["client_cpu_s"] * 1e6 / queries,
        "switches_per_query": (spent["switches"] + report["client_switches"]) / queries,
        "server_switches": spent["switches"],
        "idle_server_cpu_s": spent["idle_cpu_s"],
        "others_percent": others_percent(
            spent, report["client_cpu_s"] if client.is_beside_the_server() else 0.0),
        "set_up": set_up,
        "client_known": sample[0]["known"],
        "sampled_at": sampled_at,
        "client_streams": sample[0]["streams"],
        "server_streams": sample[1]["streams"],
        "rdma": rdma,
        "rdma_packets": rdma_counters.packets(rdma),
    }


def others_percent(spent, client_cpu_s):
    """How busy the server's host was with other things than this load: other programs, and the
    kernel on its own account."""
    others_s = spent["machine_s"] - spent["cpu_s"] - client_cpu_s
    return max(0.0, 100 * others_s / spent["processors_s"])


def warm_up(side, threads):
    """Looks at the streams until they are all where they are wanted, and waits for the least time.

    A dict: `seconds`, and `promotion_s`, the time after which all streams were first seen on their
    carrier; None when they were not in PROMOTION_LIMIT_S, or never can be because Ringroad is not
    in the processes. Where none is wanted the first look is enough.
    """
    began = time.monotonic()
    client = side.client_end
    promotion_s = None
    while promotion_s is None:
        looks = [end.look() for end in (client, side.server_end)]
        now = time.monotonic() - began
        if wanted_streams_are_there(looks, side.carrier, threads):
            promotion_s = now
            client.ends_within(max(0.0, side.warm_up_s - now))
        elif (now >= PROMOTION_LIMIT_S or not all(look["known"] for look in looks)
              or client.ends_within(LOOK_EVERY_S)):
            break
    return {"seconds": time.monotonic() - began, "promotion_s": promotion_s}


def match_warm_up(tcp, channel, record):
    """Lets the next phase over `tcp` warm up as long as the channel's of `record` did: a promotion
    that takes its time is a longer warm-up."""
    tcp.warm_up_s = max(channel.warm_up_s, record["set_up"]["seconds"])


def wanted_streams_are_there(looks, carrier, threads):
    """Whether each end has `threads` streams on the channel, if one of Ringroad's is wanted."""
    return carrier not in RINGROAD or all(
        ringroad.on_channel(look["streams"], carrier) >= threads for look in looks)


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
    if record["carrier"] in RINGROAD:
        return found + _channel_problems(record, threads)
    if record["server_known"] or record["client_known"] or any(record["whole"]["bytes"].values()):
        found.append("Ringroad was in a process of this phase, which must be without it")
    if record["carrier"] in WITHOUT_DEVICES:
        return found + _stray_problems(record, idle_packets_per_s)
    return found + _device_problems(record)


def _stray_problems(record, idle_packets_per_s):
    found = []
    allowed = stray_packets_allowed(record, idle_packets_per_s)
    if record["rdma_packets"] > allowed:
        found.append(f"{record['rdma_packets']} packets crossed the RDMA devices, which have no "
                     f"part in this phase (at most {allowed:.0f} are background)")
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
    wanted = CHANNEL_SHARE * (status["Bytes_sent"] + status["Bytes_received"]) - OWN_BYTES
    if record["bytes"]["channel"] < wanted:
        found.append(f"{record['bytes']['channel']} bytes crossed the channel, but the server "
                     f"counted {status['Bytes_sent']} sent and {status['Bytes_received']} received")
    return found + (_device_problems(record) if carrier == "rdma" else [])


def _device_problems(record):
    if record["rdma_packets"] >= record["queries"]:
        return []
    return [f"the RDMA devices counted {record['rdma_packets']} packets for "
            f"{record['queries']} queries"]


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
    if record["carrier"] in RINGROAD:
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
