"""Containers as an engine makes them, but for their files: each has a network, processes and mounts of its own.

     container ── veth ──┐
     container ── veth ──┴ bridge        in a network namespace that stands for the host's

What they share is a rendezvous directory, where the test says so. `unshare` and `ip` make all of it, and it ends
with the containers.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

BRIDGE = "10.77.0.1"
SERVICE = "10.99.0.1"  # an address that the host translates
UNMAPPED_USER = 100_000
AS_ROOT = ["--user", "--setuid", "0", "--setgid", "0"]
KINDS = ("--net", "--mount", "--pid")


class Unavailable(Exception):
    """The machine lets us make no namespaces: a reason to skip, not a fault."""


class Namespaces:
    """The first process of a container, perhaps with users of its own that the host knows by other numbers.

    `kinds`: of which namespaces it has its own.
    """

    def __init__(self, unmapped=False, kinds=KINDS):
        self._kinds = kinds
        self._users = self._unshare = None
        prefix = []
        if unmapped:
            self._users = subprocess.Popen(["unshare", "--user", "sh", "-c", "echo up; exec sleep infinity"],
                                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._started(self._users)
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{self._users.pid}/{kind}").write_text(f"0 {UNMAPPED_USER} 65536", encoding="ascii")
            prefix = ["nsenter", "--target", str(self._users.pid), *AS_ROOT, "--"]
        # A child's mounts are its own. /dev/shm too, so that nothing is shared by the default runtime directory.
        script = "ip link set lo up && echo up && exec sleep infinity"
        words = []
        if "--mount" in kinds:
            script = f"mount -t proc proc /proc && mount -t tmpfs shm /dev/shm && {script}"
            words = ["--propagation", "private"]
        self._unshare = subprocess.Popen(
            [*prefix, "unshare", *kinds, *words, "--fork", "--kill-child", "sh", "-c", script],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._started(self._unshare)
        pid = self._unshare.pid
        self.pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])

    def _started(self, process):
        if process.stdout.readline() != "up\n":
            self.end()
            raise Unavailable("no namespaces of one's own here")

    def enter(self):
        """The words that run a program in there."""
        users = AS_ROOT if self._users else []
        return ["nsenter", "--target", str(self.pid), *users, *self._kinds, "--"]

    def run(self, *words):
        return subprocess.run([*self.enter(), *map(str, words)], check=True, capture_output=True, text=True).stdout

    def network(self, *words):
        """Runs a program of outside in its network, as the host's root: `ip` knows processes by our numbers."""
        subprocess.run(["nsenter", "--target", str(self.pid), "--net", "--", *map(str, words)], check=True,
                       capture_output=True, text=True)

    def end(self):
        for process in (self._unshare, self._users):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                process.stdout.close()


class Container(Namespaces):
    """One at `address` of the bridge's network, with a runtime directory of its own."""

    def __init__(self, network, name, directory, unmapped=False, kinds=KINDS):
        super().__init__(unmapped, kinds)
        self.user_outside = UNMAPPED_USER if unmapped else os.geteuid()
        self.name = name
        self.address6 = None
        self.address = network.add(self)
        self.directory = Path(directory) / name
        self.runtime = self.directory / "runtime"
        self.runtime.mkdir(parents=True)
        self.own(self.directory, self.runtime)

    def own(self, *paths):
        """Gives files to the container's root."""
        for path in paths:
            os.chown(path, self.user_outside, self.user_outside)

    def streams(self, command):
        """The streams of all processes there, as `ringroad ss` there tells."""
        said = self.run(command, "ss", "--json", "--directory", self.runtime)
        return [stream for process in json.loads(said)["processes"] for stream in process["streams"]]


class Network:
    """A bridge; containers are added to it. A context."""

    def __init__(self):
        missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
        if missing:
            raise Unavailable(f"not installed: {' '.join(missing)}")
        if os.geteuid() != 0:
            raise Unavailable("needs root, for namespaces")
        self._containers = []
        self.host = Namespaces()
        try:
            for words in (["link", "add", "bridge", "type", "bridge"], ["addr", "add", f"{BRIDGE}/24", "dev", "bridge"],
                          ["link", "set", "bridge", "up"]):
                self.host.network("ip", *words)
        except subprocess.CalledProcessError as problem:
            self.host.end()
            raise Unavailable(f"no bridge: {problem.stderr.strip()}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for container in self._containers:
            container.end()
        self.host.end()

    def add(self, container):
        self._containers.append(container)
        number = len(self._containers) + 1
        self.host.network("ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns",
                          container.pid)
        self.host.network("ip", "link", "set", f"veth{number}", "master", "bridge", "up")
        address = f"10.77.0.{number}"
        container.address6 = f"fd77::{number}"
        for words in (["addr", "add", f"{address}/24", "dev", "eth0"],
                      ["addr", "add", f"{container.address6}/64", "dev", "eth0", "nodad"], ["link", "set", "eth0", "up"],
                      ["route", "add", "default", "via", BRIDGE]):
            container.network("ip", *words)
        return address

    def translate(self, container, port):
        """Has the host send what goes to SERVICE to the container, as Kubernetes does for a service."""
        self.host.network("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.host.network("iptables", "-t", "nat", "-A", "PREROUTING", "-d", SERVICE, "-p", "tcp", "--dport", port,
                          "-j", "DNAT", "--to-destination", f"{container.address}:{port}")
