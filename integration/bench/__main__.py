"""What `ringroad bench` executes: python3 -m integration.bench oltp|net|redis|model|accept OPTIONS."""

import importlib
import sys

BENCHES = ("oltp", "net", "redis", "model", "accept")


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BENCHES:
        sys.exit(f"bench: there is no bench \"{name}\", only {', '.join(BENCHES)}")
    return importlib.import_module(f"integration.bench.{name}").main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
