"""What `ringroad bench accept` does on each of the hosts, called by accept.py through the agent there."""

import hashlib
import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from integration.bench import probe
from integration.lib import perftest, processes, ringroad, servers

NET, RDMA = Path("/sys/class/net"), Path("/sys/class/infiniband")
AUXILIARY = Path("/sys/bus/auxiliary/devices")
# Of a card's RDMA function, in the name of its auxiliary device.
FUNCTIONS = (".rdma.", ".roce.", ".iwarp.")
DOCTOR_S = 280
ANSWERS_S = 60
# A device goes once nobody has it open any more.
GOES_S = "20"
GIVES_BACK_S = 60
KEEPER = """
import sys
sys.path.insert(0, sys.argv[1])
from integration.bench import accept_ends
accept_ends.keep()
"""


def said(*words):
    """The output of a command; ProcessError with its words when it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise processes.ProcessError(f"{words[0]}: {problem.strerror}") from None
    if done.returncode != 0:
        raise processes.ProcessError(f"{' '.join(words)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


# ---- what there is

def versions(command, program):
    """What the hosts' figures depend on: {name: words}. `program` is the database's server, "" without one."""
    found = {"system": _system(), "kernel": platform.release(), "processors": str(os.cpu_count()),
             "ringroad": _or_problem(lambda: said(command, "version").splitlines()[0]),
             "library": probe.ringroad_build(command) or "none"}
    if program:
        found["database"] = _or_problem(lambda: servers.of(program).version)
    for device in sorted(RDMA.glob("*")):
        words = [f"{name} {_text(device / file)}" for name, file in
                 (("type", "hca_type"), ("board", "board_id"), ("firmware", "fw_ver"),
                  ("rate", "ports/1/rate"), ("port", "ports/1/state")) if _text(device / file)]
        found[f"device {device.name}"] = ", ".join(words) or "says nothing of itself"
    return found


def _system():
    text = _text(Path("/etc/os-release"))
    named = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE)
    return named[1] if named else platform.system()


def _text(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _or_problem(ask):
    try:
        return ask()
    except processes.ProcessError as problem:
        return f"none: {problem}"


# ---- the doctor

def policy(path, other, ports, device):
    """A policy of one rule for the other host; its path."""
    ringroad.write_policy(path, "accept", [f"{other}/{128 if ':' in other else 32}"], ports, "rdma", device=device)
    return path


def doctor(command, policy_path, *words):
    """What the doctor finds: its JSON object."""
    try:
        done = subprocess.run([command, "doctor", "--json", "--policy", policy_path, *words],
                              capture_output=True, text=True, check=False, timeout=DOCTOR_S)
    except OSError as problem:
        raise processes.ProcessError(f"{command}: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise processes.ProcessError(f"{command} doctor did not end within {DOCTOR_S} s") from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise processes.ProcessError(f"{command} doctor ended with status {done.returncode}: "
                                     f"{done.stderr.strip()}") from None


class Answerer:
    """`ringroad doctor --answer`, until it is closed."""

    def __init__(self, command, policy_path, where, log):
        self._child = processes.Child([command, "doctor", "--policy", policy_path, "--answer", where], log)
        processes.wait_until(lambda: "answering at" in self._child.log.read_text(errors="replace"), ANSWERS_S,
                             "the doctor to answer", self._child)

    def close(self):
        self._child.stop()


# ---- what may be taken away

def ssh_server(environment=None):
    """The numbers of both ends of the ssh connection by which this host was reached: (client, here), or None."""
    words = (os.environ if environment is None else environment).get("SSH_CONNECTION", "").split()
    return [words[0].partition("%")[0], words[2].partition("%")[0]] if len(words) == 4 else None


def device_of(address):
    """The network device that has the address; "" when none has."""
    for device in json.loads(said("ip", "-j", "addr", "show")):
        if any(one.get("local") == address for one in device.get("addr_info", ())):
            return device["ifname"]
    return ""


def device_to(address):
    """The network device by which an address is reached."""
    return json.loads(said("ip", "-j", "route", "get", address))[0].get("dev", "")


def has_a_queue(device):
    """Whether packets for a device that is down are dropped where its sender does not see it."""
    return json.loads(said("ip", "-j", "link", "show", "dev", device))[0].get("qdisc") != "noqueue"


def stands_on(device, lower):
    """Whether a device is the other one, or is made of it: a VLAN, a bond, a bridge."""
    return device == lower or any(stands_on(path.name.removeprefix("lower_"), lower)
                                  for path in (NET / device).glob("lower_*"))


def link_obstacle(address, remote, others):
    """Why the link of `address` cannot be set down without losing hold of a host; "" when it can.

    `remote`: this host is reached by ssh. `others` are the ssh_server() of hosts that it reaches by ssh.
    """
    device = device_of(address)
    if not device:
        return f"no network device has {address}"
    if any(RDMA.glob("*/parent")) and not has_a_queue(device):
        return (f"Soft-RoCE would send for ever by {device}, which has no queue: tc qdisc add dev {device} root "
                "pfifo")
    reached = ssh_server()
    if remote and not reached:
        return "ssh does not tell by which address this host is reached (SSH_CONNECTION)"
    control = [(reached[1], reached[0])] if reached else []
    for other in others:
        if not other:
            return "ssh does not tell by which address the other host is reached (SSH_CONNECTION)"
        control.append(tuple(other))
    for here, there in control:
        own = device_of(here)
        if not own:
            return f"the ssh connection comes from {here}, which this host does not have: its way is not known"
        for used in {own, device_to(there)}:
            if stands_on(used, device):
                on = "" if used == device else f", which stands on {device}"
                return (f"ssh goes by {used}{on}, the device that is measured: give the host another network, "
                        "and name its address in ssh = \"...\"")
    return ""


def link(address):
    """How to set the link of an address down and up; for Taken."""
    device = device_of(address)
    families = ("-4", "-6")
    return {"save": [["ip", "addr", "save", "dev", device],
                     *(["ip", family, "route", "save", "table", "all", "dev", device] for family in families)],
            "take": [["ip", "link", "set", "dev", device, "down"]],
            "give": [["ip", "link", "set", "dev", device, "up"]],
            # The kernel forgets routes, and IPv6's addresses, with the link. What is there is left alone.
            "restore": [["ip", "addr", "restore"], *(["ip", family, "route", "restore"] for family in families)]}


def removal(address, device="", sysfs=RDMA, auxiliary=AUXILIARY):
    """How to take the RDMA device of an address away, and give it back; for Taken. ProcessError where there
    is no way that leaves the network device."""
    found = perftest.gid(address, device, sysfs)
    if not found:
        raise processes.ProcessError(f"no RDMA device{f' {device}' if device else ''} has a RoCEv2 GID of {address}")
    name = found[0]
    network = _text(Path(sysfs) / name / "parent")
    if network:  # Soft-RoCE
        return {"take": [["timeout", GOES_S, "rdma", "link", "delete", name]],
                "give": [["rdma", "link", "add", name, "type", "rxe", "netdev", network]]}
    card = (Path(sysfs) / name / "device").resolve()
    for function in sorted(Path(auxiliary).glob("*")):
        driver = function / "driver"
        if card in function.resolve().parents and any(part in function.name for part in FUNCTIONS) \
                and driver.exists():
            write = [["sh", "-c", f"echo {function.name} >{driver.resolve()}/{what}"] for what in ("unbind", "bind")]
            return {"take": write[:1], "give": write[1:]}
    raise processes.ProcessError(f"{name}: its driver has no auxiliary device for RDMA alone, and without the "
                                 "whole card TCP would have no network either")


class Taken:
    """What is taken from this host, until it is given back: by `give_back`, when the agent ends or is killed,
    and after `limit_s` at the latest. A process of its own does that, which signals do not end."""

    def __init__(self, how, limit_s):
        self._keeper = subprocess.Popen(
            ["/usr/bin/python3", "-B", "-c", KEEPER, str(Path(__file__).parents[2])], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
        self._given = False
        self._keeper.stdin.write(json.dumps({**how, "limit_s": limit_s}) + "\n")
        self._keeper.stdin.flush()
        answer = self._answer()
        if answer != "taken":
            self.give_back()
            raise processes.ProcessError(answer)

    def _answer(self):
        if not select.select([self._keeper.stdout], [], [], GIVES_BACK_S)[0]:
            return "the process that gives back what was taken does not answer"
        return self._keeper.stdout.readline().strip() or "the process that gives back what was taken has ended"

    def give_back(self):
        if self._given:
            return
        self._given = True
        self._keeper.stdin.close()
        answer = self._answer()
        self._keeper.wait(GIVES_BACK_S)
        if answer != "given":
            raise processes.ProcessError(answer)

    close = give_back


def keep():
    """The process that a Taken has: it takes, waits for the end of its input, and gives back."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    how = json.loads(sys.stdin.readline())
    saved = [_done(words)[1] for words in how.get("save", ())]
    problem = _first_problem(how["take"])
    _tell(problem or "taken")
    if not problem:
        select.select([sys.stdin], [], [], how["limit_s"])
    problem = _first_problem(how["give"])
    for words, data in zip(how.get("restore", ()), saved):
        _done(words, data)
    _tell(problem or "given")


