"""The benches on this machine: what `make bench` and `make demo` run after the build.

  1. a MariaDB data directory with sysbench's tables is prepared (once)
  2. `ringroad bench oltp` in a virtual machine with Soft-RoCE devices: everything over RDMA
  3. `ringroad bench oltp` on this machine: shared memory against TCP over loopback
  4. `ringroad bench redis` on this machine
  5. and 6. `ringroad bench net` in the virtual machine and on this one

With --preset demo only 1 to 3, for few rows, from the beginning each time: five minutes, or three with
--quick. Otherwise an hour, or some minutes with --quick. Each part has a budget, in which it measures as
many rounds as it can. What was measured is kept; another run of this program goes on with the rest. The
exit status is 1 when a part failed; the others are still run.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from integration.bench import arguments, oltp, results
from integration.lib import processes, template

ROOT = Path(__file__).resolve().parents[2]
VIRTUAL_MACHINE = ROOT / "integration" / "softroce" / "run"
# Beyond the budget of a part in the machine: its start, and the measurement that is under way.
MACHINE_S = 360
# Where each part runs, and in full and by --quick its minutes and what is measured. An emulated
# processor needs more seconds for as many transactions, and more threads for nothing but its own sake.
MACHINE = "softroce"
JOINED = "v0=rxe0 v1=rxe1"  # the machine's devices, for SMC-R
HERE = "native"
BENCH = {
    "oltp-softroce": (MACHINE, {
        False: (14, "oltp --carriers tcp,rdma,rsockets,smc --threads 1,4,16 --threading connection "
                    "--rounds 3 --seconds 3"),
        True: (4, "oltp --carriers tcp,rdma,rsockets,smc --workloads point_select --threads 1,4 "
                  "--threading connection --rounds 2 --seconds 2")}),
    "oltp-native": (HERE, {
        False: (14, "oltp --carriers tcp,shm,unix --rounds 5 --seconds 1"),
        True: (2, "oltp --quick --carriers tcp,shm,unix")}),
    "redis-native": (HERE, {
        False: (5, "redis --carriers tcp,shm,unix --rounds 5 --seconds 1"),
        True: (1, "redis --quick --carriers tcp,shm,unix")}),
    "net-softroce": (MACHINE, {
        False: (12, "net --sizes 64,4096 --connections 4 --rounds 3 "
                    "--carriers tcp,rdma,rdma-polls,rdma-sleeps,rsockets,smc,write,send,events"),
        True: (4, "net --measures pingpong-block,stream,rate --sizes 64 --connections 4 --rounds 2 "
                  "--carriers tcp,rdma,rdma-polls,rsockets,write,events")}),
    "net-native": (HERE, {
        False: (8, "net --carriers tcp,shm,shm-polls,shm-sleeps,unix --sizes 64,65536 --rounds 7"),
        True: (2, "net --quick --carriers tcp,shm,shm-polls,shm-sleeps,unix")}),
}
SHOWN = "--workloads point_select,read_write --threads 4 --threading connection"
DEMO = {
    "oltp-softroce": (MACHINE, {
        False: (4, f"oltp --carriers tcp,rdma {SHOWN} --rounds 6 --seconds 4"),
        True: (2, f"oltp --carriers tcp,rdma {SHOWN} --rounds 3 --seconds 2")}),
    "oltp-native": (HERE, {
        False: (2, f"oltp --carriers tcp,shm {SHOWN} --rounds 6 --seconds 3"),
        True: (1, f"oltp --carriers tcp,shm {SHOWN} --rounds 5 --seconds 1")}),
}
PRESETS = {"bench": BENCH, "demo": DEMO}


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", default=os.environ.get("QUICK") == "1",
                        help="fewer rows and rounds (also: QUICK=1)")
    parser.add_argument("--preset", choices=PRESETS, default="bench", help="default: bench")
    parser.add_argument("--only", action="append", choices=BENCH,
                        help="this part alone; may be given several times")
    parser.add_argument("--build", type=Path, default=ROOT / "build",
                        help="build directory (default: build)")
    parser.add_argument("--out", type=Path, help="output directory (default: BUILD/PRESET)")
    options = parser.parse_args(words)
    options.build = options.build.resolve()
    options.out = (options.out or options.build / options.preset).resolve()
    return options


def in_the_machine(command, minutes, out, environment):
    """Runs a bench in the virtual machine, which begins with an empty folder each time: earlier
    results are carried in and all of them out."""
    guest = out.with_name(f"{out.name}.guest")
    script = (f'(cd {shlex.quote(str(ROOT))}; python3 -m integration.bench.smc_net {JOINED}); '
              f'[ ! -d {shlex.quote(str(out))} ] || cp -r {shlex.quote(str(out))} "$OUT/bench"; '
              f'exec {shlex.join(command)} --out "$OUT/bench"')
    try:
        return subprocess.run(
            [VIRTUAL_MACHINE, "--out", guest, "--timeout", str(60 * minutes + MACHINE_S), "--",
             "sh", "-c", script], env={**os.environ, **environment}, check=False).returncode
    finally:
        if (guest / "bench" / results.SETTINGS).exists():
            shutil.copytree(guest / "bench", out, dirs_exist_ok=True)


def main(words=None):
    processes.end_on_signals()
    options = parse(words)
    began = time.monotonic()
    data = options.out / "template"
    try:
        template.make(data, *(arguments.default("oltp", name) for name in ("--tables", "--table-size")))
    except processes.ProcessError as problem:
        sys.exit(f"bench: {problem}")
    environment = {oltp.TEMPLATE: str(data)}
    statuses = {}
    for name, (where, settings) in PRESETS[options.preset].items():
        if options.only and name not in options.only:
            continue
        minutes, words = settings[options.quick]
        out = options.out / f"{name}{'-quick' if options.quick else ''}"
        if options.preset == "demo":
            shutil.rmtree(out, ignore_errors=True)
        command = [str(options.build / "bin" / "ringroad"), "bench", *words.split(),
                   "--budget", str(minutes)]
        print(f"\n== {name}: {shlex.join(command)}", flush=True)
        if where == MACHINE:
            statuses[out] = in_the_machine(command, minutes, out, environment)
        else:
            statuses[out] = subprocess.run([*command, "--out", out], check=False,
                                           env={**os.environ, **environment}).returncode
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    print(f"\n{minutes}:{seconds:02d} minutes in all")
    for out, status in statuses.items():
        print(f"{out / 'report.md'}" + (f": FAILED, status {status}" if status else ""))
    return 1 if any(statuses.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
