"""What galera_latency and group_latency share: one load, under which a group's streams move in turns."""

import argparse
import subprocess

from integration.acceptance.test_sysbench import SEED, load_for

WORKLOAD = "oltp_update_index"  # each transaction is one statement and one commit


def parser(description):
    made = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=6)
    made.add_argument("--seconds", type=float, default=3, help="of each phase (default: 3)")
    made.add_argument("--threads", type=int, nargs="+", default=[1, 4, 16])
    return made


def alternate(host, written, members, threads, options):
    """Prints the table of `ringroad ab`, under a load of `written`; whether it could measure."""
    load = load_for(written).command(WORKLOAD, threads, SEED, more=["--report-interval=1"])
    print(f"\n{threads} threads, {WORKLOAD}", flush=True)
    done = subprocess.run(
        [host.tool.command, "ab", "--directory", host.runtime, *(str(member.pid) for member in members),
         "--period", f"{options.seconds:g}s", "--rounds", str(options.rounds), "--move", "10s",
         "--", *load], stdout=subprocess.PIPE, text=True, check=False)
    # What sysbench says each second is the load's; the tables are ours.
    print(done.stdout[done.stdout.find("ROUND"):] if "ROUND" in done.stdout else done.stdout)
    return done.returncode == 0


def tell(sums):
    print("The tables of the three nodes agree:",
          ", ".join(f"{table} {checksum:08x}" for table, checksum in sums.items()))
