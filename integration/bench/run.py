"""One way to run a bench: which cells, in which order, until when, and what becomes of failures.

    block (what servers are started for) ─▶ round ─▶ row ─▶ carriers, in another order each time

A bench describes itself as a Bench; this module does the rest, the same for each of them.
"""

import math
import os
import statistics
import sys
import time

from integration.bench import arguments, carriers, hosts, plots, report, results
from integration.lib import processes

FAILED, WRONG = 1, 2
# A carrier that fails so often in a row is not tried again in this block.
PATIENCE = 2
# Above this share of the processors, other programs' work is worth a warning.
BUSY_PERCENT = 10
AWAKE = ("No processor halted while this was measured (--awake): what it costs to wake one is in no "
         "figure. On hosts whose processors do halt, a carrier that sleeps gains less.")


class Refused(Exception):
    """A bench cannot begin; the message says why and what to do, in a line or several."""


class CellError(Exception):
    """What was measured is not what it should be, or nothing was; the message is the evidence."""


def until_it_listens(opened):
    """Waits for a server that was just started; CellError, and it is closed, when it does not come."""
    try:
        opened.server.wait_until_it_listens()
    except hosts.Silent:
        raise
    except hosts.HostError as problem:
        opened.close()
        raise CellError(str(problem)) from None


class Bench:
    """What a bench has to say of itself. `options` are the parsed arguments."""

    name = title = ""
    # Programs and their Debian packages, by end.
    packages = {"server": {}, "client": {}}
    carriers = carriers.NAMES
    # See report.Tables; `field` is the horizontal axis of the plots, `panels` what they show.
    groups = rows = ()
    metrics = panels = ()
    field = ""
    # Carriers that figures with a ratio are divided by.
    references = (report.REFERENCE,)
    introduction = ()
    # --rounds, --seconds: long and with --quick.
    rounds, seconds = (5, 3), (5, 2)

    def __init__(self, place, options, say):
        self.place, self.options, self.say = place, options, say

    @classmethod
    def programs(cls, _options):
        """What is needed with these options; as `packages`."""
        return cls.packages

    @staticmethod
    def complete(options):
        """Checks these options and fills in defaults; ValueError with what is wrong."""

    def settings(self):
        """What makes results incomparable when it differs: plain data."""
        raise NotImplementedError

    def facts(self):
        """What the figures depend on besides, for the report: {name: words}."""
        raise NotImplementedError

    def blocks(self):
        """Keys, such as {"threading": "pool"}: one after another, with servers of their own."""
        return [{}]

    def cells(self):
        """The keys within a block, without the carrier and the round."""
        raise NotImplementedError

    def applies(self, carrier, key):
        """Whether there is such a row for this carrier at all."""
        return True

    def metrics_of(self, group):
        return self.metrics

    def panels_of(self, group):
        return self.panels

    def heading(self, group):
        """Of the table of this combination of the groups' values."""
        return ", ".join(map(str, group))

    def open(self, block, carrier):
        """Starts what measures this carrier in this block, e.g. a server; an object with close().
        Raises CellError or hosts.HostError."""
        raise NotImplementedError

    def measure(self, opened, carrier, key, number):
        """The figures of one cell, a dict, in round `number`. Raises like open()."""
        raise NotImplementedError

    def conclusions(self, cells):
        """Further tables for the report: {heading: rows of words}."""
        return {}

    def line(self, figures):
        """The figures in a few words, for the progress."""
        return ""

    def remarks(self, figures):
        """What a reader of the report has to know of these figures of all cells: sentences."""
        # Where processors are emulated, the kernel's own work is much of it.
        return [] if self.place.name == "soft-roce" else busy_remarks(figures)


def busy_remarks(figures):
    busy = [cell["others_percent"] for cell in figures if cell.get("others_percent") is not None]
    if not busy or statistics.median(busy) < BUSY_PERCENT:
        return []
    return [f"**The host was busy with other things, {statistics.median(busy):.0f} % of its "
            "processors by the median: times and rates are theirs, too. Repeat it on a quieter "
            "host.**"]


