"""Boots of the virtual machine, each with files of tests from guest/ inside.

A file test_softroce_*.py has one boot, as files are what pytest runs at once. Each test there stands for one
of the tests that ran in the machine.
"""

import ast
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from . import support

GUEST = Path(__file__).parent / "guest"
RUN = support.ROOT / "integration" / "softroce" / "run"
PATIENCE = 4
# Two machines at a time with one processor each take two thirds of the time of one after the other with two,
# as what polls in there has the emulator compute for nothing.
CPUS = 1


def names_in(path):
    return [node.name for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


class Boot:
    """The results of files of tests, by node. `limit_s`: more than twice what they take beside another."""

    def __init__(self, paths, out, limit_s, hosts=1, cpus=CPUS, variables=None):
        support.prepared_data()
        files = " ".join(f"'{path}'" for path in paths)
        command = (f"cd '{support.ROOT}' && exec /usr/bin/python3 -m pytest -v -p no:cacheprovider "
                   f"--basetemp=/dev/shm/pytest --junitxml=\"$OUT/results.xml\" {files}")
        done = subprocess.run(
            [RUN, "--cpus", str(cpus), "--hosts", str(hosts), "--out", out, "--timeout", str(limit_s),
             "--verbose", "--", "bash", "-c", command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**support.machine_environment(), "RINGROAD_TEST_PATIENCE": str(PATIENCE), **(variables or {})})
        self.output = done.stdout
        self.status = done.returncode
        self._results = [out / "results.xml"] if hosts == 1 else \
            [out / f"node{node}" / "results.xml" for node in range(1, hosts + 1)]

    def check(self, name):
        """Fails unless the test passed on every node, in all of its variants."""
        for path in self._results:
            assert path.exists(), f"no results (status {self.status}):\n{self.output}"
            cases = [case for case in ElementTree.parse(path).iter("testcase")
                     if case.get("name").partition("[")[0] == name]
            assert cases, f"{name} did not run:\n{self.output}"
            for case in cases:
                problems = [(part.tag, part.text or part.get("message")) for part in case
                            if part.tag in ("failure", "error", "skipped")]
                assert not problems, "\n".join(f"{tag} of {case.get('name')}:\n{text}"
                                               for tag, text in problems)
