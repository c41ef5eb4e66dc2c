"""What a carrier needs of a host. These functions run there, called by carriers.py."""

import errno
import functools
import glob
import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
from pathlib import Path

from integration.lib import processes, rdma_counters

AF_SMC = 43
SMC_SOURCE = Path(__file__).parent / "smc_socket.c"
# What a server that is not there yet costs, and what one that hangs.
ECHO_S = 20
SBIN = ":/usr/sbin:/sbin"
ECHO_SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
peer, _ = listener.accept()
while True:
    data = peer.recv(4096)
    if not data: break
    peer.sendall(data)
"""
ECHO_CLIENT = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 15)
peer.settimeout(None)
for number in range(100):
    peer.sendall(b"x" * 64)
    left = 64
    while left:
        data = peer.recv(left)
        assert data, "end of file"
        left -= len(data)
print("echoed", flush=True)
import signal; signal.pause()  # the bench looks at the connection meanwhile
"""


def facts(role, address):
    """What the figures depend on at one end, as words; `address` is the other's."""
    route = subprocess.run(["ip", "-o", "route", "get", address], capture_output=True, text=True,
                           check=False)
    return {"kernel": platform.release(), "processors": os.cpu_count(),
            f"route_from_{role}": " ".join(route.stdout.split()),
            "rdma_devices": ", ".join(sorted(rdma_counters.read())) or "none"}


def missing_programs(packages):
    """Of {program: package}: the packages of the programs that are not here."""
    return sorted({package for program, package in packages.items()
                   if shutil.which(program, path=os.environ.get("PATH", "") + SBIN) is None})


@functools.cache
def ringroad_library(command):
    """(path, None) of the library that came with this `ringroad`, or (None, why not)."""
    try:
        done = subprocess.run([command, "version"], capture_output=True, text=True, check=False)
    except OSError as problem:
        return None, f"{command}: {problem.strerror}"
    found = re.search(r"^library: (/.*)$", done.stdout, re.MULTILINE)
    return (found[1], None) if found else (None, f"{command} version: {done.stdout.strip()}")


@functools.cache
def ringroad_build(command):
    """What identifies the library that this `ringroad` preloads, "" when there is none."""
    library, _ = ringroad_library(command)
    return hashlib.sha256(Path(library).read_bytes()).hexdigest()[:16] if library else ""


def verbs_obstacle(device=""):
    """Why no RDMA device (or not this one) can be used here; "" when one can."""
    states = {}
    for port in sorted(glob.glob("/sys/class/infiniband/*/ports/*/state")):
        name = port.split("/")[4]
        states.setdefault(name, []).append(Path(port).read_text(encoding="ascii").strip())
    if not states:
        return "/sys/class/infiniband has no device"
    wanted = {name: ports for name, ports in states.items() if not device or name == device}
    if not wanted:
        return f"there is no device {device}, only {', '.join(states)}"
    if not any("ACTIVE" in state for ports in wanted.values() for state in ports):
        return ", ".join(f"{name} is {' and '.join(ports)}" for name, ports in wanted.items())
    return ""


def rsockets_library(given=""):
    """The librspreload.so that is given, otherwise this host's own; "" where there is none."""
    if given:
        return given if os.path.isfile(given) else ""
    found = [path for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/*")
             for path in sorted(glob.glob(f"{folder}/rsocket/librspreload.so"))]
    return found[0] if found else ""


def smc_obstacle():
    """Why this host's kernel has no AF_SMC sockets; "" when it has."""
    try:
        socket.socket(AF_SMC, socket.SOCK_STREAM, 0).close()
        return ""
    except OSError as problem:
        first = problem
    if first.errno == errno.EAFNOSUPPORT:
        loaded = subprocess.run(["sh", "-c", f"PATH=$PATH{SBIN}; modprobe smc && modprobe smc_diag"],
                                capture_output=True, text=True, check=False)
        try:
            socket.socket(AF_SMC, socket.SOCK_STREAM, 0).close()
            return ""
        except OSError:
            said = " ".join(loaded.stderr.split())
            return f"socket(AF_SMC): {first.strerror}; modprobe smc: {said or 'no effect'}"
    return f"socket(AF_SMC): {first.strerror}"


def smc_preload(directory):
    """The library that makes a program's TCP sockets AF_SMC's, built here; (path, why not)."""
    library = Path(directory) / "smc_socket.so"
    try:
        done = subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SMC_SOURCE, "-ldl"],
                              capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "", "no C compiler for the library that makes sockets AF_SMC's"
    return (str(library), "") if done.returncode == 0 else ("", done.stderr.strip())


class EchoEnd:
    """A small program at one end, under a carrier: does the carrier do anything at all?"""

    def __init__(self, directory, role, address, port, environment):
        source = ECHO_SERVER if role == "server" else ECHO_CLIENT
        self._word = "listening" if role == "server" else "echoed"
        self._child = processes.Child(
            ["/usr/bin/python3", "-c", source, address, str(port)],
            Path(directory) / f"echo-{role}.log", environment)

    def trouble(self, limit_s=ECHO_S):
        """Waits for its word; why it did not come, or ""."""
        try:
            processes.wait_until(self._spoke, limit_s, self._word, self._child)
            return ""
        except processes.ProcessError as problem:
            return str(problem)

    def state(self):
        return processes.doing(self._child.pid)

    def _spoke(self):
        return self._word in self._child.log.read_text(errors="replace")

    def close(self):
        self._child.abandon()
