"""The hosts of a bench: this one, or others by ssh. On each there is an agent (agent.py):

       this process ── pipe ────▶ python3, agent        the host itself
       this process ── ssh ─────▶ python3, agent        ssh = "root@db1" in the inventory
       this process ── nsenter ─▶ python3, agent        a network namespace of this host (--netns)

All are started in the same way and are sent the same packages, so a bench does not know which of
them it has. The agent's objects are used as if they were here (Remote).
"""

import io
import ipaddress
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from integration.lib import bridge, processes

PACKAGES = Path(__file__).absolute().parent.parent
SENT = ("bench", "lib")
PYTHON = ("/usr/bin/python3", "-B", "-c")
# Unpacks what is sent into a folder in memory, from where the agent then runs.
BOOT = """
import io, os, sys, tempfile, zipfile
work = tempfile.mkdtemp(prefix="ringroad-bench.", dir="/dev/shm" if os.access("/dev/shm", 2) else None)
line = b""
while not line.endswith(b"\\n"): line += os.read(0, 1)
data = b""
while len(data) < int(line): data += os.read(0, int(line) - len(data))
zipfile.ZipFile(io.BytesIO(data)).extractall(work + "/packages")
sys.path.insert(0, work + "/packages")
from integration.bench import agent
agent.main(work)
"""
START_S = 60
ANSWER_S = 120
# To let go of everything; an agent that gave no answer is not waited for so long.
END_S, END_SILENT_S = 60, 5
LOCAL = ipaddress.ip_address("127.0.0.1")


class HostError(Exception):
    """A host cannot be reached, or what was to be done there failed; `kind` is the type's name."""

    def __init__(self, message, kind="HostError"):
        super().__init__(message)
        self.kind = kind


class Silent(HostError):
    """A host gave no answer in time. Its agent is of no use any more: restart it."""


class Unreachable(HostError):
    """There is no agent on a host: nothing was begun there."""


class Remote:
    """An object of the agent's: its methods are called there, with arguments that JSON can carry.
    `limit_s=` is for the call itself."""

    def __init__(self, host, number):
        self._host = host
        self._number = number

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*words, limit_s=ANSWER_S, **named):
            return self._host.ask({"object": self._number, "call": name, "words": words,
                                   "named": named}, limit_s)["value"]
        return call


class Host:
    """One host with its agent; a context. `prefix` is what reaches it: nothing, or the words before one that a
    shell there gets."""

    def __init__(self, name, prefix=()):
        self.name = name
        self._prefix = list(prefix)
        self._agent = None
        self._unread = b""
        self._is_silent = False
        self.work = None

    @property
    def is_remote(self):
        return bool(self._prefix)

    def start(self):
        boot = [*PYTHON, BOOT]
        # ssh joins its words and gives them to a shell.
        command = [*self._prefix, shlex.join(boot)] if self._prefix else boot
        self._unread, self._is_silent = b"", False
        self._agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       start_new_session=True)
        try:
            packed = _packed()
            self._agent.stdin.write(b"%d\n" % len(packed) + packed)
            self._agent.stdin.flush()
            self.work = self.call("integration.bench.agent:work", limit_s=processes.patient(START_S))
        except (OSError, HostError) as problem:
            self.end()
            raise Unreachable(f"{self.name}: no agent there ({problem}); tried: "
                            f"{shlex.join(command[:-1])}") from None

    def call(self, function, *words, limit_s=ANSWER_S, **named):
        """Calls a function there, "module:name"."""
        return self.ask({"function": function, "words": words, "named": named}, limit_s)["value"]

    def make(self, kind, *words, limit_s=ANSWER_S, **named):
        """Makes an object there, "module:Class"; a Remote."""
        return Remote(self, self.ask({"make": kind, "words": words, "named": named},
                                     limit_s)["object"])

    def ask(self, request, limit_s):
        try:
            self._agent.stdin.write(json.dumps(request, default=str).encode() + b"\n")
            self._agent.stdin.flush()
        except OSError:
            raise Silent(f"{self.name}: the agent has gone") from None
        answer = json.loads(self._line(time.monotonic() + limit_s, limit_s))
        if "problem" in answer:
            raise HostError(answer["problem"], answer["kind"])
        return answer

    def _line(self, deadline, limit_s):
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._agent.stdout], [], [], left)[0]:
                self._is_silent = True
                raise Silent(f"{self.name}: no answer within {limit_s:g} s")
            received = os.read(self._agent.stdout.fileno(), 1 << 16)
            if not received:
                raise Silent(f"{self.name}: the agent has gone")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def end(self):
        """Ends the agent, which ends what it has started."""
        if self._agent is None:
            return
        agent, self._agent = self._agent, None
        try:
            agent.stdin.close()
        except OSError:
            pass
        try:
            agent.wait(END_SILENT_S if self._is_silent else END_S)
        except subprocess.TimeoutExpired:
            # With what it has started here; elsewhere it does that itself, once it sees its input end.
            os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
            if not self._prefix and self.work:
                shutil.rmtree(self.work, ignore_errors=True)
        agent.stdout.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.end()


