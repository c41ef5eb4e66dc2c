"""Ratios of figures that were measured side by side, and what their spread allows to say."""

import statistics

ROUNDS_FOR_A_VERDICT = 5
UNCLEAR = "unclear"
TOO_FEW = "few rounds"


def compare(tcp, channel, more_is_better):
    """Two equally long lists of a figure, paired by round."""
    result = {"tcp": spread(tcp), "channel": spread(channel), "ratio": None, "verdict": UNCLEAR}
    if all(value > 0 for value in tcp):
        result["ratio"] = spread([ours / theirs for ours, theirs in zip(channel, tcp)])
        result["verdict"] = verdict(result["ratio"], noise(tcp), more_is_better)
    return result


def noise(values):
    """How far the values typically are from their median, as a share of it."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values) / middle


def verdict(ratio, tcp_noise, more_is_better):
    """What the spread of a ratio allows to say; `tcp_noise` is a share, as of `noise`."""
    if len(ratio["values"]) < ROUNDS_FOR_A_VERDICT:
        return TOO_FEW
    if ratio["min"] > 1 and ratio["median"] > 1 + tcp_noise:
        return "better" if more_is_better else "worse"
    if ratio["max"] < 1 and ratio["median"] < 1 - tcp_noise:
        return "worse" if more_is_better else "better"
    return UNCLEAR


def words(ratio, decimals=2):
    return (f"{ratio['median']:.{decimals}f} ({ratio['min']:.{decimals}f}.."
            f"{ratio['max']:.{decimals}f})")


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "values": list(values)}
