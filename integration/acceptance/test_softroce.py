"""What must hold over RDMA: boots of the virtual machine, each with a file of tests inside.

Each test here stands for one of the tests that ran in there.
"""

import ast
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from integration.lib import mysql, roots
from integration.versions import previous

from . import guide as page
from . import support
from .test_galera import needs_galera

HERE = Path(__file__).parent
RUN = support.ROOT / "integration" / "softroce" / "run"
ONE, TWO = HERE / "guest" / "one_host.py", HERE / "guest" / "two_hosts.py"
PEER, GUIDE = HERE / "guest" / "peer.py", HERE / "guest" / "guide.py"
FAULTS, GALERA = HERE / "guest" / "faults.py", HERE / "guest" / "galera.py"
MYSQL = HERE / "guest" / "mysql.py"  # boots with GALERA
# Boot with ONE, before it: at the end of that a device is gone.
DOCTOR, PROGRAMS = HERE / "guest" / "doctor.py", HERE / "guest" / "programs.py"
VERSIONS = HERE / "guest" / "versions.py"
BENCH, NET = HERE / "guest" / "bench.py", HERE / "guest" / "bench_net.py"
# About three times what they take by themselves.
LIMIT_S = {ONE: 1200, GUIDE: 650, FAULTS: 500, GALERA: 1300}
PATIENCE = 4
pytestmark = [pytest.mark.softroce, support.needs_mariadb]


def names_in(path):
    return [node.name for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


class Boot:
    """The results of files of tests, by node."""

    def __init__(self, path, out, hosts=1, layout="pair", before=(), variables=None):
        support.prepared_data()
        files = " ".join(f"'{file}'" for file in (*before, path))
        command = (f"cd '{support.ROOT}' && exec /usr/bin/python3 -m pytest -v -p no:cacheprovider "
                   f"--basetemp=/dev/shm/pytest --junitxml=\"$OUT/results.xml\" {files}")
        done = subprocess.run(
            [RUN, "--hosts", str(hosts), "--layout", layout, "--out", out,
             "--timeout", str(LIMIT_S[path]), "--verbose", "--", "bash", "-c", command],
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


@pytest.fixture(name="one_host", scope="module")
def fixture_one_host(tmp_path_factory):
    before = [DOCTOR, PROGRAMS, BENCH, NET]
    if not previous.why_not():
        previous.build()
        before.append(VERSIONS)
    return Boot(ONE, tmp_path_factory.mktemp("one") / "out", before=before)


@pytest.fixture(name="two_hosts", scope="module")
def fixture_two_hosts(tmp_path_factory):
    for step in page.steps(page.PAGE.read_text()):
        if "build" in step.hosts:
            # The compiler cache may give objects of another directory: nothing in them names theirs.
            done = subprocess.run(step.command, shell=True, cwd=support.ROOT, text=True, check=False,
                                  env={**support.machine_environment(), "CCACHE_NOHASHDIR": "1"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert done.returncode == 0, done.stdout
    # The guide is last: it takes the machines' addresses away.
    return Boot(GUIDE, tmp_path_factory.mktemp("two") / "out", hosts=2, before=[PEER, TWO])


@pytest.fixture(name="faults", scope="module")
def fixture_faults(tmp_path_factory):
    return Boot(FAULTS, tmp_path_factory.mktemp("faults") / "out")


@pytest.fixture(name="no_mysql", scope="module")
def fixture_no_mysql():
    """Why there is no MySQL, or nothing."""
    try:
        roots.ensure(mysql.ROOT)
    except roots.Unavailable as reason:
        return f"root {mysql.ROOT}: {reason}"
    return ""


@pytest.fixture(name="groups", scope="module")
def fixture_groups(tmp_path_factory, no_mysql):
    work = tmp_path_factory.mktemp("groups")
    if no_mysql:
        return Boot(GALERA, work / "out")
    return Boot(GALERA, work / "out", before=[MYSQL],
                variables={"RINGROAD_TEST_MYSQL_DATA": str(mysql.prepare(work))})


@pytest.mark.parametrize("name", names_in(DOCTOR))
def test_of_the_doctor(one_host, name):
    one_host.check(name)


@pytest.mark.parametrize("name", names_in(PROGRAMS))
def test_of_programs(one_host, name):
    one_host.check(name)


@pytest.mark.parametrize("name", names_in(BENCH))
def test_of_the_bench(one_host, name):
    one_host.check(name)


@pytest.mark.parametrize("name", names_in(NET))
def test_of_the_bench_of_connections(one_host, name):
    one_host.check(name)


@pytest.mark.skipif(bool(previous.why_not()), reason=previous.why_not())
@pytest.mark.parametrize("name", names_in(VERSIONS))
def test_of_two_versions(one_host, name):
    one_host.check(name)


@pytest.mark.parametrize("name", names_in(ONE))
def test_on_one_host(one_host, name):
    one_host.check(name)


@pytest.mark.parametrize("name", names_in(TWO))
def test_on_two_hosts(two_hosts, name):
    two_hosts.check(name)


@pytest.mark.parametrize("name", names_in(PEER))
def test_of_a_peer_on_another_host(two_hosts, name):
    two_hosts.check(name)


@pytest.mark.parametrize("name", names_in(GUIDE))
def test_of_the_guide(two_hosts, name):
    two_hosts.check(name)


@pytest.mark.parametrize("name", names_in(FAULTS))
def test_with_faults(faults, name):
    faults.check(name)


@pytest.mark.parametrize("name", names_in(MYSQL))
def test_of_mysql(no_mysql, request, name):
    if no_mysql:
        pytest.skip(no_mysql)
    request.getfixturevalue("groups").check(name)


@needs_galera
@pytest.mark.parametrize("name", names_in(GALERA))
def test_three_galera_nodes(groups, name):
    groups.check(name)