def _done(words, data=b""):
    """(what is wrong, the output) of a command. `data` comes from a file, in which `ip route restore` moves."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        try:
            done = subprocess.run(words, stdin=file, capture_output=True, check=False)
        except OSError as problem:
            return f"{words[0]}: {problem.strerror}", b""
    wrong = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
    return f"{' '.join(words)}: {wrong}" if done.returncode else "", done.stdout


def _first_problem(commands):
    return next(filter(None, [_done(words)[0] for words in commands]), "").replace("\n", " ")


def _tell(words):
    try:
        print(words, flush=True)
    except OSError:
        pass  # the agent was killed; what was taken is given back all the same


def touch(path):
    """Makes an empty file."""
    Path(path).touch()


# ---- a build in the place of another

class Rolling:
    """A copy of a build, in whose place another can be put as a package does: by renaming."""

    def __init__(self, directory, command):
        self._directory = Path(directory)
        for folder in ("bin", "lib"):
            (self._directory / folder).mkdir(parents=True, exist_ok=True)
        if os.statvfs(self._directory).f_flag & os.ST_NOEXEC:
            raise processes.ProcessError(f"{directory}: mounted with noexec: no library can be loaded from there")
        self.replace(command)

    def replace(self, command):
        """Puts the files of this `ringroad` there."""
        library, problem = probe.ringroad_library(command)
        if library is None:
            raise processes.ProcessError(problem)
        program = os.path.realpath(shutil.which(command) or command)
        for source, folder in ((program, "bin"), *((file, "lib") for file in
                                                   sorted(Path(library).parent.glob("libringroad*.so")))):
            place = self._directory / folder / Path(source).name
            new = place.with_name(f"{place.name}.new")
            shutil.copy2(source, new)
            new.rename(place)

    def build(self):
        """What identifies the library that is there now, as probe.ringroad_build() does."""
        return hashlib.sha256((self._directory / "lib" / "libringroad.so").read_bytes()).hexdigest()[:16]

    def command(self):
        return str(self._directory / "bin" / "ringroad")

    def remove(self):
        shutil.rmtree(self._directory, ignore_errors=True)

    close = remove
