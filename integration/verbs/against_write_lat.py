"""Inside the Soft-RoCE machine: what a small message over the verbs channel takes, beside raw verbs.

    python3 -m integration.verbs.against_write_lat PINGPONG ROUNDS

       verbs_pingpong  client 10.9.0.1 rxe0 ══ veth ══ rxe1 10.9.1.1  server    both poll,
       ib_write_lat    client 10.9.0.1 rxe0 ══ veth ══ rxe1 10.9.1.1  server    64 bytes

The exit status is 1 if a round trip of the channel takes more of these than one of ib_write_lat, by more
than 5 %:

  packets        what both devices sent, in the best of ROUNDS rounds, as a busy host lets packets be sent
                 again. A credit, or an acknowledgement, of its own shows here.
  system calls   of both ends, by strace: each doorbell is one with Soft-RoCE, and so is each arming of a
                 completion queue. An end whose peer gets no processor goes to sleep, which adds some: they are
                 counted again, in up to ROUNDS rounds, and the least of each length decides.

The time of a round, the median of half a round trip, is printed and decides nothing: the machine is
emulated, and what else its host does makes a round slower by as much as it likes.
"""
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from integration.lib import perftest

SIZE = 64
# So many that what a connection takes by itself is less than MORE of it.
ROUND_TRIPS = 1000
MORE = 0.05
# A round trip is two messages, and each is a packet and a doorbell.
LEAST = 1.9


def pingpong(program, round_trips, under):
    """The median half round trip in microseconds."""
    return float(subprocess.run([*under('both'), program, str(SIZE), str(round_trips), '1'], check=True,
                                timeout=120, stdout=subprocess.PIPE, text=True).stdout)


def write_lat(work, round_trips, under):
    """The median half round trip in microseconds."""
    def side(role, server=None):
        return perftest.Side('ib_write_lat', ['-s', SIZE, '-n', round_trips],
                             os.environ[f'RINGROAD_{role}_DEVICE'], 1, 18515, f'{work}/{role}', server,
                             under(role))
    server = side('SERVER')
    try:
        server.wait_until_it_listens()
        figures, _ = side('CLIENT', os.environ['RINGROAD_SERVER_ADDR']).finish(120)
        server.finish(20)
        return figures['median_us']
    finally:
        server.close()


def packets():
    """Packets that both devices have sent."""
    return sum(int(Path(f'/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts').read_text())
               for device in (os.environ['RINGROAD_SERVER_DEVICE'], os.environ['RINGROAD_CLIENT_DEVICE']))


def calls_counted(table):
    """All calls of one of strace's tables of calls and names: the last row is "CALLS total"."""
    words = table.read_text().splitlines()[-1].split()
    if len(words) != 2 or words[1] != 'total':
        raise RuntimeError(f'strace ended without a table: {table.read_text()}')
    return int(words[0])


class Program:
    """One of the two, `run(round_trips, under)` of it, and what its rounds took."""

    def __init__(self, name, run, work):
        self.name, self._run, self._work = name, run, Path(work)
        self.times, self.packets = [], []
        self._least_calls = [math.inf, math.inf]  # of ROUND_TRIPS, and of twice as many

    def round(self):
        before = packets()
        self.times.append(self._run(ROUND_TRIPS, lambda role: ()))
        self.packets.append((packets() - before) / ROUND_TRIPS)
        return f'{self.name} {self.times[-1]:.2f} us, {self.packets[-1]:.2f} packets'

    def system_calls(self):
        """Of a round trip, without those of a connection, as far as is known after one more count."""
        self._least_calls = [min(known, self._all_system_calls((1 + i) * ROUND_TRIPS))
                             for i, known in enumerate(self._least_calls)]
        few, more = self._least_calls
        return (more - few) / ROUND_TRIPS

    def _all_system_calls(self, round_trips):
        folder = Path(tempfile.mkdtemp(dir=self._work))
        count = ('strace', '-f', '-c', '-U', 'calls,name', '-o')
        self._run(round_trips, lambda role: (*count, str(folder / role)))
        return sum(calls_counted(table) for table in folder.iterdir())


def verdict(mine, theirs):
    if min(mine, theirs) < LEAST:
        return 'not counted'
    return 'ok' if mine <= (1 + MORE) * theirs else f'more than {MORE:.0%} above'


def main():
    if len(sys.argv) != 3 or 'RINGROAD_SERVER_ADDR' not in os.environ:
        sys.exit(__doc__)
    program, rounds = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as work:
        ours = Program('channel', lambda *how: pingpong(program, *how), work)
        raw = Program('ib_write_lat', lambda *how: write_lat(work, *how), work)
        for i in range(rounds):
            print(f'round {i + 1}, a round trip: {ours.round()}; {raw.round()}', flush=True)
        ratios = [a / b for a, b in zip(ours.times, raw.times)]
        print(f'time, ratio of the rounds: {statistics.median(ratios):.2f} '
              f'({min(ratios):.2f}..{max(ratios):.2f}), which decides nothing', flush=True)
        counts = {'packets': (min(ours.packets), min(raw.packets))}
        for _ in range(rounds):
            counts['system calls'] = ours.system_calls(), raw.system_calls()
            if verdict(*counts['system calls']) == 'ok':
                break
    verdicts = [verdict(*pair) for pair in counts.values()]
    for (what, (mine, theirs)), said in zip(counts.items(), verdicts):
        print(f'{what} of a round trip: {mine:.2f}, ib_write_lat {theirs:.2f}: {said}')
    return int(verdicts != ['ok'] * len(verdicts))


if __name__ == '__main__':
    sys.exit(main())
