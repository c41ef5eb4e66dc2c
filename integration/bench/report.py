"""The report of a bench: a table for each group of rows, as Markdown, in JSON and on the terminal.

A figure is the median of its rounds. A ratio is a carrier's figure divided by TCP's in the same
round; the table has the median of these, the smallest and the largest. A row is never left out:
one without figures says why there are none.
"""

import json
from dataclasses import dataclass

from bench import carriers, ratios

REFERENCE = "tcp"
NO_ROUND = "not measured"
INTRODUCTION = (
    "Figures are medians over the rounds. A ratio is the carrier's figure divided by TCP's in the same "
    "round: their median, and the smallest and the largest in brackets.")


@dataclass(frozen=True)
class Metric:
    """A figure of a cell: its key there, its heading, how it is shown; `ratio`: compared, too."""

    key: str
    title: str
    decimals: int = 1
    more_is_better: bool = False
    ratio: bool = False


class Tables:
    """The cells of one bench by group and row.

    `groups` and `rows` are names of a key's fields: there is a table for each combination of the
    groups' values, with a row for each combination of the rows' values and each carrier. `wanted`
    lists the keys (without carrier and round) that there should be, in order; `names` the carriers.
    """

    def __init__(self, cells, wanted, names, groups, rows, metrics):
        self.groups, self.rows, self.metrics = groups, rows, metrics
        self._cells = cells
        self._wanted = wanted
        self._names = names

    def group_values(self):
        return list(dict.fromkeys(tuple(key[name] for name in self.groups) for key in self._wanted))

    def summaries(self, group):
        """The rows of a group: dicts with `key`, `carrier`, `rounds`, `figures` and, if there was
        one, `failed`."""
        found = []
        for key in self._wanted:
            if tuple(key[name] for name in self.groups) == group:
                found += [self._summary(key, carrier) for carrier in self._names]
        return found

    def _summary(self, key, carrier):
        mine = self._by_round(key, carrier)
        theirs = self._by_round(key, REFERENCE)
        both = [number for number in mine if number in theirs]
        figures = {}
        for metric in self.metrics:
            values = [cell[metric.key] for cell in mine.values() if cell.get(metric.key) is not None]
            if not values:
                continue
            figures[metric.key] = ratios.spread(values)
            pairs = [(theirs[number].get(metric.key), mine[number].get(metric.key))
                     for number in both]
            if metric.ratio and carrier != REFERENCE and pairs and all(
                    None not in pair and pair[0] > 0 for pair in pairs):
                compared = ratios.compare([pair[0] for pair in pairs], [pair[1] for pair in pairs],
                                          metric.more_is_better)
                figures[metric.key] |= {"ratio": compared["ratio"], "verdict": compared["verdict"]}
        failures = list(dict.fromkeys(self._failures(key, carrier)))
        return {"key": key, "carrier": carrier, "rounds": len(mine), "figures": figures,
                "failed": failures}

    def _by_round(self, key, carrier):
        wanted = {**key, "carrier": carrier}.items()
        return {cell["key"]["round"]: cell["figures"] for cell in self._cells
                if "figures" in cell and wanted <= cell["key"].items()}

    def _failures(self, key, carrier):
        asked = {**key, "carrier": carrier}
        for cell in self._cells:
            there = {name: value for name, value in cell["key"].items() if name != "round"}
            if "failed" in cell and there.items() <= asked.items():
                yield cell["failed"]

    def table(self, group):
        """Rows of words, the first being the headings; and the reasons that rows refer to."""
        ratios_of = [metric for metric in self.metrics if metric.ratio]
        table = [[*self.rows, "carrier", *(metric.title for metric in self.metrics),
                  *(f"{metric.title}: ratio" for metric in ratios_of), "rounds"]]
        reasons = []
        for summary in self.summaries(group):
            row = [str(summary["key"][name]) for name in self.rows]
            row.append(carriers.of(summary["carrier"]).title)
            row += [_shown(summary["figures"].get(metric.key), metric) for metric in self.metrics]
            row += [_ratio(summary["figures"].get(metric.key)) for metric in ratios_of]
            note = ""
            for reason in summary["failed"]:
                if reason not in reasons:
                    reasons.append(reason)
                note += f" [{reasons.index(reason) + 1}]"
            row.append((str(summary["rounds"]) if summary["rounds"] else NO_ROUND) + note)
            table.append(row)
        return table, reasons


def _shown(figure, metric):
    return f"{figure['median']:.{metric.decimals}f}" if figure else "-"


def _ratio(figure):
    if not figure or not figure.get("ratio"):
        return "-"
    ratio = figure["ratio"]
    return f"{ratio['median']:.2f} ({ratio['min']:.2f}..{ratio['max']:.2f})"


def text(table):
    """A table for a terminal."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join("  ".join(word.rjust(width) if word[:1].isdigit() or word == "-"
                               else word.ljust(width)
                               for word, width in zip(row, widths)).rstrip() for row in table)


def markdown_table(table):
    return "\n".join(["| " + " | ".join(table[0]) + " |",
                      "| " + " | ".join("---" for _ in table[0]) + " |",
                      *("| " + " | ".join(_cell(word) for word in row) + " |"
                        for row in table[1:])])


def _cell(word):
    return word.replace("|", "\\|")


def markdown(title, introduction, tables, headings, facts, pictures):
    """The whole report. `headings` has a heading and `pictures` may have a file for each group,
    `facts` is what the figures depend on, as {name: words}."""
    lines = [f"# {title}", "", *(part + "\n" for part in [*introduction, INTRODUCTION])]
    for group in tables.group_values():
        table, reasons = tables.table(group)
        lines += [f"## {headings[group]}", "", markdown_table(table), ""]
        lines += [f"{number}. {_indented(reason)}" for number, reason in enumerate(reasons, 1)]
        lines += [""] if reasons else []
        lines += [f"![{headings[group]}]({pictures[group]})", ""] if group in pictures else []
    lines += ["## What this was measured with", "",
              *(f"- {name}: {value}" for name, value in facts.items()), ""]
    return "\n".join(lines)


def _indented(reason):
    """With its further lines (of a log) as code below the first."""
    first, *more = reason.split("\n")
    return "\n".join([first, *(["", *("       " + line.strip() for line in more), ""]
                               if more else [])])


def write(out, title, introduction, tables, headings, facts, pictures):
    """Writes report.md and report.json into `out`."""
    (out / "report.md").write_text(
        markdown(title, introduction, tables, headings, facts, pictures), encoding="utf-8")
    (out / "report.json").write_text(json.dumps(
        {"title": title, "facts": facts,
         "tables": [{"heading": headings[group], "rows": tables.summaries(group)}
                    for group in tables.group_values()]}, indent=1), encoding="utf-8")


