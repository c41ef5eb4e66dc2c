"""The targets of `ringroad bench net`: ratios that Ringroad is to reach, held against one run's."""

from dataclasses import dataclass

from integration.bench import carriers, ratios

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Target:
    """A figure of `carrier`, divided by that of `reference` in the same round."""

    measure: str
    wait: str
    size: int
    carrier: str
    reference: str
    figure: str
    most: float = None
    least: float = None

    @property
    def bound(self):
        return f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}"

    def is_reached(self, ratio):
        return ratio <= self.most if self.most is not None else ratio >= self.least


def _pingpong(wait, carrier, reference, most):
    return Target("pingpong", wait, 64, carrier, reference, "p50_us", most=most)


ALL = (
    _pingpong("block", "rdma-polls", "write", 1.15),
    *(_pingpong(wait, carrier, reference, most) for wait in ("block", "epoll")
      for carrier in ("rdma", "rdma-sleeps") for reference, most in
      (("events", 1.2), ("rsockets", 0.6), ("smc", 0.6))),
    Target("stream", "block", 65536, "rdma", "write", "mb_per_s", least=0.95),
    Target("rate", "block", 64, "rdma", "rsockets", "per_s", least=2),
    _pingpong("block", "shm-polls", "tcp", 1 / 40),
    _pingpong("block", "shm-sleeps", "tcp", 1 / 1.25),
    *(Target("connections", "block", 64, carrier, "tcp", "per_s", least=0.97)
      for carrier in ("rdma", "shm")))
WORDS = {"p50_us": "p50", "mb_per_s": "MB/s", "per_s": "per second"}


def table(cells, measured):
    """Rows of words, the first being the headings, for the targets of the carriers `measured`."""
    rows = [["what", "carrier", "held against", "ratio", "target", ""]]
    for target in ALL:
        if target.carrier not in measured:
            continue
        found = ratio(cells, target)
        told = f"{target.measure}, {target.size} bytes"
        if target.measure == "pingpong":
            told += {"block": ", blocking", "epoll": ", epoll"}[target.wait]
        rows.append([f"{told}: {WORDS[target.figure]}", carriers.of(target.carrier).title,
                     carriers.of(target.reference).title,
                     ratios.words(found, 3) if found else "-", target.bound,
                     ("reached" if target.is_reached(found["median"]) else "not reached")
                     if found else NOT_MEASURED])
    return rows


def ratio(cells, target):
    """Of the rounds that both have, as ratios.spread tells it; None without any."""
    def by_round(carrier):
        key = {"measure": target.measure, "wait": target.wait, "connections": 1,
               "size": target.size, "carrier": carrier}
        return {cell["key"]["round"]: cell["figures"][target.figure] for cell in cells
                if "figures" in cell and key.items() <= cell["key"].items()}
    ours, theirs = by_round(target.carrier), by_round(target.reference)
    both = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
    return ratios.spread(both) if both else None
