"""`ringroad bench model`: what a network card would make of the software costs measured on one host.

    over TCP, here              database and load  + TCP's software       measured: bench oltp
    over TCP, by the card       the same                                  + card and wire
    over Ringroad, by the card  the same - TCP's software + Ringroad's    + card and wire

The time of software is that of ping-pongs of the same bytes (bench net): TCP's through loopback, and
Ringroad's over shared memory, to which those instructions come that a message costs more over a queue
pair. Every number is measured or on the command line; what is neither is an assumption, and is
printed with the side that it flatters.
"""

import itertools
import statistics
import sys
from dataclasses import dataclass

from integration.bench import arguments, net, oltp, ratios, report, results, run

INCOMPLETE, WRONG = 1, 2
# How the ends of bench net wait, for the threading of the server of bench oltp.
WAITS = {"connection": "block", "pool": "epoll"}
DEFAULT, SLEEPS, POLLS = "shm", "shm-sleeps", "shm-polls"
CARRIERS = ("tcp", DEFAULT, SLEEPS, POLLS)
TIME, SERVER, CLIENT = "p50_us", "server_cpu_us", "client_cpu_us"
NET_COMMAND = ("ringroad bench net --measures pingpong-block,pingpong-epoll,stream,rate "
               f"--carriers {','.join(CARRIERS)}")
COUNT_COMMAND = "ctest --test-dir build -L cost -V"
COUNTED = ("--shm-instructions", "--verbs-instructions", "--instructions-per-s")


class Missing(Exception):
    """An input is in no result; the message says which command makes it."""


@dataclass(frozen=True)
class Card:
    """The card, and what a message costs the library more by it than over shared memory, both
    ends together."""

    latency_us: float
    mb_per_s: float
    more_us: float

    def round_trip_us(self, sizes):
        return 2 * self.latency_us + sum(sizes) / self.mb_per_s


@dataclass(frozen=True)
class Query:
    """A round trip over TCP on this host; `sizes` are the bytes of the request and the answer."""

    sizes: tuple
    time_us: float
    server_us: float
    client_us: float


class Software:
    """One round's ping-pongs of one connection, by one way of waiting."""

    def __init__(self, cells):
        """`cells`: the figures by (carrier, size)."""
        self._cells = cells

    def of(self, carrier, figure, sizes):
        """For messages of these sizes. A round trip of n bytes is two messages of n."""
        points = sorted((size, figures[figure]) for (name, size), figures in self._cells.items()
                        if name == carrier)
        return statistics.mean(_between(points, size) for size in sizes)


def _between(points, size):
    """Linear from one measured size to the next; below the smallest as at the smallest."""
    if size > points[-1][0]:
        raise Missing(f"no ping-pong was as large as its {size:.0f} bytes: {NET_COMMAND} --sizes "
                      + ",".join(str(at) for at, _ in points) + f",{1 << int(size).bit_length()}")
    for (low, low_us), (high, high_us) in itertools.pairwise(points):
        if low < size <= high:
            return low_us + (size - low) / (high - low) * (high_us - low_us)
    return points[0][1]


def predict(query, software, card):
    """What becomes of a query; times in us, ratios to TCP by the same card."""
    tcp_us, tcp_server_us = (software.of("tcp", figure, query.sizes) for figure in (TIME, SERVER))
    # One message to the server and one from it, so each end has a send and a receive.
    sleeps_us, polls_us = (software.of(carrier, TIME, query.sizes) + 2 * card.more_us
                           for carrier in (SLEEPS, POLLS))
    sleeps_server_us = software.of(SLEEPS, SERVER, query.sizes) + card.more_us
    wire_us = card.round_trip_us(query.sizes)

    def of_time(software_us):
        return (query.time_us - tcp_us + software_us + wire_us) / (query.time_us + wire_us)

    def of_server(software_us):
        return (query.server_us - tcp_server_us + software_us) / query.server_us

    return {"bytes": sum(query.sizes), "time_us": query.time_us, "server_us": query.server_us,
            "client_us": query.client_us, "tcp_us": tcp_us, "tcp_server_us": tcp_server_us,
            "sleeps_us": sleeps_us, "polls_us": polls_us, "sleeps_server_us": sleeps_server_us,
            "wire_us": wire_us, "room_us": tcp_us - sleeps_us,
            "room_server_us": tcp_server_us - sleeps_server_us,
            "time_sleeps": of_time(sleeps_us), "time_polls": of_time(polls_us),
            "time_best": of_time(0), "server_sleeps": of_server(sleeps_server_us),
            "server_best": of_server(0)}


def predict_here(query, software):
    """The same of shared memory on this host, where it can be compared."""
    def ratio(whole, figure):
        return (whole - software.of("tcp", figure, query.sizes)
                + software.of(DEFAULT, figure, query.sizes)) / whole
    return {"time_predicted": ratio(query.time_us, TIME),
            "server_predicted": ratio(query.server_us, SERVER)}


