"""The report of a bench: a table for each group of rows, as Markdown, in JSON and on the terminal.

A figure is the median of its rounds. A ratio is a carrier's figure divided by TCP's in the same
round; the table has the median of these, the smallest and the largest. A row is never left out:
one without figures says why there are none.
"""

import json
from dataclasses import dataclass

from integration.bench import carriers, ratios

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
    lists what there should be, in order: pairs of a key (without carrier and round) and a carrier.
    Figures are compared with those of the carriers `references`; `metrics_of` has a group's.
    """

    def __init__(self, cells, wanted, references, groups, rows, metrics_of):
        self.groups, self.rows, self.metrics_of = groups, rows, metrics_of
        self._cells = cells
        self._wanted = wanted
        self._references = references

    def group_values(self):
        return list(dict.fromkeys(self._group_of(key) for key, _ in self._wanted))

    def _group_of(self, key):
        return tuple(key[name] for name in self.groups)

    def summaries(self, group):
        """The rows of a group: dicts with `key`, `carrier`, `rounds`, `figures` and, if there was
        one, `failed`."""
        return [self._summary(key, carrier) for key, carrier in self._wanted
                if self._group_of(key) == group]

    def _summary(self, key, carrier):
        mine = self._by_round(key, carrier)
        figures = {}
        for metric in self.metrics_of(self._group_of(key)):
            values = [cell[metric.key] for cell in mine.values() if cell.get(metric.key) is not None]
            if not values:
                continue
            figures[metric.key] = ratios.spread(values)
            for reference in self._references if metric.ratio else ():
                compared = self._compared(metric, key, mine, reference)
                if carrier == reference or not compared:
                    continue
                figures[metric.key][self._ratio_key(reference)] = compared["ratio"]
                if reference == REFERENCE:
                    figures[metric.key]["verdict"] = compared["verdict"]
        failures = list(dict.fromkeys(self._failures(key, carrier)))
        return {"key": key, "carrier": carrier, "rounds": len(mine), "figures": figures,
                "failed": failures}

    @staticmethod
    def _ratio_key(reference):
        return "ratio" if reference == REFERENCE else f"ratio_to_{reference}"

    @staticmethod
    def _divisor(reference):
        return "" if reference == REFERENCE else f" to {carriers.of(reference).title}"

    def _compared(self, metric, key, mine, reference):
        """Of the rounds that both have; None where either has no such figure."""
        theirs = self._by_round(key, reference)
        pairs = [(theirs[number].get(metric.key), mine[number].get(metric.key))
                 for number in mine if number in theirs]
        if not pairs or not all(None not in pair and pair[0] > 0 for pair in pairs):
            return None
        return ratios.compare([pair[0] for pair in pairs], [pair[1] for pair in pairs],
                              metric.more_is_better)

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
        metrics, summaries = self.metrics_of(group), self.summaries(group)
        present = {summary["carrier"] for summary in summaries}
        compared = [(metric, reference) for metric in metrics if metric.ratio
                    for reference in self._references if reference in present]
        table = [[*self.rows, "carrier", *(metric.title for metric in metrics),
                  *(f"{metric.title}: ratio" + self._divisor(reference)
                    for metric, reference in compared), "rounds"]]
        reasons = []
        for summary in summaries:
            row = [str(summary["key"][name]) for name in self.rows]
            row.append(carriers.of(summary["carrier"]).title)
            row += [_shown(summary["figures"].get(metric.key), metric) for metric in metrics]
            row += [_ratio(summary["figures"].get(metric.key), self._ratio_key(reference))
                    for metric, reference in compared]
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


def _ratio(figure, key):
    if not figure or not figure.get(key):
        return "-"
    return ratios.words(figure[key])


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


def markdown(title, introduction, tables, headings, facts, pictures, conclusions):
    """The whole report. `headings` has a heading and `pictures` may have a file for each group,
    `facts` is what the figures depend on, as {name: words}; `conclusions` are further tables by
    their headings."""
    lines = [f"# {title}", "", *(part + "\n" for part in [*introduction, INTRODUCTION])]
    for group in tables.group_values():
        table, reasons = tables.table(group)
        lines += [f"## {headings[group]}", "", markdown_table(table), ""]
        lines += [f"{number}. {_indented(reason)}" for number, reason in enumerate(reasons, 1)]
        lines += [""] if reasons else []
        lines += [f"![{headings[group]}]({pictures[group]})", ""] if group in pictures else []
    for heading, table in conclusions.items():
        lines += [f"## {heading}", "", markdown_table(table), ""]
    lines += ["## What this was measured with", "",
              *(f"- {name}: {value}" for name, value in facts.items()), ""]
    return "\n".join(lines)


def _indented(reason):
    """With its further lines (of a log) as code below the first."""
    first, *more = reason.split("\n")
    return "\n".join([first, *(["", *("       " + line.strip() for line in more), ""]
                               if more else [])])


def write(out, title, introduction, tables, headings, facts, pictures, conclusions):
    """Writes report.md and report.json into `out`."""
    (out / "report.md").write_text(
        markdown(title, introduction, tables, headings, facts, pictures, conclusions), encoding="utf-8")
    (out / "report.json").write_text(json.dumps(
        {"title": title, "facts": facts, "conclusions": conclusions,
         "tables": [{"heading": headings[group], "rows": tables.summaries(group)}
                    for group in tables.group_values()]}, indent=1), encoding="utf-8")


