"""The rows of the table of docs/benchmarks.md, made of benches' reports.

usage: python3 -m integration.bench.table [CASE=]DIR...

A row has TCP's own figure, and what Ringroad and the others have of it: the first figure that is compared,
the worst times, the processor's. What is bold loses against TCP.
"""

import json
import sys
from pathlib import Path

from integration.bench import carriers, net, oltp, ratios, redis, report

METRICS = {metric.key: metric for metrics in (*net.METRICS.values(), oltp.Oltp.metrics, redis.Redis.metrics)
           for metric in metrics}
HEADINGS = ["case", "workload", "at a time", "TCP", "Ringroad", "times", "CPU", "others", "rounds"]
# What a row is of, beside the workload; the last is what is varied.
VARIED = ("clients", "threads", "connections")
NAMES = {"connection": "", "block": "in `recv`", "epoll": "in `epoll_wait`", "pingpong": "ping-pong",
         "stream": "one direction", "rate": "one direction", "connections": "connect, ask, close",
         "promotions": "connect, be promoted, ask, close"}
TIMES, CPU = ("p95_ms", "p99_us"), ("server_cpu_us_per_query", "client_cpu_us")


def rows_of(case, told):
    """The rows of one report.json, as lists of words."""
    found = {}
    for table in told["tables"]:
        for row in table["rows"]:
            found.setdefault((table["heading"], *row["key"].items()), {})[row["carrier"]] = row
    return [_row(case, heading, dict(key), row) for (heading, *key), row in found.items()]


def _row(case, heading, key, row):
    ours = next((row[name] for name in ("shm", "rdma", "shm-sleeps", "rdma-sleeps") if name in row), None)
    main = next((name for name, figure in (ours or {"figures": {}})["figures"].items() if figure.get("ratio")), "")
    tcp = row["tcp"]["figures"].get(main or next(iter(row["tcp"]["figures"]), ""))
    metric = METRICS.get(main)
    others = [f"{_name(name, ours)} {_ratio(one, main) or _why(one)}" for name, one in row.items()
              if name != "tcp" and one is not ours]
    count = next((str(key[name]) for name in VARIED if name in key), "1")
    if "size" in key:
        count += f" × {key['size']} B"
    return [case, _workload(heading, key), count,
            f"{tcp['median']:,.{metric.decimals}f} {metric.title}" if tcp and metric else "-",
            _ratio(ours, main) or _why(ours), _first(ours, row["tcp"], TIMES), _first(ours, row["tcp"], CPU),
            "; ".join(others),
            str(ours["rounds"] if ours else 0)]


def _workload(heading, key):
    names = ["workload", "threading", "command", "measure", *(["wait"] if key.get("measure") == "pingpong" else [])]
    words = [NAMES.get(key[name], key[name]) for name in names if name in key]
    if key.get("pipeline", 1) != 1:
        words.append(f"{key['pipeline']} requests at once")
    return ", ".join(filter(None, words)) or heading


def _name(name, ours):
    """`polls` of "shm-polls" beside "shm"."""
    of = carriers.of(name)
    return name.partition("-")[2] if ours and of.via and "-" in name else of.title


def _first(row, tcp, names):
    """Of the first of these figures that both have."""
    return next(filter(None, (_ratio(row, name, tcp) for name in names)), "")


def _ratio(row, name, tcp=None):
    """As the report has it, or of TCP's figures in the same rounds."""
    figure = row["figures"].get(name) if row else None
    ratio = figure.get("ratio") if figure else None
    if figure and not ratio and tcp and name in tcp["figures"] and row["rounds"] == tcp["rounds"]:
        ratio = ratios.compare(tcp["figures"][name]["values"], figure["values"], False)["ratio"]
    if not ratio:
        return ""
    decimals = 2 if ratio["max"] >= 0.1 else 3
    middle, low, high = (f"{ratio[part]:.{decimals}f}" for part in ("median", "min", "max"))
    words = middle if low == high else f"{middle} ({low}..{high})"
    loses = float(middle) < 1 if METRICS[name].more_is_better else float(middle) > 1
    return f"**{words}**" if loses else words


def _why(row):
    return (row["failed"] or [report.NO_ROUND])[0].splitlines()[0] if row else ""


def main(words):
    table = [HEADINGS]
    for word in words:
        case, _, folder = word.rpartition("=")
        told = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
        table += rows_of(case or Path(folder).name, told)
    print(report.markdown_table(table))


if __name__ == "__main__":
    main(sys.argv[1:])
