"""How long a store like TiKV's takes from append to commit, over TCP and over Ringroad in turns, in one run.

Three stores on this host, over loopback and shared memory; prints a table. Medians of the rounds, and of each
round's ratio to the TCP that came before it, with the least and the largest.
"""

import argparse
import statistics

from integration.acceptance import support
from integration.lib import processes
from integration.systems import raft_stores

COLUMNS = (("p50_us", "p50, us"), ("p99_us", "p99, us"), ("per_s", "commits/s"))
CARRIER = "shm"


def row(at_once, name, cells):
    return f"| {at_once} | {name} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2, help="of each load")
    parser.add_argument("--bytes", type=int, default=256, help="of each value")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16, 64],
                        help="commands that are under way")
    options = parser.parse_args()
    print(f"{options.rounds} rounds of {options.seconds:g} s, values of {options.bytes} bytes\n")
    print(row("at once", "carrier", [title for _, title in COLUMNS]))
    print(row("---:", "---", ["---:"] * len(COLUMNS)))
    with processes.WorkDirectory("ringroad-raft") as work:
        host = support.Host(work)
        preload = host.preload(host.policy("raft", ["1-65535"], via=CARRIER,
                                           promote_after="{ messages = 1 }"))
        addresses = [f"127.0.0.1:{support.free_port()}" for _ in range(3)]
        with raft_stores.Stores(host, addresses, preload) as stores:
            commands = 0
            for at_once in options.at_once:
                measured = raft_stores.alternate(stores, CARRIER, options.rounds, options.seconds,
                                                 at_once, options.bytes)
                for name, reports in measured.items():
                    commands += sum(report["commands"] for report in reports)
                    print(row(at_once, name, [f"{statistics.median(r[key] for r in reports):.0f}"
                                              for key, _ in COLUMNS]))
                ratios = [[channel[key] / tcp[key] for tcp, channel in zip(*measured.values())]
                          for key, _ in COLUMNS]
                print(row(at_once, "ratio", [
                    f"{statistics.median(some):.2f} ({min(some):.2f}..{max(some):.2f})"
                    for some in ratios]), flush=True)
            digest = stores.check_logs(commands)
    print(f"\nThe three logs are the same {commands} entries: SHA-256 {digest[:16]}...")


if __name__ == "__main__":
    main()
