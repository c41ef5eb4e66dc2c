"""The seams to Ringroad itself: where its build is, what preloads it, and what it says it did.

Nothing else in the integration programs knows the form of `ringroad ss --json` or of a policy.
"""

import json
import subprocess
from pathlib import Path

ON_CHANNEL = "ON_CHANNEL"
CLOSED = "CLOSED"
LOADED = "loaded"


class RingroadError(Exception):
    """The build is incomplete or the command failed; the message says what to do."""


def environment(library, policy):
    """The variables that put Ringroad, with this policy file, into a process; its warnings go to
    the process's stderr, as with `ringroad run`."""
    return {"LD_PRELOAD": str(library), "RINGROAD_POLICY": str(policy),
            "RINGROAD_LOG": "stderr", "RINGROAD_LOG_LEVEL": "warn"}


class Ringroad:
    """A build directory with lib/libringroad.so and bin/ringroad; or, with `command` alone, what
    that command reports."""

    def __init__(self, build=None, command=None):
        if command:
            self.command = command
            return
        self.library = Path(build).resolve() / "lib" / "libringroad.so"
        self.command = Path(build).resolve() / "bin" / "ringroad"
        for part in (self.library, self.command):
            if not part.exists():
                raise RingroadError(f"{part} is missing: build the project first (make), "
                                    f"or name its build directory with --build")

    def environment(self, policy):
        return environment(self.library, policy)

    def check_policy(self, policy):
        """Has the file checked by `ringroad policy check`; RingroadError with its words."""
        done = self._run("policy", "check", policy)
        if done.returncode != 0:
            raise RingroadError(f"policy {policy} is refused:\n{done.stdout}{done.stderr}")

    def snapshot(self):
        """What every Ringroad process of this host reports now; a Snapshot."""
        done = self._run("ss", "--json")
        if done.returncode != 0:
            raise RingroadError(f"ringroad ss --json ended with status {done.returncode}: "
                                f"{done.stderr.strip()}")
        return Snapshot.parse(done.stdout)

    def _run(self, *words):
        return subprocess.run([self.command, *words], capture_output=True, text=True)


class Snapshot:
    """One reading of `ringroad ss --json`. A field that is absent counts as empty or zero."""

    def __init__(self, processes):
        self._processes = processes

    @classmethod
    def parse(cls, text):
        try:
            listed = json.loads(text).get("processes") or []
        except (ValueError, AttributeError) as problem:
            raise RingroadError(f"ringroad ss --json gave no JSON object: {problem}") from None
        return cls({process.get("pid"): process for process in listed})

    @classmethod
    def empty(cls):
        return cls({})

    def knows(self, pid):
        return pid in self._processes

    def policy_problem(self, pid):
        """Why the process runs without its policy, or an empty string."""
        policy = self._processes.get(pid, {}).get("policy") or {}
        if policy.get("status", LOADED) == LOADED:
            return ""
        return f"{policy['status']}: {policy.get('detail', '')}"

    def streams(self, pid):
        """The open streams of a process, in short: a list of dicts."""
        return [{"local": stream.get("local", ""), "remote": stream.get("remote", ""),
                 "state": stream.get("state", ""), "carrier": stream.get("carrier", ""),
                 "device": stream.get("device") or "", "reason": stream.get("reason", ""),
                 "peer_reason": stream.get("peer_reason", "")}
                for stream in self._processes.get(pid, {}).get("streams") or []
                if stream.get("role") != "listen"]

    def totals(self, pid):
        """Bytes in both directions since the process began: {"tcp": n, "channel": n}."""
        result = {"tcp": 0, "channel": 0}
        for carrier, counts in (self._processes.get(pid, {}).get("totals") or {}).items():
            kind = "tcp" if carrier == "tcp" else "channel"
            result[kind] += counts.get("tx_bytes", 0) + counts.get("rx_bytes", 0)
        return result


def on_channel(streams, carrier):
    """How many of the streams are carried by `carrier` ("rdma" or "shm") now."""
    return sum(stream["state"] == ON_CHANNEL and stream["carrier"] == carrier
               for stream in streams)


def difference(after, before):
    """What `totals` grew by."""
    return {carrier: after[carrier] - before[carrier] for carrier in after}


def write_policy(path, name, subnets, ports, via, promote_after=1, device="", **keys):
    """Writes a policy file with one rule: these remote subnets and service ports go by `via`.

    `promote_after` is the number of messages that a stream stays on TCP, `device` the RDMA device
    if not the route's, `keys` further strings of the rule, such as wait="2s".
    """
    def strings(values):
        return "[" + ", ".join(json.dumps(str(value)) for value in values) + "]"
    Path(path).write_text(
        "version = 1\n"
        "\n"
        "[[rule]]\n"
        f"name = {json.dumps(name)}\n"
        f"subnet = {strings(subnets)}\n"
        f"port = {strings(ports)}\n"
        f"via = {json.dumps(via)}\n"
        + (f"device = {json.dumps(device)}\n" if device else "")
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()) +
        f"promote_after = {{ messages = {promote_after} }}\n")
