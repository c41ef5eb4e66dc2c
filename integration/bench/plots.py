"""A bench's plots: one figure for each group of the report, figures against one field of the key."""

import importlib.util

from integration.bench import carriers

COLOURS = {"tcp": "#7f8c99", "rdma": "#1f77b4", "shm": "#2a9d5c", "rsockets": "#d97b29", "rsockets-given": "#f2c14e",
           "smc": "#8a5fbf", "rdma-polls": "#0b3d66", "rdma-sleeps": "#7fb8e0",
           "shm-polls": "#14532d", "shm-sleeps": "#8fd0a8", "unix": "#c2a83e",
           "write": "#222222", "send": "#666666", "events": "#b03a48"}


def obstacle():
    """Why nothing can be drawn, or ""."""
    if importlib.util.find_spec("matplotlib"):
        return ""
    return "no plots without python3-matplotlib; apt-get install --no-install-recommends " \
        "python3-matplotlib"


def draw(tables, group, heading, path, field, panels):
    """One line a carrier with the spread of its rounds, against `field`; `panels` are lists of
    metrics, one for each panel. False when there is nothing to draw."""
    summaries = [summary for summary in tables.summaries(group) if summary["figures"]]
    if not summaries or not panels or obstacle():
        return False
    import matplotlib  # it takes a second, and only the callers that get here need it
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 4.2),
                                   constrained_layout=True, squeeze=False)
    figure.suptitle(heading, fontsize=12, fontweight="bold")
    names = list(dict.fromkeys(summary["carrier"] for summary in summaries))
    for axis, metric in zip(axes[0], panels):
        for name in names:
            points = [(summary["key"][field], summary["figures"][metric.key])
                      for summary in summaries
                      if summary["carrier"] == name and metric.key in summary["figures"]]
            if not points:
                continue
            middle = [values["median"] for _, values in points]
            axis.errorbar([x for x, _ in points], middle,
                          yerr=[[values["median"] - values["min"] for _, values in points],
                                [values["max"] - values["median"] for _, values in points]],
                          label=carriers.of(name).title, color=COLOURS[name], marker="o",
                          markersize=4, capsize=3, linewidth=1.5)
        axis.set_xscale("log", base=2)
        ticks = sorted({summary["key"][field] for summary in summaries})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.set_ylim(bottom=0)
        axis.set_xlabel(field)
        axis.set_title(f"{metric.title} ({'more' if metric.more_is_better else 'less'} is better)",
                       fontsize=9.5)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