def _packed():
    """This project's packages, as a zip file."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(PACKAGES / "__init__.py", "integration/__init__.py")
        for name in SENT:
            for path in sorted((PACKAGES / name).iterdir()):
                if path.suffix in (".py", ".lua", ".c") and not path.name.startswith("test_"):
                    packed.write(path, f"integration/{name}/{path.name}")
    return data.getvalue()


# ---- which hosts

class InventoryError(Exception):
    """The inventory is not what it has to be; the message says where."""


@dataclass
class End:
    """One end of the connections: a host, its address there and its RDMA device, if named.
    `ringroad` is the command there."""

    host: Host
    address: str
    ringroad: str
    device: str = ""


@dataclass
class Place:
    """Where a bench runs; a context that starts the agents and ends them."""

    server: End
    client: End
    one_host: bool
    name: str
    # The rendezvous directory, where the ends have networks of their own; the file `key` in it is for both.
    rendezvous: str = ""
    # A second librspreload.so, at the same path of each host.
    rsockets: str = ""

    @property
    def ends(self):
        return {"server": self.server, "client": self.client}

    def facts(self, function):
        """What `function` tells of each end, given its role and the other's address: {name: words}.
        What is the same at both is told once."""
        found = {}
        for role, end in self.ends.items():
            other = self.ends["server" if role == "client" else "client"]
            for name, value in end.host.call(function, role, other.address).items():
                name = name.replace("_", " ")
                if found.get(name) != value:
                    found[name if name not in found else f"{name}, {role}"] = value
        return found

    def __enter__(self):
        try:
            for end in self.ends.values():
                end.host.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for end in self.ends.values():
            end.host.end()


def here(ringroad, environment=None):
    """Both ends on this host: over loopback, or where integration/softroce says."""
    environment = os.environ if environment is None else environment
    server = environment.get("RINGROAD_SERVER_ADDR") or str(LOCAL)
    client = environment.get("RINGROAD_CLIENT_ADDR") or server
    name = "soft-roce" if environment.get("RINGROAD_SOFTROCE") else "this host"
    return Place(End(Host("server"), server, ringroad,
                     environment.get("RINGROAD_SERVER_DEVICE", "")),
                 End(Host("client"), client, ringroad,
                     environment.get("RINGROAD_CLIENT_DEVICE", "")),
                 True, name)


class Namespaces(Place):
    """Two network namespaces of this host, joined by a bridge, as two containers have them; everything else they
    share. Ringroad's shared memory takes a rendezvous directory and a key there."""

    def __init__(self, ringroad):
        super().__init__(End(Host("server"), "", ringroad), End(Host("client"), "", ringroad), True,
                         "two network namespaces")
        self._network = None

    def __enter__(self):
        try:
            self._network = bridge.Network()
        except bridge.Unavailable as problem:
            raise HostError(f"--netns: {problem}") from None
        try:
            # Where the agents' folders are: a script may start a server that has other folders than this host, but
            # the same memory. Its name is part of a Unix socket's.
            self.rendezvous = tempfile.mkdtemp(
                prefix="rr-bench-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
            key = Path(self.rendezvous) / "key"
            key.touch(0o600)
            key.write_bytes(os.urandom(32).hex().encode())
            for end in self.ends.values():
                namespace = bridge.Namespaces(kinds=("--net",))
                end.address = self._network.add(namespace)
                end.host = Host(end.host.name, (*namespace.enter(), "sh", "-c"))
            return super().__enter__()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        try:
            super().__exit__()
        finally:
            self._network.__exit__()
            shutil.rmtree(self.rendezvous, ignore_errors=True)


KEYS = {"ssh", "ssh_options", "address", "device", "ringroad"}


class _Inventory:
    """The text of an inventory, for errors that say where in it they are and what mends them."""

    def __init__(self, path):
        self._path = path
        self._lines = []

    def read(self):
        try:
            text = Path(self._path).read_text(encoding="utf-8")
        except OSError as problem:
            raise InventoryError(f"{self._path}: {problem.strerror}: name a file that there is") from None
        except UnicodeDecodeError:
            raise InventoryError(f"{self._path}: is no text in UTF-8: name an inventory") from None
        self._lines = text.splitlines()
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as problem:
            # Its words end with the line, or with "at end of document".
            at = re.search(r"at line (\d+)", str(problem))
            raise self._error(int(at[1]) if at else len(self._lines),
                              f"{problem}: write it as TOML has it, KEY = \"VALUE\"") from None

    def error(self, problem, table="", key=""):
        """The InventoryError at the table, or at its key."""
        return self._error(self._line(table, key), problem)

    def _error(self, line, problem):
        return InventoryError(f"{self._path}:{max(1, line)}: {problem}")

    def _line(self, table, key):
        """The number of the key's line, or of the table's without one; the last where neither is."""
        begin, found = len(self._lines), 0
        if not table:
            return begin
        for number, line in enumerate(self._lines, 1):
            if re.match(rf"\s*(\[\s*)?{re.escape(table)}\b", line) and not found:
                begin = found = number
            elif found and re.match(r"\s*\[", line):
                break
            elif found and key and re.match(rf"\s*[\"']?{re.escape(key)}\b", line):
                return number
        return begin


def from_inventory(path, ringroad, two_hosts=False):
    """The Place that a file describes; see `ringroad bench oltp --help`. With `two_hosts` one will not do."""
    inventory = _Inventory(path)
    read = inventory.read()
    unknown = sorted(set(read) - {"server", "client"})
    if unknown:
        raise inventory.error(f"there is no [{unknown[0]}], only [server] and [client]: rename it", unknown[0])
    ends = {name: _end(inventory, name, read.get(name), ringroad) for name in ("server", "client")}
    one_host = read["server"].get("ssh") == read["client"].get("ssh")
    if one_host and two_hosts:
        raise inventory.error("both ends are on one host: name another one with ssh = \"...\"", "client", "ssh")
    return Place(ends["server"], ends["client"], one_host, str(path))


def _end(inventory, name, table, ringroad):
    if not isinstance(table, dict):
        raise inventory.error(f"it has no [{name}]: add one, with an address")
    for key, value in table.items():
        if key not in KEYS:
            raise inventory.error(f"[{name}] {key}: there is no such key; there are "
                                  f"{', '.join(sorted(KEYS))}: rename or remove it", name, key)
        wanted = list if key == "ssh_options" else str
        if not isinstance(value, wanted) or wanted is list and not all(isinstance(word, str) for word in value):
            raise inventory.error(f"[{name}] {key}: it has to be a "
                                  f"{'list of strings' if wanted is list else 'string'}", name, key)
    try:
        address = str(ipaddress.ip_address(table["address"]))
    except KeyError:
        raise inventory.error(f"[{name}] has no address: add address = \"...\", the one that is measured",
                              name) from None
    except ValueError:
        raise inventory.error(f"[{name}] address: {table['address']} is not one: write a number, such as "
                              "10.9.1.1, no name", name, "address") from None
    prefix, command = (), ringroad
    if table.get("ssh"):
        prefix = ("ssh", "-o", "BatchMode=yes", *table.get("ssh_options", ()), table["ssh"], "--")
        command = "ringroad"
    return End(Host(f"{name} ({table.get('ssh', 'this host')})", prefix), address,
               table.get("ringroad", command), table.get("device", ""))