def parse(bench, words):
    parser = arguments.parser_of(bench.name)
    options = parser.parse_args(words)
    options.carriers = options.carriers or list(bench.carriers)
    if report.REFERENCE not in options.carriers:
        parser.error("--carriers: tcp must be among them, the others are compared with it")
    if options.rsockets:
        if not os.path.isabs(options.rsockets):
            parser.error(f"--rsockets: {options.rsockets} is no whole path")
        options.carriers.append(carriers.RsocketsGiven.name)
    options.rounds = options.rounds or bench.rounds[options.quick]
    options.seconds = options.seconds or bench.seconds[options.quick]
    try:
        bench.complete(options)
    except ValueError as problem:
        parser.error(str(problem))
    if options.netns and options.inventory:
        parser.error("--netns: both ends are on this host, and --inventory names others")
    options.out = options.out.absolute()
    return options


def main(bench, words):
    """Runs a bench, a subclass of Bench; the exit status."""
    processes.end_on_signals()
    try:
        return perform(bench, parse(bench, words))
    except Refused as problem:
        for line in str(problem).split("\n"):
            print(f"ringroad bench {bench.name}: {line}", file=sys.stderr)
        return WRONG


def perform(bench, options):
    """Runs a bench with parsed options: 0 or FAILED. Raises Refused."""
    try:
        place = (hosts.from_inventory(options.inventory, options.ringroad) if options.inventory
                 else hosts.Namespaces(options.ringroad) if options.netns else hosts.here(options.ringroad))
        place.rsockets = options.rsockets
        with place:
            lacking = missing(place, bench.programs(options))
            if lacking:
                raise Refused(lacking)
            return Run(bench, place, options).run()
    except (hosts.InventoryError, hosts.HostError, results.ResultsError) as problem:
        raise Refused(str(problem)) from None


def missing(place, packages):
    """What has to be installed, as a sentence for each end that lacks something."""
    found = {}
    for role, end in place.ends.items():
        for package in end.host.call("integration.bench.probe:missing_programs", packages[role]):
            found.setdefault("this host" if place.one_host else end.host.name, {})[package] = True
    return "\n".join(f"programs are missing on {name}; "
                     f"apt-get install --no-install-recommends {' '.join(sorted(names))}"
                     for name, names in found.items())