# ---- the results

class Net:
    """What bench net has measured."""

    def __init__(self, cells):
        self._cells = [cell for cell in cells if "figures" in cell and cell["key"]["connections"] == 1]

    def sizes(self):
        return sorted({cell["key"]["size"] for cell in self._cells
                       if cell["key"]["measure"] == "pingpong"})

    def software(self, wait):
        """A Software for each round that is complete."""
        by_round = self._by_round("pingpong", wait)
        whole = [Software(cells) for cells in by_round.values()
                 if set(cells) >= set(itertools.product(CARRIERS, self.sizes()))]
        if not whole:
            raise Missing(f"no round has all of {', '.join(CARRIERS)} waiting by {wait}: {NET_COMMAND}")
        return whole

    def one_way(self, measure, size):
        """Pairs of TCP's figures and those of shared memory, for each round that has both."""
        pairs = [(cells["tcp", size], cells[DEFAULT, size])
                 for cells in self._by_round(measure, "block").values()
                 if {("tcp", size), (DEFAULT, size)} <= set(cells)]
        if not pairs:
            raise Missing(f"no round has {measure} over tcp and {DEFAULT}: {NET_COMMAND}")
        return pairs

    def _by_round(self, measure, wait):
        found = {}
        for cell in self._cells:
            key = cell["key"]
            if (key["measure"], key["wait"]) == (measure, wait):
                found.setdefault(key["round"], {})[key["carrier"], key["size"]] = cell["figures"]
        return found


def query_of(figures):
    """A typical one, of bench oltp's figures."""
    queries, status = figures["queries"], figures["server_status"]
    return Query((status["Bytes_received"] / queries, status["Bytes_sent"] / queries),
                 1000 * figures["p50_ms"] * figures["transactions"] / queries,
                 figures["server_cpu_us_per_query"], figures["client_cpu_us_per_query"])


@dataclass
class Row:
    """A workload with its spreads by name, or why there are none."""

    workload: str
    threads: int
    figures: dict
    missing: str = ""


def spreads(predictions):
    return {name: ratios.spread([each[name] for each in predictions]) for name in predictions[0]}


def pingpong_rows(found, card):
    """Queries that are nothing but their round trip: nothing can gain more."""
    rounds = found.software("block")
    for size in found.sizes():
        sizes = (size, size)
        yield Row(f"ping-pong, {size} bytes", 1, spreads([
            predict(Query(sizes, *(software.of("tcp", figure, sizes)
                                   for figure in (TIME, SERVER, CLIENT))), software, card)
            for software in rounds]))


def oltp_rows(settings, cells, found, card):
    for threading, workload, threads in itertools.product(
            settings["threading"], settings["workloads"], settings["threads"]):
        key = {"threading": threading, "workload": workload, "threads": threads}
        name = workload + {"connection": "", "pool": ", pool"}[threading]
        try:
            yield Row(name, threads, _oltp_figures(key, cells, found, card))
        except Missing as problem:
            yield Row(name, threads, {}, str(problem))


def _oltp_figures(key, cells, found, card):
    def by_round(carrier):
        wanted = {**key, "carrier": carrier}.items()
        return {cell["key"]["round"]: cell["figures"] for cell in cells
                if "figures" in cell and wanted <= cell["key"].items()}

    tcp, shm = by_round("tcp"), by_round(DEFAULT)
    if not tcp:
        raise Missing("it was not measured over TCP: ringroad bench oltp --carriers tcp,shm "
                      f"--workloads {key['workload']} --threads {key['threads']} "
                      f"--threading {key['threading']}")
    rounds = found.software(WAITS[key["threading"]])
    queries = [query_of(figures) for figures in tcp.values()]
    # Nothing pairs the rounds of two benches: each is taken with each.
    figures = spreads([predict(query, software, card) | predict_here(query, software)
                       for query in queries for software in rounds])
    both = [(query_of(tcp[number]), query_of(shm[number])) for number in tcp if number in shm]
    return figures | (spreads([{"time_measured": ours.time_us / theirs.time_us,
                                "server_measured": ours.server_us / theirs.server_us}
                               for theirs, ours in both]) if both else {})


# ---- what is printed

@dataclass(frozen=True)
class Column:
    """`decimals`: of a figure that is shown by its median; without, it is a ratio. `alone`: it says
    something of one thread only, as the others wait for each other's processors, too."""

    key: str
    title: str
    decimals: int = None
    alone: bool = False

    def shown(self, row):
        if self.key not in row.figures or (self.alone and row.threads > 1):
            return "-"
        figure = row.figures[self.key]
        return ratios.words(figure) if self.decimals is None else f"{figure['median']:.{self.decimals}f}"


