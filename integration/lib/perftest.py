"""perftest's programs: raw verbs between two ends, and what they print.

Latencies are printed as halves of round trips, and a MB of theirs is 2^20 bytes.
"""

import ipaddress
import re
from pathlib import Path

from . import processes

SYSFS = "/sys/class/infiniband"
START_S = 20
COLUMNS = {"t_typical[usec]": "median_us", "t_avg[usec]": "mean_us",
           "99% percentile[usec]": "p99_us", "99.9% percentile[usec]": "p99.9_us",
           # perftest 4.5 of Debian 12 and 25.01 of Debian 13 write it so, of the same MB.
           "BW average[MB/sec]": "mib_per_s", "BW average[MiB/sec]": "mib_per_s",
           "MsgRate[Mpps]": "million_per_s"}


class Side:
    """One of perftest's programs, at the server's end or, with the server's address, at the
    client's. `words` are its options, and `under` are the words of a program that runs it."""

    def __init__(self, program, words, device, gid_index, port, log, server=None, under=()):
        self._child = processes.Child(
            [*under, program, "-F", "-d", device, "-x", gid_index, "-p", port, *words,
             *([server] if server else [])], log)
        self._port = port

    def wait_until_it_listens(self):
        processes.wait_until(self._listens, START_S, f"port {self._port}", self._child)

    def _listens(self):
        """Whether something does on this TCP port, by which perftest exchanges its parameters."""
        needle = f":{self._port:04X}"
        for table in ("tcp", "tcp6"):
            path = Path("/proc/net") / table
            if path.exists() and any(
                    fields[1].endswith(needle) and fields[3] == "0A"
                    for fields in map(str.split, path.read_text().splitlines()[1:])):
                return True
        return False

    def finish(self, limit_s):
        """Waits for the end; ({column: figure}, seconds of processor time). ProcessError with the
        end of what it has printed."""
        child = self._child
        status = child.finish(limit_s)
        text = child.log.read_text(errors="replace")
        figures = parse(text)
        if status != 0 or not figures:
            raise processes.ProcessError(
                f"{child.name} ended with status {status}{processes.tail(child.log)}")
        return figures, child.usage.ru_utime + child.usage.ru_stime

    def close(self):
        self._child.abandon()


def parse(text):
    """The figures of the (one) row that perftest prints; {} when there is none."""
    lines = text.splitlines()
    for titles, row in zip(lines, lines[1:]):
        if not titles.strip().startswith("#bytes"):
            continue
        names = re.split(r"\s{2,}|\s(?=#)|(?<=\])\s", titles.strip())
        values = row.split()
        if len(values) != len(names):
            return {}
        return {COLUMNS[name]: float(value) for name, value in zip(names, values)
                if name in COLUMNS}
    return {}


def gid(address, device="", sysfs=SYSFS):
    """(device, index) of the RoCEv2 GID of an IPv4 or IPv6 address; None when there is none."""
    for entry in sorted(Path(sysfs).glob(f"{device or '*'}/ports/1/gids/*"),
                        key=lambda path: (path.parts[-5], int(path.name))):
        kind = entry.parent.parent / "gid_attrs" / "types" / entry.name
        try:
            if _packed(entry.read_text().strip()) == _packed(address) and \
                    kind.read_text().strip() == "RoCE v2":
                return entry.parts[-5], int(entry.name)
        except (OSError, ValueError):
            continue  # an empty entry cannot be read
    return None


def _packed(address):
    parsed = ipaddress.ip_address(address)
    return (ipaddress.ip_address(f"::ffff:{parsed}") if parsed.version == 4 else parsed).packed
