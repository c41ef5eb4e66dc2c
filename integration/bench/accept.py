"""`ringroad bench accept`: all that two hosts with RDMA have to show, in one run with one report.

    doctor ─▶ perftest ─▶ net ─▶ oltp ─▶ link down ─▶ two builds ─▶ device removed
    both hosts  bench net     bench oltp   └──────── under sysbench ────────┘

Each step of STEPS gets its share of the minutes that are left. What it found is kept in DIR/cells.jsonl, so
that another run goes on with the steps that have no verdict yet; what could not run is tried again.
"""

import dataclasses
import json
import os
import shutil
import sys
import time

from integration.bench import accept_report, arguments, carriers, hosts, net, oltp, phase, plots, results, run
from integration.bench.accept_report import CANNOT_RUN, FAILED, LEFT_OUT, PASSED, Outcome
from integration.lib import processes

ENDS = "integration.bench.accept_ends"
RDMA = carriers.of("rdma")
WORKLOAD, THREADS = "oltp_read_write", 4
# How long the link or the device is away; at the latest it is back after the other, whatever becomes of this
# program. Then the streams have so long to be on RDMA again, and the load lasts no longer than all of it.
AWAY_S, AWAY_LIMIT_S, BACK_S = 3, 30, 60
LOAD_LIMIT_S = AWAY_LIMIT_S + BACK_S
DATABASE_PORT = 3306
LOOK_EVERY_S = 0.1
DOCTOR_S = 300
# In full and with --quick.
WORDS = {
    "perftest": ("--carriers tcp,write,send,events --measures pingpong-block,stream,rate --sizes 64,4096,65536 "
                 "--rounds 3", "--carriers tcp,write --measures rate --sizes 64 --rounds 1"),
    "net": ("--carriers tcp,rdma,rdma-polls,rdma-sleeps,rsockets,smc,write,events --sizes 64,4096,65536 --rounds 5",
            "--carriers tcp,rdma --measures pingpong-block,rate --sizes 64 --connections 2 --rounds 1"),
    "oltp": ("--carriers tcp,rdma,rsockets,smc --threads 1,16,64 --threading connection --rounds 5 --seconds 2",
             "--carriers tcp,rdma --workloads point_select --threads 4 --threading connection --rounds 1 "
             "--seconds 1")}


class CannotRun(Exception):
    """A step is not possible here; the message says why and what helps."""


class LeftOut(Exception):
    """A step was not asked for."""


class Failed(Exception):
    """What had to hold does not; the message is the evidence."""


# ---- the steps, each with the run (Acceptance) and its minutes

def doctor(run_, _minutes):
    """Both hosts, and the way from the client to the server."""
    with run_.place as place:
        server, client = place.server, place.client
        port = server.host.call("integration.lib.template:free_port", server.address)
        policies = {role: end.host.call(f"{ENDS}:policy", f"{end.host.work}/accept.toml", other.address,
                                        [DATABASE_PORT, port], end.device)
                    for role, end, other in (("server", server, client), ("client", client, server))}
        found = {role: end.host.call(f"{ENDS}:doctor", end.ringroad, policies[role], limit_s=DOCTOR_S)
                 for role, end in place.ends.items()}
        where = f"[{server.address}]:{port}" if ":" in server.address else f"{server.address}:{port}"
        answerer = server.host.make(f"{ENDS}:Answerer", server.ringroad, policies["server"], where,
                                    f"{server.host.work}/answer.log")
        found["client to server"] = client.host.call(f"{ENDS}:doctor", client.ringroad, policies["client"],
                                                     "--peer", where, limit_s=DOCTOR_S)
        answerer.forget()
    (run_.out / accept_report.DOCTOR).write_text(json.dumps(found, indent=1), encoding="utf-8")
    counts = {level: sum(finding["level"] == level for one in found.values() for finding in one["findings"])
              for level in ("fail", "warn", "unknown", "ok")}
    figure = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    return Outcome(FAILED if counts["fail"] else PASSED, figure, accept_report.DOCTOR,
                   reason="see the findings below" if counts["fail"] else "")


