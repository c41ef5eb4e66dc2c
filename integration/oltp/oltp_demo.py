#!/usr/bin/python3
"""Compares TCP with a Ringroad channel under sysbench's OLTP workloads on MariaDB.

Phases alternate (TCP, channel, TCP, channel, ...) between two servers that hold the same data, one
plain and one preloaded; a phase over TCP has no Ringroad in any process. What is measured begins
when the connections have been in use for a moment and are on the carrier that they are wanted on;
it begins in the same way over TCP. Before the rounds the same statements run once over each
carrier, and the tables must come out equal. Each phase proves on which carrier it ran: the streams'
own state, bytes against MariaDB's own count, and, with RDMA, the device's packet counters. The exit
status is 1 when any of that, or sysbench, reports an error.

  softroce   inside the virtual machine of integration/softroce: TCP against RDMA
  native     on this machine: TCP over loopback against shared memory
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import phase  # noqa: E402
from lib import checks, mariadb, processes, rdma_counters  # noqa: E402
from lib import ringroad, sysbench, template  # noqa: E402
from oltp import report  # noqa: E402

WORKLOADS = ("oltp_point_select", "oltp_read_write")
CHANNEL_PORT = 23306
TCP_PORT = 23307
TABLES = 2
TABLE_SIZE = 10000
SEED = 20240229
# Rounds, seconds a phase, seconds of a workload's first phases, events of the equality check,
# seconds in all.
DEFAULTS = {"softroce": (6, 4, 2, 40, 210), "native": (6, 3, 1, 400, 110)}
QUICK = {"softroce": (3, 2, 1, 15, 70), "native": (5, 1, 1, 100, 34)}
# Seconds of light statements at least before each measured window. In the virtual machine promotion
# takes longer, outside a few milliseconds.
WARM_UP_S = {"softroce": 0.5, "native": 0.2}


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", choices=("softroce", "native"), required=True)
    parser.add_argument("--channel", choices=("auto", "none"), default="auto",
                        help="none: an A/A run, both servers plain; its ratios are the noise floor "
                             "of the comparison and need no build (default: auto)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--no-table", action="store_true",
                        help="print no table at the end: report.py will")
    parser.add_argument("--threads", type=int, default=4, help="connections (default: 4)")
    parser.add_argument("--rounds", type=int, help="TCP-channel pairs for each workload")
    parser.add_argument("--time", type=int, help="seconds a phase")
    parser.add_argument("--budget", type=int,
                        help="seconds after which no further rounds begin; a slow or busy machine "
                             "then does fewer, and the report says so")
    parser.add_argument("--build", type=Path, default=Path("build"),
                        help="build directory with lib/ and bin/ (default: build)")
    parser.add_argument("--template", type=Path,
                        help="prepared data directory, made when missing (default: OUT/template)")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT") or None,
                        help="directory for oltp-WHERE.json and logs (default: $OUT)")
    options = parser.parse_args(words)
    if options.out is None:
        parser.error("give --out DIR, or set OUT")
    if options.where == "softroce" and not os.environ.get("RINGROAD_SERVER_ADDR"):
        parser.error("--where softroce runs inside the virtual machine: use integration/oltp/demo, "
                     "or integration/softroce/run --hosts 1 -- COMMAND")
    rounds, seconds, options.warmup, options.events, budget = (
        QUICK if options.quick else DEFAULTS)[options.where]
    options.rounds = rounds if options.rounds is None else options.rounds
    options.time = seconds if options.time is None else options.time
    options.budget = budget if options.budget is None else options.budget
    for name in ("threads", "rounds", "time", "budget"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} must be positive")
    options.template = options.template or Path(options.out) / "template"
    return options


class Comparison:
    """The two sides and everything found out about them; `result` is what becomes JSON."""

    def __init__(self, options, work):
        self._options = options
        self._work = work
        self._began = time.monotonic()
        softroce = options.where == "softroce"
        self._address = os.environ["RINGROAD_SERVER_ADDR"] if softroce else "127.0.0.1"
        self._carrier = "tcp" if options.channel == "none" else "rdma" if softroce else "shm"
        self._failures = []
        self._idle_packets_per_s = 0.0
        self.result = {
            "where": options.where, "carrier": self._carrier,
            "label": "tcp (A/A)" if options.channel == "none" else self._carrier,
            "parameters": {name: getattr(options, name) for name in
                           ("threads", "rounds", "time", "warmup", "events", "budget", "quick")}
            | {"warm_up_s": WARM_UP_S[options.where], "tables": TABLES, "table_size": TABLE_SIZE},
            "environment": environment(self._address),
            "equality": None, "workloads": [], "failures": self._failures}

    def say(self, text):
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def run(self):
        options = self._options
        data = template.make(options.template, TABLES, TABLE_SIZE)
        tool, preload = None, None
        if options.channel != "none":
            tool = ringroad.Ringroad(options.build)
            preload = tool.environment(self._write_policy(tool))
        self._measure_idle()
        servers = [
            mariadb.MariaDb("plain", data, self._work, self._address, TCP_PORT,
                            native_aio=options.where == "native"),
            mariadb.MariaDb("second", data, self._work, self._address, CHANNEL_PORT, preload,
                            native_aio=options.where == "native")]
        try:
            with servers[0], servers[1]:
                self.say(f"two servers with the same data: plain (pid {servers[0].pid}) and "
                         f"{'preloaded' if preload else 'plain again'} (pid {servers[1].pid})")
                sides = self._sides = [
                    phase.Side(label, carrier, phase.ServerEnd(server, tool, idle),
                               phase.ClientEnd(sysbench.Load(self._address, server.port, TABLES,
                                                             TABLE_SIZE), self._work, tool),
                               WARM_UP_S[options.where], environment_of_side)
                    for label, carrier, server, idle, environment_of_side in
                    (("tcp", "tcp", *servers, None),
                     (self.result["label"], self._carrier, *reversed(servers), preload))]
                self._check_equality(sides)
                end = self._began + options.budget
                for left, workload in zip(range(len(WORKLOADS), 0, -1), WORKLOADS):
                    now = time.monotonic()
                    self._compare(workload, sides, now + (end - now) / left)
                for server in servers:
                    if not server.stop():
                        self._fail(f"server {server.name} had to be killed at the end")
        finally:
            self.result["seconds"] = time.monotonic() - self._began
            for server in servers:
                if server.log.exists():
                    shutil.copy(server.log, Path(options.out) / f"mariadbd-{server.name}.log")

    def _write_policy(self, tool):
        policy = self._work / "policy.toml"
        subnet = "127.0.0.0/8" if self._carrier == "shm" else "10.9.0.0/16"
        ringroad.write_policy(policy, "oltp-demo", [subnet], [CHANNEL_PORT], self._carrier)
        tool.check_policy(policy)
        shutil.copy(policy, self._options.out)
        return policy

    def _measure_idle(self):
        if not rdma_counters.read():
            if self._carrier == "rdma":
                raise processes.ProcessError("no RDMA device has counters here")
            return
        self._idle_packets_per_s = rdma_counters.idle_packets_per_s()
        self.result["idle_packets_per_s"] = self._idle_packets_per_s

    def _fail(self, text):
        self._failures.append(text)
        self.say(f"FAILED: {text}")

    def _measure(self, side, workload, what, threads, **limits):
        record = phase.measure(side, workload, threads, **limits)
        if side is self._sides[1]:
            phase.match_warm_up(self._sides[0], side, record)
        self.say(f"{workload:17} {what:11} {side.label:9} {phase.line(record)}")
        return record

    def _check(self, record, what, threads):
        for problem in phase.problems(record, threads, self._idle_packets_per_s):
            self._fail(f"{what}, {record['label']}: {problem}")

    def _check_equality(self, sides):
        """The same statements over each carrier must leave the same tables."""
        prepared = [checks.checksums(side.server_end.server) for side in sides]
        for side in sides:
            record = self._measure(side, "oltp_read_write", "equality", 1, seed=SEED,
                                   events=self._options.events)
            self._check(record, "equality check", 1)
        written = [checks.checksums(side.server_end.server) for side in sides]
        self.result["equality"] = {"prepared": prepared, "written": written}
        for what, (first, second) in (("prepared", prepared), ("written", written)):
            words = ", ".join(f"{table} {value}" for table, value in first.items())
            if first == second:
                self.say(f"tables as {what} are equal on both servers: {words}")
            else:
                self._fail(f"tables as {what} differ: {first} on tcp, {second} on "
                           f"{sides[1].label}")
        if written[0] == prepared[0]:
            self._fail("the equality check changed nothing")

    def _compare(self, workload, sides, deadline):
        """Rounds of both sides, at least one; none begins that would end after `deadline`."""
        options = self._options
        for side in sides:
            self._measure(side, workload, "warm-up", options.threads, seed=SEED,
                          seconds=options.warmup)
        rounds = []
        self.result["workloads"].append({"name": workload, "rounds": rounds})
        for number in range(1, options.rounds + 1):
            pair = {}
            began = time.monotonic()
            for side, role in zip(sides, ("tcp", "channel")):
                what = f"round {number}/{options.rounds}"
                pair[role] = self._measure(side, workload, what, options.threads,
                                           seed=SEED + number, seconds=options.time)
                self._check(pair[role], f"{workload} {what}", options.threads)
            rounds.append(pair)
            now = time.monotonic()
            if number < options.rounds and now + (now - began) > deadline:
                self.say(f"out of time: {options.rounds - number} of the rounds left out")
                break


def environment(address):
    """What the figures depend on, as words."""
    route = subprocess.run(["ip", "-o", "route", "get", address], capture_output=True, text=True)
    return {"kernel": platform.release(), "processors": os.cpu_count(),
            "mariadb": mariadb.version(), "sysbench": sysbench.version(),
            "server_address": address, "route": route.stdout.strip(),
            "rdma_devices": sorted(rdma_counters.read())}


def main():
    processes.end_on_signals()
    options = arguments()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    with processes.WorkDirectory("ringroad-oltp") as work:
        comparison = Comparison(options, work)
        try:
            comparison.run()
        except (processes.ProcessError, ringroad.RingroadError) as problem:
            comparison.result["failures"].append(str(problem))
            print(f"oltp_demo: {problem}", file=sys.stderr)
            for log in sorted(work.glob("*/error.log")):
                print(processes.tail(log).lstrip("\n"), file=sys.stderr)
    result = comparison.result
    output = Path(options.out) / f"oltp-{options.where}.json"
    output.write_text(json.dumps(result, indent=1))
    if not options.no_table:
        print("\n" + report.text([result]))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
