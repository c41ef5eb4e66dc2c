"""Runs suites by hand, says what fails, and keeps the log if something does."""

import argparse
import collections
import shutil
import tempfile
from pathlib import Path

from integration.suites import catalogue, passes, runner


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", action="store_true", help="the slowest tests too")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--test", action="append", help="only these tests, by their ids")
    parser.add_argument("pass_name", choices=["plain", *passes.PASSES])
    parser.add_argument("suites", nargs="*", default=[suite.name for suite in catalogue.SUITES])
    options = parser.parse_args()
    for suite in [s for s in catalogue.SUITES if s.name in options.suites] * options.repeat:
        directory = Path(tempfile.mkdtemp(prefix="ringroad-suites."))
        try:
            chosen = suite.only(options.test) if options.test else suite
            outcome = passes.run(chosen, options.pass_name, directory, lambda _: None)
            print(f"{suite.name} {options.pass_name}: "
                  f"{dict(collections.Counter(outcome.results.values()))}, "
                  f"{outcome.promoted} of {outcome.opened} streams promoted, "
                  f"{sum(outcome.seconds.values()):.0f} s", flush=True)
            for test, result in sorted(outcome.failing().items()):
                print(f"  {result} {test}", flush=True)
            if outcome.failing():
                keep = Path(tempfile.gettempdir()) / f"survey-{suite.name}-{options.pass_name}.log"
                shutil.copy(directory / "log-1", keep)
                print(f"  see {keep}")
            slow = sorted(outcome.seconds.items(), key=lambda item: -item[1])
            for test, seconds in slow[:60] if options.times else ():
                print(f"  {seconds:5.1f} s {test}")
        finally:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
