#!/usr/bin/python3
"""Merges the results of oltp_demo.py into report.md, report.json and oltp.png.

The table is also printed. A ratio is the channel's figure divided by TCP's in the same round; the
table shows the median of the rounds, and the smallest and the largest. "better" and "worse" are
said only when all of at least five rounds agree (by chance that happens once in sixteen times) and
the median differs from 1 by more than TCP's own rounds typically differ from their median. All
figures are of the measured windows (WINDOW); what came before them is told besides.
"""

import argparse
import json
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.ratios import compare, spread  # noqa: E402
from oltp import plot  # noqa: E402

# (key, heading, decimals, whether more is better)
METRICS = (
    ("tps", "tps", 1, True),
    ("p50_ms", "p50 ms", 3, False),
    ("p95_ms", "p95 ms", 3, False),
    ("p99_ms", "p99 ms", 3, False),
    ("server_cpu_us_per_query", "server us/query", 1, False),
    ("client_cpu_us_per_query", "client us/query", 1, False),
    ("switches_per_query", "switches/query", 2, False),
)
# Above this share of the processors, other programs' work is worth a warning.
BUSY = 0.1
# The table is wider.
TEXT_WIDTH = 110
TITLES = {"softroce": "Soft-RoCE virtual machine", "native": "This machine"}
CARRIERS = {"rdma": "RDMA", "shm": "shared memory", "tcp (A/A)": "TCP again (A/A run)"}
NOTES = {
    "softroce": "Every processor here is emulated by software and so is the RDMA device: the "
                "absolute figures say nothing about hardware; the ratios are of one run, in turns.",
    "native": "Both ends are on one host; TCP goes over the loopback device, the channel through "
              "shared memory.",
}
WINDOW = ("The measured window of a phase begins when all its connections are up, have been in use "
          "for a moment and, in the phases that are not TCP's, are on the channel; it ends with "
          "the load. In between, sysbench's threads wait until all counters have been read. The "
          "phases over TCP begin in the same way, after a warm-up as long as the channel's last.")
NOTE_ON_A_A = ("Both sides are plain TCP: what differs from 1 here is the noise of the comparison "
               "itself.")


def summarise(part):
    """Medians and ratios of one result of oltp_demo.py: a list with a dict for each workload."""
    summaries = []
    for workload in part["workloads"]:
        rounds = [pair for pair in workload["rounds"] if pair["tcp"]["tps"] > 0]
        if not rounds:
            continue
        summary = {"workload": workload["name"], "rounds": len(rounds), "metrics": {},
                   "errors": {side: sum(pair[side]["errors"] + pair[side]["reconnects"]
                                        for pair in rounds) for side in ("tcp", "channel")},
                   "rdma_packets": {side: sum(pair[side]["rdma_packets"] for pair in rounds)
                                    for side in ("tcp", "channel")},
                   "channel_share": channel_share(pair["channel"]["bytes"] for pair in rounds),
                   "whole_share": channel_share(pair["channel"]["whole"]["bytes"]
                                                for pair in rounds),
                   "packets_per_query": packets_per_query(rounds),
                   "set_up": set_up(rounds)}
        for key, _, _, more_is_better in METRICS:
            summary["metrics"][key] = compare(
                [pair["tcp"][key] for pair in rounds],
                [pair["channel"][key] for pair in rounds], more_is_better)
        summaries.append(summary)
    return summaries


def channel_share(counts):
    """The share of the bytes that the channel carried; None without any."""
    moved = {"tcp": 0, "channel": 0}
    for count in counts:
        for carrier in moved:
            moved[carrier] += count[carrier]
    return moved["channel"] / sum(moved.values()) if sum(moved.values()) else None


def packets_per_query(rounds):
    """Packets that the RDMA devices of both ends sent in the channel's windows, a query."""
    sent = sum(counters.get("sent_pkts", 0) for pair in rounds
               for counters in pair["channel"]["rdma"].values())
    return sent / max(1, sum(pair["channel"]["queries"] for pair in rounds))