def bench_step(kind, name, needed):
    """A step that is a bench in a folder of its own; without figures of the carrier `needed` it has not run."""
    def perform(run_, minutes):
        folder = run_.out / name
        if run_.verdict(name) == CANNOT_RUN:
            shutil.rmtree(folder, ignore_errors=True)  # which says why, and would have it so for ever
        words = [*WORDS[name][run_.options.quick].split(), "--inventory", str(run_.options.inventory),
                 "--ringroad", run_.options.ringroad, "--out", str(folder), "--budget", f"{minutes:.3f}",
                 *(["--server", run_.options.server] if kind is oltp.Oltp else [])]
        try:
            status = run.perform(kind, run.parse(kind, words))
        except run.Refused as problem:
            raise CannotRun(str(problem)) from None
        return accept_report.of_bench(folder, needed, status)
    return perform


def link(run_, _minutes):
    """The link of one host goes down and up under load: no query fails, and the streams are on RDMA again."""
    with run_.place as place:
        role = may_lose_its_link(place)
        end = place.ends[role]
        how = end.host.call(f"{ENDS}:link", end.address)
        return run_.taken_under_load(place, end, how, f"the link of the {role}'s host", "link.json")


def may_lose_its_link(place):
    """The end whose link can be set down while both hosts stay in reach; CannotRun when there is none."""
    remote = {role: end.host.is_remote for role, end in place.ends.items()}
    reached = {role: end.host.call(f"{ENDS}:ssh_server") for role, end in place.ends.items()}
    reasons = []
    for role, other in (("client", "server"), ("server", "client")):
        end = place.ends[role]
        others = [reached[other]] if remote[other] and not remote[role] else []
        why = end.host.call(f"{ENDS}:link_obstacle", end.address, remote[role], others)
        if not why:
            return role
        reasons.append(f"{end.host.name}: {why}")
    raise CannotRun("; ".join(reasons))


def device(run_, _minutes):
    """The client's host loses its RDMA device and gets it back under load; TCP stays."""
    if not run_.options.remove_device:
        raise LeftOut("--remove-device is not given")
    with run_.place as place:
        end = place.client
        try:
            how = end.host.call(f"{ENDS}:removal", end.address, end.device)
        except hosts.HostError as problem:
            raise CannotRun(f"{end.host.name}: {problem}") from None
        return run_.taken_under_load(place, end, how, "the client's RDMA device", "device.json")


def upgrade(run_, _minutes):
    """Another build's files come in the place of the installed one's, under load, and one end after the other
    starts with it."""
    other = run_.options.upgrade
    if not other:
        raise LeftOut("--upgrade is not given")
    with run_.place as place:
        ends, copies, builds = {}, {}, {}
        for role, end in place.ends.items():
            try:
                copies[role] = end.host.make(f"{ENDS}:Rolling", f"{end.host.work}/rolling", end.ringroad)
                builds[role] = end.host.call("integration.bench.probe:ringroad_build", other)
                problem = end.host.call("integration.bench.probe:ringroad_library", other)[1]
            except hosts.HostError as error:
                problem = str(error)
            if problem:
                raise CannotRun(f"{end.host.name}: --upgrade: {problem}")
            if builds[role] == end.host.call("integration.bench.probe:ringroad_build", end.ringroad):
                raise CannotRun(f"{end.host.name}: --upgrade: {other} has the library that {end.ringroad} has: name "
                                "another build")
            ends[role] = dataclasses.replace(end, ringroad=copies[role].command())
        rolling = dataclasses.replace(place, server=ends["server"], client=ends["client"])
        return run_.rolled(rolling, place, copies)


@dataclasses.dataclass(frozen=True)
class Step:
    """`minutes` are its share of the budget, in proportion to the others'."""

    name: str
    what: str
    minutes: float
    perform: callable