HERE = (Column("bytes", "bytes", 0), Column("time_us", "time", 1), Column("server_us", "server CPU", 1),
        Column("client_us", "client CPU", 1), Column("tcp_us", "of it TCP: time", 1),
        Column("tcp_server_us", "of it TCP: server CPU", 1),
        Column("sleeps_us", "Ringroad sleeping: time", 1),
        Column("sleeps_server_us", "Ringroad sleeping: server CPU", 1),
        Column("polls_us", "Ringroad polling: time", 1))
TIME_BY_A_CARD = (Column("wire_us", "card and wire, us", 1), Column("time_sleeps", "sleeping", alone=True),
                  Column("time_polls", "polling", alone=True), Column("time_best", "at best", alone=True))
# These are the same whatever the card's latency is.
BY_ANY_CARD = (Column("room_us", "time, room us", 1, True),
               Column("server_sleeps", "server CPU, sleeping"),
               Column("server_best", "server CPU, at best"),
               Column("room_server_us", "server CPU, room us", 1))
CHECKED = (Column("time_predicted", "time: predicted", alone=True),
           Column("time_measured", "time: measured", alone=True),
           Column("server_predicted", "server CPU: predicted"),
           Column("server_measured", "server CPU: measured"))


def table(rows, columns, reasons):
    """Rows of words, the first being the headings; a row without figures names its reason."""
    return [["workload", "threads", *(column.title for column in columns)],
            *([row.workload + (f" [{reasons.index(row.missing) + 1}]" if row.missing else ""),
               str(row.threads), *(column.shown(row) for column in columns)] for row in rows)]


def one_way_table(found, card, reasons):
    """What the processors of one connection allow, and the card; adds why a row has no figures."""
    lines = [["", "MB/s over TCP", "MB/s over Ringroad", "MB/s of the card", "ratio"]]
    for measure, size in (("stream", net.LARGE), ("rate", net.SMALL)):
        line = [net.HEADINGS[measure]]
        try:
            limits = spreads([one_way(*pair, size, card) for pair in found.one_way(measure, size)])
            line += [*(f"{limits[name]['median']:.0f}" for name in ("tcp", "ringroad")),
                     f"{card.mb_per_s:.0f}", ratios.words(limits["ratio"])]
        except Missing as problem:
            reasons.append(str(problem))
            line = [f"{line[0]} [{len(reasons)}]", "-", "-", f"{card.mb_per_s:.0f}", "-"]
        lines.append(line)
    return lines


def one_way(tcp, shm, size, card):
    # At best TCP's work is shared evenly; at worst all that comes with the card is at one end.
    limits = {"tcp": size / statistics.mean((tcp[SERVER], tcp[CLIENT])),
              "ringroad": size / (max(shm[SERVER], shm[CLIENT]) + card.more_us)}
    carried = {name: min(limit, card.mb_per_s) for name, limit in limits.items()}
    return limits | {"ratio": carried["ringroad"] / carried["tcp"]}


READING = (
    "Time is for one thread that waits for each answer. Server CPU is for a server whose processors are "
    "all busy: it answers 1/ratio times as many queries. With some threads and idle processors it is between "
    "the two.",
    "\"At best\" is software that costs nothing in the place of TCP's: no library gains more. Where it is "
    "near 1, the query is the database's own work, or the wire's, and cannot gain.",
    "\"Room\" is what the card's own software, which was not measured, may take of a query before sleeping "
    "loses against TCP; negative: it has lost already.",
    "Figures are medians over the rounds, with the smallest and the largest in brackets, each round of one "
    "bench taken with each of the other.")

ASSUMPTIONS = (
    ("TCP is charged its software over loopback, without a driver, interrupts and their moderation, or "
     "segments", "TCP"),
    ("Both are charged the same latency and bandwidth. The latency is perftest's, which polls and posts "
     "verbs within it", "TCP in time"),
    ("The library over a queue pair is the library over shared memory and the instructions it has more; "
     "the provider's own, libc's, and the kernel's for the event channel when it sleeps are not in it",
     "Ringroad: see \"room\""),
    ("These instructions run as fast as those of one thread with warm caches. What goes from one core to "
     "another's cache is in the ping-pongs; the completions that a card writes are in neither", "Ringroad"),
    ("A sleeper is woken by the other process here and by the card's interrupt there; the interrupt is "
     "in neither", "the one that is ahead: what both pay more brings the ratio nearer to 1"),
    ("Without --awake TCP's wake-ups of halted processors are counted as its software, and with it "
     "nobody's are counted at all", "Ringroad polling; and neither for certain"),
    ("Polling takes the wake-up away at the price of a core for each thread that waits, so there is no "
     "ratio of CPU for it", "polling, where there are fewer cores than threads"),
    ("Both ends share this host's processors and caches", "neither for certain"),
    ("A query is of the mean bytes of its workload; a message between two measured sizes costs what lies "
     "between them, one below the smallest as much as that", "neither for certain"),
    ("A query's time is that of the median transaction divided by its queries, a ping-pong's the median",
     "neither for certain: the check has the error"),
    ("The data is in memory: a commit waits for no disk", "the one that is ahead"),
    ("In one direction TCP's work is shared evenly by the ends, and all the instructions that "
     "come with the card are at one of Ringroad's; the card's own limit of messages a second is not known",
     "TCP; the last, Ringroad"))