def set_up(rounds):
    """What happened before the windows, in seconds since the connections were up: the spread of
    the warm-up on each side, and of the promotion on the channel's, None if one did not come."""
    promotions = [pair["channel"]["set_up"]["promotion_s"] for pair in rounds]
    return {"tcp": spread([pair["tcp"]["set_up"]["seconds"] for pair in rounds]),
            "channel": spread([pair["channel"]["set_up"]["seconds"] for pair in rounds]),
            "promotion": None if None in promotions else spread(promotions)}


def heading(part):
    given = part["parameters"]
    return (f"{TITLES[part['where']]}: {CARRIERS[part['label']]} against TCP "
            f"({given['threads']} connections, {rounds_done(part)} rounds of {given['time']} s)")


def note(part):
    return NOTES[part["where"]] if part["carrier"] != "tcp" else NOTE_ON_A_A


def rounds_done(part):
    """How many rounds there were, in words: "6", or "4 to 6 of 6" when time ran out."""
    done = sorted({len(workload["rounds"]) for workload in part["workloads"]}) or [0]
    asked = part["parameters"]["rounds"]
    words = f"{done[0]}" if done[0] == done[-1] else f"{done[0]} to {done[-1]}"
    return words if done == [asked] else f"{words} of {asked}"


def rows(part):
    """The table of one part: a list of rows of words, the first being the headings."""
    table = [["workload", "carrier", *(title for _, title, _, _ in METRICS), "errors"]]
    for summary in summarise(part):
        name = summary["workload"]
        for side, label in (("tcp", "tcp"), ("channel", part["label"])):
            table.append([name, label,
                          *(f"{summary['metrics'][key][side]['median']:.{decimals}f}"
                            for key, _, decimals, _ in METRICS), str(summary["errors"][side])])
            name = ""
        ratios = [summary["metrics"][key] for key, _, _, _ in METRICS]
        table.append(["", "ratio", *(f"{r['ratio']['median']:.2f}" if r["ratio"] else "-"
                                     for r in ratios), ""])
        table.append(["", "min..max", *(f"{r['ratio']['min']:.2f}..{r['ratio']['max']:.2f}"
                                        if r["ratio"] else "-" for r in ratios), ""])
        table.append(["", "", *(r["verdict"] for r in ratios), ""])
    return table


def proof(part):
    """Sentences on which carrier each workload's bytes took, and on what else the table needs."""
    sentences = []
    carrier = CARRIERS[part["label"]]
    for summary in summarise(part):
        if summary["channel_share"] is None:
            continue
        text = (f"{summary['workload']}: {100 * summary['channel_share']:.2f} % of the bytes in "
                f"the channel phases' windows crossed {carrier}; with set-up and warm-up, from "
                f"before the connections on, {100 * summary['whole_share']:.2f} %")
        if part["carrier"] == "rdma":
            packets = summary["rdma_packets"]
            text += (f"; the RDMA devices counted {packets['channel']} packets in these windows "
                     f"and {packets['tcp']} in those over TCP")
        sentences += [text + ".", f"{summary['workload']}: {before_the_windows(summary, carrier)}"]
    if part["where"] == "softroce" and part["carrier"] == "rdma":
        sentences += why_rdma_loses(summarise(part))
    if part.get("other_load") is not None:
        sentences.append(f"Other programs used {100 * part['other_load']:.0f} % of this machine's "
                         "processors meanwhile"
                         + ("; repeat it on a quieter one." if part["other_load"] > BUSY else "."))
    if part["equality"] and not any("tables as" in failure for failure in part["failures"]):
        sentences.append("The same statements over both carriers left equal tables "
                         f"({part['parameters']['events']} transactions, CHECKSUM TABLE).")
    return sentences


