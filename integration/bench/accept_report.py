"""The report of `ringroad bench accept`: what became of each step, as Markdown, in JSON and in one archive."""

import dataclasses
import json
import shutil

from integration.bench import carriers, net, oltp, ratios, report

PASSED, FAILED, CANNOT_RUN, LEFT_OUT = "passed", "FAILED", "cannot run", "left out"
DOCTOR = "doctor.json"
METRICS = {metric.key: metric for metrics in (*net.METRICS.values(), oltp.Oltp.metrics) for metric in metrics}
TITLE = "Acceptance of two hosts"
LEVELS = ("fail", "warn", "unknown")


@dataclasses.dataclass
class Outcome:
    """What became of a step. `file` is what it left in the folder; `is_late`: only time was missing."""

    verdict: str
    figure: str = ""
    file: str = ""
    reason: str = ""
    is_late: bool = False

    def words(self):
        return ": ".join(filter(None, (self.verdict, self.reason, self.figure)))


def of_bench(folder, needed, status):
    """The Outcome of a bench that has left its report in `folder`. Without figures of the carrier `needed` it
    says nothing of it."""
    rows = _rows(folder)
    mine = [row for _, row in rows if row["carrier"] == needed]
    reasons = list(dict.fromkeys(reason for row in mine for reason in row["failed"]))
    file = f"{folder.name}/report.md"
    if not any(row["rounds"] for row in mine):
        if reasons:
            return Outcome(FAILED if status else CANNOT_RUN, file=file, reason="; ".join(reasons))
        return Outcome(LEFT_OUT, file=file, reason="out of time: the same command goes on", is_late=True)
    compared = _compared(rows)
    words = [_headline(mine)]
    if compared:
        words.append(f"{sum(one['loses'] for one in compared)} of {len(compared)} ratios to TCP lose")
    left = sum(not row["rounds"] and not row["failed"] for _, row in rows)
    if left:
        words.append(f"{left} of {len(rows)} rows had no time")
    ours = list(dict.fromkeys(reason for _, row in rows if carriers.of(row["carrier"]).ours
                              for reason in row["failed"]))
    return Outcome(FAILED if status else PASSED, "; ".join(words), file, "; ".join(ours) if status else "")


def _rows(folder):
    """(heading, row) of each row of a bench's report."""
    told = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return [(table["heading"], row) for table in told["tables"] for row in table["rows"]]


def _headline(rows):
    """The first figure that is compared, of the first row that has one."""
    for row in rows:
        for key, figure in row["figures"].items():
            if METRICS[key].ratio:
                metric = METRICS[key]
                ratio = f", {ratios.words(figure['ratio'])} of TCP's" if figure.get("ratio") else ""
                return f"{metric.title} {figure['median']:.{metric.decimals}f}{ratio}"
    return ""


def _compared(rows):
    """Ringroad's ratios to TCP: dicts, with what loses."""
    found = []
    for heading, row in rows:
        for key, figure in row["figures"].items() if carriers.of(row["carrier"]).via else ():
            if figure.get("ratio"):
                middle = figure["ratio"]["median"]
                found.append({"what": heading, "key": row["key"], "carrier": row["carrier"], "figure": key,
                              "ratio": figure["ratio"], "rounds": row["rounds"],
                              "loses": middle < 1 if METRICS[key].more_is_better else middle > 1})
    return found


# ---- the whole

def _summary(outcomes):
    return [["step", "verdict", "figure", "file"],
            *([step.name, outcome.verdict, "; ".join(filter(None, (outcome.reason, outcome.figure))).replace("\n", " "),
               outcome.file or "-"] for step, outcome in outcomes)]


def terminal(outcomes):
    return "\n".join(f"{step.name:8}  {outcome.words()}" for step, outcome in outcomes)


def write(out, outcomes, facts):
    """Writes report.md and report.json. `outcomes` are pairs of a step and its Outcome, `facts` those of each
    host: {role: {name: words}}."""
    folders = [out / step.name for step, _ in outcomes if (out / step.name / "report.json").exists()]
    compared = {folder.name: _compared(_rows(folder)) for folder in folders}
    findings = json.loads((out / DOCTOR).read_text(encoding="utf-8")) if (out / DOCTOR).exists() else {}
    targets = {folder.name: json.loads((folder / "report.json").read_text(encoding="utf-8"))["conclusions"]
               for folder in folders}
    lines = [f"# {TITLE}", "", report.markdown_table(_summary(outcomes)), "",
             "It holds addresses, names of hosts and what the doctor found: look through it before it is passed on.",
             "", "## The hosts", "", report.markdown_table(_facts_table(facts)), ""]
    if findings:
        lines += ["## What the doctor found", "", *_findings(findings), ""]
    for name, rows in compared.items():
        if rows:
            lines += [f"## Ringroad to TCP: {name}", "",
                      "A ratio of one round; their median, smallest and largest. What is bold loses.", "",
                      report.markdown_table(_ratio_table(rows)), ""]
    for name, tables in targets.items():
        for heading, table in tables.items():
            lines += [f"## {heading}: {name}", "", report.markdown_table(table), ""]
    pictures = [picture.relative_to(out) for folder in folders for picture in sorted(folder.glob("*.png"))]
    lines += ["## Plots", ""] if pictures else []
    lines += [f"![{picture}]({picture})\n" for picture in pictures]
    (out / "report.md").write_text("\n".join(lines), encoding="utf-8")
    (out / "report.json").write_text(json.dumps(
        {"title": TITLE, "steps": [{"step": step.name, **dataclasses.asdict(outcome)} for step, outcome in outcomes],
         "hosts": facts, "doctor": findings, "ratios": compared, "conclusions": targets,
         "plots": [str(picture) for picture in pictures]}, indent=1), encoding="utf-8")


def _facts_table(facts):
    names = list(dict.fromkeys(name for host in facts.values() for name in host))
    return [["", *facts], *([name, *(host.get(name, "-") for host in facts.values())] for name in names)]


def _findings(findings):
    """A list of what is not ok, the worst first."""
    lines = []
    for level in LEVELS:
        for role, found in findings.items():
            lines += [f"- **{level}**, {role}, `{one['check']}` {one['subject']}: {one['evidence']}. Means: "
                      f"{one['consequence']}. Mend: {one['remedy'] or '-'}".replace("\n", " ")
                      for one in found["findings"] if one["level"] == level]
    return lines or ["Everything is as it should be."]


def _ratio_table(rows):
    table = [["what", "row", "carrier", "figure", "ratio to TCP", "rounds"]]
    for one in rows:
        row = " ".join(f"{name} {value}" for name, value in one["key"].items()
                       if name in ("size", "threads", "connections"))
        words = ratios.words(one["ratio"])
        table.append([one["what"], row, carriers.of(one["carrier"]).title, METRICS[one["figure"]].title,
                      f"**{words}**" if one["loses"] else words, str(one["rounds"])])
    return table


def pack(out):
    """One file to send; its path."""
    return shutil.make_archive(str(out), "gztar", out.parent, out.name)
