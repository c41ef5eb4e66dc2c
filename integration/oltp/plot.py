"""The report's picture: throughput and p95 latency, TCP beside the channel."""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

SHOWN = (("tps", "transactions per second", "more is better"),
         ("p95_ms", "p95 latency, ms", "less is better"))
COLOURS = {"tcp": "#7f8c99", "channel": "#1f77b4"}


def draw(parts, path):
    """Draws one row for each (heading, channel's label, summaries of report.summarise)."""
    columns = max(len(summaries) for _, _, summaries in parts) * len(SHOWN)
    figure = pyplot.figure(figsize=(3.3 * columns, 4.2 * len(parts)), constrained_layout=True)
    rows = figure.subfigures(len(parts), 1, squeeze=False)[:, 0]
    for row, (heading, label, summaries) in zip(rows, parts):
        row.suptitle(heading, fontsize=12, fontweight="bold")
        axes = row.subplots(1, columns, squeeze=False)[0]
        cells = [(summary, *shown) for summary in summaries for shown in SHOWN]
        for axis, cell in zip(axes, cells):
            _draw_cell(axis, label, *cell)
        for axis in axes[len(cells):]:
            axis.set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_cell(axis, label, summary, key, unit, direction):
    metric = summary["metrics"][key]
    for position, side in enumerate(("tcp", "channel")):
        values = metric[side]
        axis.bar(position, values["median"], width=0.6, color=COLOURS[side])
        axis.plot([position] * len(values["values"]), values["values"], "o", color="black",
                  markersize=3.5, alpha=0.6)
        axis.annotate(f"{values['median']:,.0f}" if values["median"] >= 100 else
                      f"{values['median']:.3g}", (position, 0), xytext=(0, 6),
                      textcoords="offset points", ha="center", color="white", fontweight="bold")
    axis.set_xticks((0, 1), ("TCP", label))
    axis.set_xlim(-0.6, 1.6)
    axis.set_ylim(0, 1.12 * max(metric["tcp"]["max"], metric["channel"]["max"]))
    axis.set_title(f"{summary['workload']}\n{unit} ({direction})", fontsize=9.5)
    axis.spines[["top", "right"]].set_visible(False)
    if metric["ratio"]:
        ratio = metric["ratio"]
        axis.set_xlabel(f"ratio to TCP {ratio['median']:.2f} "
                        f"({ratio['min']:.2f}..{ratio['max']:.2f}): {metric['verdict']}",
                        fontsize=9.5)