def why_rdma_loses(summaries):
    """A sentence, if it does."""
    losing = [summary for summary in summaries if summary["metrics"]["tps"]["ratio"]
              and summary["metrics"]["tps"]["ratio"]["median"] < 1]
    if not losing:
        return []
    packets = " and ".join(f"{summary['packets_per_query']:.1f}" for summary in losing)
    names = " and ".join(summary["workload"] for summary in losing)
    return [f"RDMA does fewer transactions than TCP, by the medians, in {names}. Its device is "
            f"software (rxe): the emulated processors that run the database also do its work, a "
            f"system call for each message and building, checking and acknowledging each packet "
            f"({packets} packets a query, each with a CRC-32), which a network card does itself."]


def before_the_windows(summary, carrier):
    before = summary["set_up"]
    words = (f"the warm-up before a window took {before['tcp']['median']:.2f} s over TCP and "
             f"{before['channel']['median']:.2f} s over {carrier}")
    if before["promotion"]:
        words += (f"; all connections were seen on {carrier} {before['promotion']['median']:.2f} s "
                  f"(at most {before['promotion']['max']:.2f} s) after they were up")
    return words + "."


def text(parts):
    """The report for a terminal."""
    lines = [*textwrap.wrap(WINDOW, TEXT_WIDTH), ""]
    for part in parts:
        table = rows(part)
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        lines += [heading(part), *textwrap.wrap(note(part), TEXT_WIDTH), ""]
        lines += ["  ".join(word.ljust(width) if column < 2 else word.rjust(width)
                            for column, (word, width) in enumerate(zip(row, widths))).rstrip()
                  for row in table]
        lines += ["", *(line for sentence in proof(part)
                        for line in textwrap.wrap(sentence, TEXT_WIDTH, subsequent_indent="  ")),
                  *(f"FAILED: {failure}" for failure in part["failures"]), ""]
    return "\n".join(lines)


def markdown(parts, picture):
    lines = ["# OLTP over TCP and over Ringroad", "",
             "Medians over the rounds. A ratio is the channel's figure divided by TCP's in the "
             "same round, with the smallest and the largest of the rounds below it. *better* and "
             "*worse* are said only when all of at least five rounds agree and the median differs "
             "from 1 by more than TCP's own rounds typically differ from their median.", "",
             WINDOW, ""]
    if picture:
        lines += [f"![throughput and latency]({picture})", ""]
    for part in parts:
        table = rows(part)
        lines += [f"## {heading(part)}", "", note(part), ""]
        lines += ["| " + " | ".join(table[0]) + " |",
                  "|" + "---|" * 2 + "---:|" * (len(table[0]) - 2)]
        lines += ["| " + " | ".join(row) + " |" for row in table[1:]]
        lines += ["", *(f"- {sentence}" for sentence in proof(part)),
                  *(f"- **FAILED**: {failure}" for failure in part["failures"]), ""]
        lines += [f"- {name}: {value}" for name, value in part["environment"].items()] + [""]
    return "\n".join(lines)


def load(path):
    try:
        part = json.loads(Path(path).read_text())
        return part if part["where"] in TITLES else sys.exit(f"{path}: unknown part")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        sys.exit(f"report: {path} is no result of oltp_demo.py: {problem!r}")


def write(parts, out):
    """Writes report.json, report.md and oltp.png into the directory `out`."""
    out = Path(out)
    (out / "report.json").write_text(json.dumps(
        [{**part, "summary": summarise(part)} for part in parts], indent=1))
    drawn = [(heading(part), part["label"], summarise(part)) for part in parts if summarise(part)]
    picture = "oltp.png" if drawn else None
    if drawn:
        plot.draw(drawn, out / picture)
    (out / "report.md").write_text(markdown(parts, picture))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="oltp-WHERE.json")
    parser.add_argument("--out", type=Path, required=True, help="directory for the report")
    options = parser.parse_args()
    parts = [load(path) for path in options.results]
    options.out.mkdir(parents=True, exist_ok=True)
    write(parts, options.out)
    print(text(parts))
    print(f"{options.out}/report.md, report.json and oltp.png hold the same and each round.")
    return 1 if any(part["failures"] for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
