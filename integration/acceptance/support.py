"""What the tests of this folder share: the build under test, preloaded processes, their reports."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from integration.lib import mariadb, processes, ringroad, template
from integration.lib.template import free_port

ROOT = Path(__file__).resolve().parents[2]
# Elsewhere than in build/ only while a change is tried out.
BUILD = Path(os.environ.get("RINGROAD_ACCEPTANCE_BUILD") or ROOT / "build")
TABLES = 2
TABLE_SIZE = 10000
ANSWER_S = 60
# What takes too long on emulated machines is run, too.
ALL = os.environ.get("RINGROAD_ACCEPTANCE_ALL", "") not in ("", "0")
# A full backlog would drop connections, which the kernel tries again after seconds. A thread that
# is kept for the next client would keep the descriptor that it sleeps on, too. A client that waits
# for its channel in connect() is not one that is gone.
FOR_HUNDREDS = ("--max-connections=600", "--back-log=600", "--thread-cache-size=0",
                "--connect-timeout=60")
MISSING = [name for name in ("mariadbd", "mariadb", "mariadb-install-db", "sysbench")
           if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
needs_mariadb = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {' '.join(MISSING)}")


def prepared_data():
    """The data directory that servers are started on copies of; made once for all runs."""
    named = os.environ.get("RINGROAD_ACCEPTANCE_TEMPLATE")
    return Path(named) if named else template.make(ROOT / "build" / "acceptance" / "template",
                                                   TABLES, TABLE_SIZE)


class Host:
    """A runtime directory of its own, so that `ss` shows this test's processes and no others."""

    def __init__(self, directory, build=BUILD):
        self.directory = Path(directory)
        self.runtime = self.directory / "runtime"
        self.runtime.mkdir()
        self.tool = ringroad.Ringroad(build)

    def policy(self, name, ports, via="shm", subnet="127.0.0.0/8", limits=None, **keys):
        """Writes a policy of one rule; `keys` are further TOML values, such as wait='"500ms"', and
        `limits` those that stand above the rule."""
        path = self.directory / f"{name}.toml"
        rule = {"name": f'"{name}"', "subnet": json.dumps(subnet), "port": json.dumps(list(ports)),
                "via": f'"{via}"', **keys}
        path.write_text("version = 1\n"
                        + "".join(f"{key} = {value}\n" for key, value in (limits or {}).items())
                        + "\n[[rule]]\n"
                        + "".join(f"{key} = {value}\n" for key, value in rule.items()))
        self.tool.check_policy(path)
        return path

    def preload(self, policy, log="off", level="warn", library=None):
        """The environment that puts the library, with this policy, into a process."""
        return {"LD_PRELOAD": str(library or self.tool.library), "RINGROAD_POLICY": str(policy),
                "RINGROAD_LOG": str(log), "RINGROAD_LOG_LEVEL": level,
                "RINGROAD_RUNTIME_DIR": str(self.runtime)}

    def ss(self, pid):
        """What `ringroad ss --json` says about a process: its object, or None."""
        done = subprocess.run([self.tool.command, "ss", "--json", "--directory", self.runtime],
                              capture_output=True, text=True, check=True)
        return next((process for process in json.loads(done.stdout)["processes"]
                     if process["pid"] == pid), None)

    def file_of(self, pid):
        """The statistics file of a process of this pid namespace, which need not be the initial one."""
        inside = self.runtime / f"{pid}-{os.stat('/proc/self/ns/pid').st_ino}"
        return inside if inside.exists() else self.runtime / str(pid)

    def streams(self, pid):
        return (self.ss(pid) or {}).get("streams", [])

    def on_channel(self, pid):
        """The process's streams that a channel carries now."""
        return [stream for stream in self.streams(pid)
                if stream["state"] == "ON_CHANNEL" and stream["carrier"] in ("shm", "rdma")]

    def wait_for_channels(self, pid, count, timeout_s=60):
        """Waits until so many of the process's streams are on a channel; else says why not."""
        try:
            wait_for(lambda: len(self.on_channel(pid)) == count, f"{count} streams on a channel",
                     timeout_s)
        except processes.ProcessError as problem:
            refused = (self.ss(pid) or {}).get("promotions_refused")
            states = Counter((stream["state"], stream["reason"], stream["peer_reason"])
                             for stream in self.streams(pid))
            raise processes.ProcessError(f"{problem}: {dict(states)}, refused {refused}") from None

    def server(self, name, prepared, preload=None, address="127.0.0.1", native_aio=True,
               options=(), program=mariadb.PROGRAM):
        """A MariaDB server for hundreds of clients that connect at once."""
        return mariadb.MariaDb(name, prepared, self.directory, address, free_port(address),
                               preload, native_aio, (*FOR_HUNDREDS, *options),
                               processes.patient(mariadb.START_TIMEOUT_S), program)


def machine_environment():
    """This one without what would preload or redirect; the virtual machine sets its own."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith("RINGROAD_")
            or name.startswith(("RINGROAD_ACCEPTANCE_", "RINGROAD_KERNEL_", "RINGROAD_TEST_",
                                "RINGROAD_ROOTS"))}


def other_build(folder):
    """The command of another build: this one with some bytes at the end of its library."""
    for name in ("bin", "lib"):
        (folder / name).mkdir(parents=True)
    shutil.copy2(BUILD / "bin" / "ringroad", folder / "bin")
    for name in ("libringroad.so", "libringroad-verbs.so"):
        shutil.copy2(BUILD / "lib" / name, folder / "lib")
    with open(folder / "lib" / "libringroad.so", "ab") as library:
        library.write(b"another")
    return folder / "bin" / "ringroad"


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def established(pid):
    """How many TCP connections of a process the kernel shows as established."""
    done = subprocess.run(["ss", "-Htnp", "state", "established"], capture_output=True, text=True,
                          check=True)
    return len(re.findall(rf"pid={pid},", done.stdout))


def stop(pid):
    """Stops a process, and waits until each of its threads stands still."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_for(lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
                         for task in tasks.iterdir()), f"process {pid} to stand still")


class Talker:
    """talker.py in a process: echoes or asks, and does one thing for each line it is told. Or
    another `program` of this folder that is used like that."""

    def __init__(self, *words, preload=None, prefix=(), program="talker.py"):
        environment = {name: value for name, value in os.environ.items()
                       if name != "LD_PRELOAD"} | (preload or {})
        # A prefix is a program that execs; it must not be preloaded itself to count for nothing.
        command = ["/usr/bin/python3", "-I", Path(__file__).parent / program,
                   *map(str, words)]
        if prefix:
            settings = [f"{name}={value}" for name, value in (preload or {}).items()]
            command = [*prefix, "env", *settings, *command]
            environment = {name: value for name, value in environment.items()
                           if name not in (preload or {})}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True, env=environment)
        self.pid = self._process.pid
        self.errors = ""

    def line(self):
        """The next line that it says."""
        line = self._process.stdout.readline()
        if not line:
            self.errors += self._process.stderr.read()
            raise processes.ProcessError(f"talker ended: {self.errors}")
        return line.rstrip("\n")

    def tell(self, text):
        """Has it do something, and returns what it says to that."""
        self.write(text)
        return self.line()

    def write(self, text):
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def finish(self):
        """Closes its instructions; its exit status."""
        self._process.stdin.close()
        self._process.stdin = None
        output, errors = self._process.communicate(timeout=ANSWER_S)
        self.errors += errors
        assert output == "", output
        return self._process.returncode

    def kill(self):
        self._process.kill()
        self._process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self.kill()


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(condition, what, timeout_s=30):
    processes.wait_until(condition, processes.patient(timeout_s), what)
