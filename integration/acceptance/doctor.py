"""`ringroad doctor` for the tests: its findings, and an answerer that lives as long as a test."""

import json
import os
import signal
import subprocess

from . import support

# The status by the worst finding.
STATUS = {"ok": 0, "unknown": 3, "warn": 4, "fail": 5}


def examine(host, policy, *words, prefix=()):
    """The findings of a run, by check; its status is the worst one's."""
    done = subprocess.run(
        [*prefix, host.tool.command, "doctor", "--json", "--policy", policy, *map(str, words)],
        capture_output=True, text=True, timeout=support.ANSWER_S, check=False,
        env=os.environ | {"RINGROAD_RUNTIME_DIR": str(host.runtime)})
    report = json.loads(done.stdout or "{}")
    assert report, done
    assert done.returncode == STATUS[report["worst"]], done
    assert "the check failed" not in done.stdout, done.stdout
    checks = {}
    for finding in report["findings"]:
        checks.setdefault(finding["check"], []).append(finding)
    return checks


def levels(findings):
    return {finding["level"] for finding in findings}


def evidence(findings):
    return " / ".join(finding["evidence"] for finding in findings)


class Answerer:
    """`ringroad doctor --answer`."""

    def __init__(self, host, policy, where, prefix=()):
        self._process = subprocess.Popen(
            [*prefix, host.tool.command, "doctor", "--policy", policy, "--answer", str(where)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"RINGROAD_RUNTIME_DIR": str(host.runtime)})
        self.pid = self._process.pid
        line = self._process.stdout.readline()
        if not line.startswith("answering at "):
            self._process.kill()
            raise AssertionError((line, self._process.communicate()))

    def stop(self, by=signal.SIGTERM):
        """Asks it to end; its exit status, and what it said of its peers."""
        self._process.send_signal(by)
        output, errors = self._process.communicate(timeout=support.ANSWER_S)
        assert errors == "", errors
        return self._process.returncode, output.splitlines()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
