"""Hardware counters of RDMA devices, the proof of what crossed them.

They are read from /sys/class/infiniband/DEVICE/hw_counters and .../ports/PORT/hw_counters. Where
a driver shows none there, `rdma statistic` (netlink) is asked for the same counters.
"""

import json
import subprocess
import time
from pathlib import Path

from . import processes

SYSFS = "/sys/class/infiniband"
PACKETS = ("sent_pkts", "rcvd_pkts")
QUIET_LOOKS = 5


def read(sysfs=SYSFS):
    """All counters: {"device/port": {counter: value}}; "device" alone for those of no port."""
    found = {}
    for device in sorted(Path(sysfs).glob("*")):
        ports = sorted((device / "ports").glob("*")) if (device / "ports").is_dir() else []
        for holder, name in [(device, device.name),
                             *((port, f"{device.name}/{port.name}") for port in ports)]:
            counters = _read_directory(holder / "hw_counters")
            if counters:
                found[name] = counters
    return found or _from_tool()


def _read_directory(directory):
    counters = {}
    for entry in sorted(directory.glob("*")):
        try:
            counters[entry.name] = int(entry.read_text())
        except (OSError, ValueError):
            continue  # an attribute of the counters ("lifespan") or one the driver lacks
    counters.pop("lifespan", None)
    return counters


def _from_tool():
    try:
        done = subprocess.run(["rdma", "-j", "statistic", "show", "link"], capture_output=True,
                              text=True)
    except FileNotFoundError:
        return {}
    return parse_tool(done.stdout) if done.returncode == 0 else {}


def parse_tool(text):
    """The output of `rdma -j statistic show link`, in the form of `read`."""
    found = {}
    for link in json.loads(text or "[]"):
        name = f"{link['ifname']}/{link['port']}"
        found[name] = {key: value for key, value in link.items()
                       if key not in ("ifindex", "ifname", "port") and isinstance(value, int)}
    return found


def difference(after, before):
    """What each counter grew by; counters that did not move are left out."""
    grown = {}
    for device, counters in after.items():
        moved = {name: value - before.get(device, {}).get(name, 0)
                 for name, value in counters.items()
                 if value != before.get(device, {}).get(name, 0)}
        if moved:
            grown[device] = moved
    return grown


def packets(grown):
    """Packets sent and received, over all devices, in a `difference`."""
    return sum(counters.get(name, 0) for counters in grown.values() for name in PACKETS)


def idle_packets_per_s(seconds=1.0):
    """The rate of packets with nothing under way; without devices none."""
    before = read()
    if not before:
        return 0.0
    end = time.monotonic() + seconds
    processes.wait_until(lambda: time.monotonic() >= end, 2 * seconds, "idle counters")
    return packets(difference(read(), before)) / seconds


def read_when_quiet(timeout_s=5):
    """The counters once they have stood still for several looks, or as they are at the time-out.

    Connections that have just been closed still exchange their last packets. Without devices
    there is nothing to wait for.
    """
    state = {"last": read(), "still": 0}
    if not state["last"]:
        return {}

    def quiet():
        now = read()
        state["still"] = state["still"] + 1 if now == state["last"] else 0
        state["last"] = now
        return state["still"] >= QUIET_LOOKS
    try:
        processes.wait_until(quiet, timeout_s, "quiet RDMA counters")
    except processes.ProcessError:
        pass  # the caller compares the movement with what it allows
    return state["last"]