STEPS = (
    Step("doctor", "looks at both hosts, and at the way between them", 2, doctor),
    Step("perftest", "raw verbs between the two, by perftest", 4, bench_step(net.Net, "perftest", "write")),
    Step("net", "connections by TCP, Ringroad and its rivals", 13, bench_step(net.Net, "net", "rdma")),
    Step("oltp", "a database under sysbench by the same", 17, bench_step(oltp.Oltp, "oltp", "rdma")),
    Step("link", f"the link of one host is down for {AWAY_S} s under load", 4, link),
    Step("upgrade", "a second build comes in the place of the first under load", 6, upgrade),
    Step("device", f"an RDMA device is away for {AWAY_S} s under load", 4, device))


class Acceptance:
    """One run over the steps, or over those that an earlier one left."""

    def __init__(self, place, options, steps=STEPS):
        self.place, self.options, self.out = place, options, options.out
        self._steps = steps
        self._began = time.monotonic()
        self._results = None

    def say(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {text}", flush=True)

    def run(self):
        facts = self._facts()
        builds = {role: facts[role]["library"] for role in facts}
        settings = {"bench": "accept", "place": str(self.options.inventory), "quick": self.options.quick,
                    "server": self.options.server, **builds}
        with results.Results(self.out, settings) as self._results:
            if plots.obstacle():
                self.say(plots.obstacle())
            try:
                self._perform_all()
            finally:
                outcomes = [(step, self._outcome(step.name)) for step in self._steps]
                accept_report.write(self.out, outcomes, facts)
            print("\n" + accept_report.terminal(outcomes))
            print(f"\nThe report: {self.out / 'report.md'}; all of it in one file: {accept_report.pack(self.out)}")
            return int(any(outcome.verdict in (FAILED, CANNOT_RUN) or outcome.is_late for _, outcome in outcomes))

    def _facts(self):
        with self.place as place:
            return {role: end.host.call(f"{ENDS}:versions", end.ringroad,
                                        self.options.server if role == "server" else "")
                    for role, end in place.ends.items()}

    def verdict(self, name):
        return self._outcome(name).verdict

    def _outcome(self, name):
        found = [cell["outcome"] for cell in self._results.cells if cell["key"] == {"step": name}]
        if found:
            return Outcome(**found[-1])
        if name not in self.options.steps:
            return Outcome(LEFT_OUT, reason="--steps does not name it")
        return Outcome(LEFT_OUT, reason="not begun", is_late=True)

    def _perform_all(self):
        wanted = [step for step in self._steps if step.name in self.options.steps]
        waiting = [step for step in wanted if self.verdict(step.name) not in (PASSED, FAILED)]
        for step in wanted:
            if step not in waiting:
                self.say(f"{step.name}: {self.verdict(step.name)} in an earlier run, in {self.out}")
        while waiting:
            step = waiting[0]
            outcome = self._perform(step, self._share(waiting))
            self._results.add({"step": step.name}, outcome=dataclasses.asdict(outcome))
            self.say(f"{step.name}: {outcome.words()}")
            waiting = waiting[1:]

    def _share(self, waiting):
        """The minutes of the first of these: what others did not need is theirs, too."""
        left = self.options.budget - (time.monotonic() - self._began) / 60
        return left * waiting[0].minutes / sum(step.minutes for step in waiting)

    def _perform(self, step, minutes):
        if minutes <= 0:
            return Outcome(LEFT_OUT, reason="out of time: the same command goes on", is_late=True)
        self.say(f"{step.name}: {step.what}; about {max(1, round(minutes))} min at most")
        try:
            return step.perform(self, minutes)
        except LeftOut as why:
            return Outcome(LEFT_OUT, reason=str(why))
        except (CannotRun, hosts.Unreachable) as why:
            return Outcome(CANNOT_RUN, reason=str(why))
        except (Failed, run.CellError, hosts.HostError, processes.ProcessError) as problem:
            return Outcome(FAILED, reason=str(problem))

    # ---- under load

    def _bench(self, place):
        words = ["--carriers", "tcp,rdma", "--threads", str(THREADS), "--threading", "connection", "--seconds", "3",
                 "--server", self.options.server, "--ringroad", self.options.ringroad]
        options = run.parse(oltp.Oltp, words)
        missing = run.missing(place, oltp.Oltp.programs(options))
        if missing:
            raise CannotRun(missing)
        why = RDMA.obstacle(place)
        if why:
            raise CannotRun(why)
        return oltp.Oltp(place, options, self.say)

    def taken_under_load(self, place, end, how, what, file):
        """`how` (see accept_ends.Taken) is taken from an end's host and given back while sysbench runs."""
        opened = self._bench(place).open({"threading": "connection"}, RDMA)
        try:
            load = Load(opened, place.client.host)
            told = load.run(lambda: taken(end, how, load))
        finally:
            opened.close()
        (self.out / file).write_text(json.dumps(told, indent=1), encoding="utf-8")
        problem = "; ".join(told["problems"])
        longest = told["report"]["latency_max_ms"] / 1000
        back = f"on RDMA again {told['back_s']:.1f} s after it was back, " if told["back_s"] is not None else ""
        left = "the streams went to TCP" if told["left"] else "the streams stayed on RDMA"
        return Outcome(FAILED if problem else PASSED,
                       f"{what} away for {AWAY_S} s: {left}, {back}{told['report']['transactions']} transactions, "
                       f"the longest {longest:.1f} s", file, reason=problem)

    def rolled(self, rolling, place, copies):
        """See upgrade(). `rolling` is the place with the copies' commands."""
        new, old = self.options.upgrade, place.ends
        bench, stages = self._bench(rolling), {}

        def measured(opened, stage):
            figures = bench.measure(opened, RDMA, {"workload": "read_write", "threads": THREADS}, len(stages))
            stages[stage] = {**figures, "builds": {"server": started, "client": copies["client"].build()}}
            self.say(f"upgrade: {stage}: {bench.line(stages[stage])}")

        def replaced():
            for copy in copies.values():
                copy.replace(new)
            return {"goes_on": load.goes_on_for(AWAY_S)}

        started = copies["server"].build()
        opened = bench.open({"threading": "connection"}, RDMA)
        try:
            load = Load(opened, place.client.host)
            told = load.run(replaced)
            if told["problems"]:
                raise Failed("while the files were replaced: " + "; ".join(told["problems"]))
            measured(opened, "old server, new client")
        finally:
            opened.close()
        started = copies["server"].build()
        opened = bench.open({"threading": "connection"}, RDMA)
        try:
            copies["client"].replace(old["client"].ringroad)
            measured(opened, "new server, old client")
            copies["client"].replace(new)
            measured(opened, "both new")
        finally:
            opened.close()
        (self.out / "upgrade.json").write_text(json.dumps({"replaced": told, **stages}, indent=1), encoding="utf-8")
        return Outcome(PASSED, f"{told['report']['transactions']} transactions while the files were replaced; "
                       + ", ".join(f"{stage} {figures['tps']:.0f} tps" for stage, figures in stages.items()),
                       "upgrade.json")


class Load:
    """sysbench at work over RDMA, for as long as something is done to it. `host` is the client's."""

    def __init__(self, opened, host):
        self._side, self._opened, self._host = opened.side, opened, host

    def run(self, meanwhile):
        """What `meanwhile` returns, a dict, with sysbench's `report` and the `problems` of the load."""
        side = self._side
        side.warm_up_s = oltp.WARM_UP_S
        side.server_end.begin()
        end = f"{self._host.work}/end"
        side.client_end.launch(WORKLOAD, THREADS, oltp.SEED, LOAD_LIMIT_S, 0, {**side.preload, "OLTP_END": end})
        try:
            set_up = phase.warm_up(side, THREADS)
            if set_up["promotion_s"] is None:
                raise Failed(f"the streams were not all on RDMA after {set_up['seconds']:.1f} s: {self.reasons()}")
            side.client_end.close_gate()
            side.server_end.mark()
            side.client_end.open_gate()
            told = meanwhile()
            self._host.call(f"{ENDS}:touch", end)
            report = side.client_end.finish()
            deadlocks = side.server_end.counted()["server_status"]["Innodb_deadlocks"]
        except hosts.Silent:
            raise
        except hosts.HostError as problem:
            raise Failed(f"{problem}; the server: {self._opened.server.evidence()}") from None
        finally:
            side.client_end.end()
        told = {"back_s": None, "left": False, "problems": [], **told, "report": report}
        told["problems"] = [*told["problems"], *problems(report, deadlocks)]
        return told

    def goes_on_for(self, seconds):
        """False when it ended within them."""
        return not self._side.client_end.ends_within(seconds)

    def is_on_rdma(self):
        return phase.wanted_streams_are_there(self._looks(), RDMA.name, THREADS)

    def reasons(self):
        return "; ".join(f"{role}: {phase.reasons(look['streams'], RDMA.name) or 'all there'}"
                         for role, look in zip(("client", "server"), self._looks()))

    def _looks(self):
        return [end.look() for end in (self._side.client_end, self._side.server_end)]


def problems(report, deadlocks):
    """What is wrong with a load that nothing was to happen to: a list of sentences."""
    found = [*report["fatal"]]
    if report["exit_status"] != 0:
        found.append(f"sysbench ended with status {report['exit_status']}")
    if report["errors"] > deadlocks:
        found.append(f"{report['errors']} queries failed; deadlocks explain {deadlocks} of them")
    if report["reconnects"]:
        found.append(f"sysbench reconnected {report['reconnects']} times")
    if not report["transactions"]:
        found.append("there was no transaction")
    return found


def taken(end, how, load):
    """Takes it from the end's host for AWAY_S while the load runs, and waits until all is on RDMA again."""
    try:
        away = end.host.make(f"{ENDS}:Taken", how, AWAY_LIMIT_S)
    except hosts.Silent:
        raise
    except hosts.HostError as problem:
        raise CannotRun(f"{end.host.name}: {problem}") from None
    try:
        goes_on = load.goes_on_for(AWAY_S)
        left = not load.is_on_rdma()
    finally:
        away.give_back()
    if not goes_on:
        return {"left": left, "problems": ["the load was over before it was given back"]}
    began = time.monotonic()
    while not load.is_on_rdma():
        if time.monotonic() > began + BACK_S or not load.goes_on_for(LOOK_EVERY_S):
            return {"left": left, "problems": [f"not on RDMA again {time.monotonic() - began:.0f} s after it was "
                                               f"back: {load.reasons()}"]}
    return {"left": left, "back_s": time.monotonic() - began}


def main(words):
    parser = arguments.parser_of("accept")
    options = parser.parse_args(words)
    for name, command in (("--server", options.server), ("--upgrade", options.upgrade)):
        if command and not os.path.isabs(command) and (name == "--upgrade" or "/" in command):
            parser.error(f"{name}: {command} is no whole path")
    options.steps = options.steps or [step.name for step in STEPS]
    options.out = options.out.absolute()
    try:
        if not options.inventory:
            raise hosts.InventoryError("name the two hosts with --inventory FILE; `ringroad bench accept --help` has "
                                       "an example")
        place = hosts.from_inventory(options.inventory, options.ringroad, two_hosts=True)
        processes.end_on_signals()
        return Acceptance(place, options).run()
    except (hosts.InventoryError, hosts.HostError, results.ResultsError) as problem:
        print(f"ringroad bench accept: {problem}", file=sys.stderr)
        return run.WRONG