def inputs(options, card, settings):
    latencies = ", ".join(f"{latency:g}" for latency in options.latency)
    return {"latency": f"{latencies} us one way (--latency)",
            "bandwidth": f"{options.bandwidth:g} Gb/s (--bandwidth)",
            "instructions of a message": f"{options.shm_instructions:g} over shared memory, "
                f"{options.verbs_instructions:g} over a queue pair, at {options.instructions_per_s:g} a "
                f"second: {card.more_us:.3f} us more ({', '.join(COUNTED)}; `{COUNT_COMMAND}`)",
            "bench net": str(options.net), "bench oltp": str(options.oltp),
            "processors": "did not halt (--awake)" if settings.get("awake") else "as the host has them",
            "database": settings.get("mariadb") or settings["mysql"],
            "Ringroad's build": settings["ringroad"]}


def markdown(tables, reasons, facts, remarks):
    lines = ["# What a card would make of it", "", *(part + "\n" for part in [*READING, *remarks])]
    for heading, words in tables.items():
        lines += [f"## {heading}", "", report.markdown_table(words), ""]
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    lines += [""] if reasons else []
    return "\n".join([*lines, "## Assumptions", "",
                      report.markdown_table([["assumed", "flatters"], *map(list, ASSUMPTIONS)]), "",
                      "## Inputs", "", *(f"- {name}: {value}" for name, value in facts.items())])


# ---- the command

def parse(words):
    parser = arguments.parser_of("model")
    options = parser.parse_args(words)
    for name in COUNTED:
        if getattr(options, name[2:].replace("-", "_")) is None:
            parser.error(f"{name} is missing: `{COUNT_COMMAND}` prints it")
    return options


def load(folder, bench):
    settings, cells = results.load(folder)
    if settings["bench"] != bench.name:
        raise results.ResultsError(f"{folder}: is of bench {settings['bench']}, not of {bench.name}")
    if settings["place"] != "this host":
        raise results.ResultsError(
            f"{folder}: was measured on {settings['place']}; the model takes times of one real host: "
            f"ringroad bench {bench.name} without an inventory")
    return settings, cells


def main(words):
    options = parse(words)
    try:
        (of_net, net_cells), (of_oltp, oltp_cells) = (
            load(options.net, net.Net), load(options.oltp, oltp.Oltp))
        if of_net["ringroad"] != of_oltp["ringroad"]:
            raise results.ResultsError(
                f"{options.net} and {options.oltp} are of two builds of Ringroad: measure one again")
        if of_net.get("awake") != of_oltp.get("awake"):
            raise results.ResultsError(f"of {options.net} and {options.oltp} one was measured with "
                                       "--awake and one without: measure one again")
        found = Net(net_cells)
        more_us = 1e6 * (options.verbs_instructions - options.shm_instructions) / options.instructions_per_s
        cards = [Card(latency, 1000 * options.bandwidth / 8, more_us) for latency in options.latency]
        by_card = {card: [*pingpong_rows(found, card), *oltp_rows(of_oltp, oltp_cells, found, card)]
                   for card in cards}
    except (results.ResultsError, Missing) as problem:
        print(f"ringroad bench model: {problem}", file=sys.stderr)
        return WRONG
    card, rows = next(iter(by_card.items()))  # what all cards have in common
    reasons = list(dict.fromkeys(row.missing for row in rows if row.missing))
    tables = {
        "A query here, in us": table(rows, HERE, reasons),
        **{f"Time by a card of {each.latency_us:g} us: ratios to TCP by the same card, below 1 is a gain":
            table(by_card[each], TIME_BY_A_CARD, reasons) for each in cards},
        "By any card: server CPU as ratios to TCP, below 1 is a gain": table(rows, BY_ANY_CARD, reasons),
        "The check: the same subtraction for shared memory on this host, which was measured, too":
            table([row for row in rows if "time_predicted" in row.figures], CHECKED, reasons),
        "One connection, one direction: what a core at each end and the card allow; above 1 is a gain":
            one_way_table(found, card, reasons)}
    figures = [cell["figures"] for cell in [*net_cells, *oltp_cells] if "figures" in cell]
    print(markdown(tables, reasons, inputs(options, card, of_oltp), run.busy_remarks(figures)))
    return INCOMPLETE if reasons else 0