class Run:
    """One run of a bench over all its cells, or over those that an earlier one left."""

    def __init__(self, bench, place, options):
        self._began = time.monotonic()
        self._place, self._options = place, options
        self._bench = bench(place, options, self.say)
        self._carriers = [carriers.of(name) for name in options.carriers]
        self._results = None
        self._measured_s, self._measured = 0.0, 0
        self._in_a_row = {}

    def say(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {text}", flush=True)

    def run(self):
        options, bench = self._options, self._bench
        settings = {"bench": bench.name, "place": self._place.name, "carriers": options.carriers,
                    "rounds": options.rounds, "seconds": options.seconds, **bench.settings(),
                    **({"awake": True} if options.awake else {}),
                    **({"rsockets": options.rsockets} if options.rsockets else {})}
        with results.Results(options.out, settings) as self._results:
            done = len(self._results.cells)
            if done:
                self.say(f"goes on in {options.out}, which has {done} cells already")
            if plots.obstacle():
                self.say(plots.obstacle())
            self._keep_awake()
            self._look_for_obstacles()
            if not self._run_blocks():
                self.say("out of time: the rest is left out; the same command goes on")
            return self._report()

    def _keep_awake(self):
        if not self._options.awake:
            return
        for end in self._place.ends.values():
            try:
                end.host.make("integration.bench.awake:Awake")
            except hosts.HostError as problem:
                raise hosts.HostError(f"{end.host.name}: --awake: {problem}; root may open it where "
                                      "the kernel manages idle processors") from None

    def _look_for_obstacles(self):
        for carrier in self._carriers:
            key = {"carrier": carrier.name}
            if self._results.has(key):
                continue
            why = self._obstacle(carrier)
            if why:
                self.say(f"{carrier.title} cannot run here: {why}")
                self._results.add(key, failed=f"{carrier.title} cannot run here: {why}")

    def _obstacle(self, carrier):
        try:
            return carrier.obstacle(self._place) or carrier.trouble(self._place)
        except hosts.HostError as problem:
            return str(problem)

    # ---- the cells

    def _run_blocks(self):
        """Each gets its share of the time that is left. What it does not need goes to those after it,
        and in the end to those that needed more. False when the time was up before."""
        waiting, measured = self._bench.blocks(), -1
        while waiting and self._measured > measured:
            measured = self._measured
            waiting = [block for at, block in enumerate(waiting)
                       if not self._run_block(block, self._share(len(waiting) - at))]
        return not waiting

    def _share(self, blocks):
        """Until when the first of so many may run."""
        if not self._options.budget:
            return math.inf
        now = time.monotonic()
        return now + (self._began + 60 * self._options.budget - now) / blocks

    def _run_block(self, block, until):
        """All cells of one block; false when the time was up before."""
        self._in_a_row = {}
        with Opened(self._bench, block) as opened:
            rows = self._bench.cells()
            for number in range(1, self._options.rounds + 1):
                for at, row in enumerate(rows):
                    if self._is_complete(block, row, number):
                        continue
                    key = {**block, **row}
                    running = [carrier for carrier in self._running(opened)
                               if self._bench.applies(carrier, key)]
                    if self._ends_after(until, len(running)):
                        return False
                    for carrier in turned(running, number + at):
                        self._run_cell(opened, carrier, key, number)
        return True

    def _key(self, carrier, key, number):
        return {**key, "carrier": carrier.name, "round": number}

    def _carriers_of(self, key):
        return [carrier for carrier in self._carriers if self._bench.applies(carrier, key)]

    def _is_complete(self, block, row, number):
        # Where only some carriers were measured, all are again: those of a round are neighbours.
        return all(self._results.has(self._key(carrier, {**block, **row}, number))
                   for carrier in self._carriers_of({**block, **row}))

    def _ends_after(self, until, count):
        """Whether a row of so many carriers would."""
        one_row = count * self._measured_s / max(1, self._measured)
        return time.monotonic() + one_row > until

    def _running(self, opened):
        """The carriers that have not failed altogether."""
        return [carrier for carrier in self._carriers
                if not self._results.has({**opened.block, "carrier": carrier.name})]

    def _run_cell(self, opened, carrier, key, number):
        full = self._key(carrier, key, number)
        if self._results.failed(full):
            return
        what = " ".join(str(value) for value in key.values()) + f" {carrier.name} round {number}"
        try:
            ready = opened.of(carrier)
            began = time.monotonic()
            figures = self._bench.measure(ready, carrier, full, number)
        except NotOpened as problem:
            self._fail(what, {**opened.block, "carrier": carrier.name},
                       f"{carrier.title} did not start: {problem}")
            return
        except (CellError, hosts.HostError) as problem:
            if not isinstance(problem, hosts.Silent):
                opened.close(carrier)
            self._fail(what, full, str(problem))
            self._in_a_row[carrier] = self._in_a_row.get(carrier, 0) + 1
            if self._in_a_row[carrier] >= PATIENCE:
                self._fail(what, {**opened.block, "carrier": carrier.name},
                           f"{carrier.title} was given up after {PATIENCE} failures in a row")
            if isinstance(problem, hosts.Silent):
                self._restart()
                opened.forget_all()
            return
        self._in_a_row[carrier] = 0
        self._measured += 1
        self._measured_s += time.monotonic() - began
        self._results.add(full, figures=figures)
        self.say(f"{what}: {self._bench.line(figures)}{self._time_left()}")

    def _fail(self, what, key, why):
        self._results.add(key, failed=why)
        self.say(f"{what}: FAILED: {why}")

    def _restart(self):
        for end in self._place.ends.values():
            end.host.end()
            end.host.start()
        self._keep_awake()

    def _time_left(self):
        left = sum(not self._results.has(self._key(carrier, {**block, **row}, number))
                   for block in self._bench.blocks() for row in self._bench.cells()
                   for number in range(1, self._options.rounds + 1)
                   for carrier in self._carriers_of({**block, **row}))
        seconds = left * self._measured_s / max(1, self._measured)
        if self._options.budget:
            seconds = min(seconds, max(0, 60 * self._options.budget
                                       - (time.monotonic() - self._began)))
        return f"  [{left} left, about {seconds / 60:.0f} min]" if left else ""

    # ---- the end

    def _report(self):
        bench, options = self._bench, self._options
        keys = [{**block, **row} for block in bench.blocks() for row in bench.cells()]
        tables = report.Tables(
            self._results.cells, [(key, carrier.name) for key in keys
                                  for carrier in self._carriers_of(key)],
            bench.references, bench.groups, bench.rows, bench.metrics_of)
        headings, pictures = {}, {}
        for group in tables.group_values():
            headings[group] = bench.heading(group)
            name = "-".join([bench.name, *map(str, group)]) + ".png"
            if plots.draw(tables, group, headings[group], options.out / name, bench.field,
                          bench.panels_of(group)):
                pictures[group] = name
        remarks = bench.remarks([cell["figures"] for cell in self._results.cells
                                 if "figures" in cell])
        if options.awake:
            remarks = [AWAKE, *remarks]
        conclusions = bench.conclusions(self._results.cells)
        report.write(options.out, bench.title, [*bench.introduction, *remarks], tables, headings,
                     bench.facts() | self._given(), pictures, conclusions)
        for group in tables.group_values():
            table, reasons = tables.table(group)
            print(f"\n{headings[group]}\n\n{report.text(table)}")
            for number, reason in enumerate(reasons, 1):
                print(f"[{number}] {reason}")
        print("\n".join(["", *remarks]).rstrip())
        for heading, table in conclusions.items():
            print(f"\n{heading}\n\n{report.text(table)}")
        print(f"\nThe report: {options.out / 'report.md'}; each measurement: "
              f"{options.out / results.CELLS}")
        return FAILED if self._ours_failed() else 0

    def _given(self):
        path = self._options.rsockets
        return {carriers.RsocketsGiven.title: path} if path else {}

    def _ours_failed(self):
        """What cannot run here is not a failure of ours, what ran and failed is."""
        ours = {carrier.name for carrier in self._carriers if carrier.ours}
        return any("failed" in cell and cell["key"]["carrier"] in ours and len(cell["key"]) > 1
                   for cell in self._results.cells)


def turned(things, number):
    """The same things, beginning with another one each time."""
    at = number % len(things) if things else 0
    return things[at:] + things[:at]


class NotOpened(Exception):
    """What a carrier needs in a block did not start."""


class Opened:
    """What was opened in a block, by carrier, each when it is first needed; a context."""

    def __init__(self, bench, block):
        self.block = block
        self._bench = bench
        self._opened = {}

    def of(self, carrier):
        if carrier not in self._opened:
            try:
                self._opened[carrier] = self._bench.open(self.block, carrier)
            except hosts.Silent:
                raise
            except (CellError, hosts.HostError) as problem:
                raise NotOpened(problem) from None
        return self._opened[carrier]

    def close(self, carrier):
        opened = self._opened.pop(carrier, None)
        if opened is not None:
            try:
                opened.close()
            except hosts.HostError:
                pass  # it has failed already, and the agent ends what it started

    def forget_all(self):
        """They have gone with their agents."""
        self._opened.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for carrier in list(self._opened):
            self.close(carrier)
