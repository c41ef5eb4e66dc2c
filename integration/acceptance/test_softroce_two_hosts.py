"""MariaDB, the doctor, `ringroad bench accept` and the guide of docs/ over RDMA, from one host to another."""

import subprocess

import pytest

from . import guide as page
from . import support
from .boots import GUEST, Boot, names_in

PEER, TWO, ACCEPT = GUEST / "peer.py", GUEST / "two_hosts.py", GUEST / "accept.py"
GUIDE = GUEST / "guide.py"  # the last: it takes the machines' addresses away
LIMIT_S = 850
pytestmark = [pytest.mark.softroce, support.needs_mariadb]


@pytest.fixture(name="two_hosts", scope="module")
def fixture_two_hosts(tmp_path_factory):
    for step in page.all_steps():
        if "build" in step.hosts:
            # The compiler cache may give objects of another directory: nothing in them names theirs.
            done = subprocess.run(step.command, shell=True, cwd=support.ROOT, text=True, check=False,
                                  env={**support.machine_environment(), "CCACHE_NOHASHDIR": "1"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert done.returncode == 0, done.stdout
    return Boot([PEER, TWO, ACCEPT, GUIDE], tmp_path_factory.mktemp("two") / "out", LIMIT_S, hosts=2)


@pytest.mark.parametrize("name", names_in(TWO))
def test_on_two_hosts(two_hosts, name):
    two_hosts.check(name)


@pytest.mark.parametrize("name", names_in(PEER))
def test_of_a_peer_on_another_host(two_hosts, name):
    two_hosts.check(name)


@pytest.mark.parametrize("name", names_in(ACCEPT))
def test_of_the_acceptance(two_hosts, name):
    two_hosts.check(name)


@pytest.mark.parametrize("name", names_in(GUIDE))
def test_of_the_guide(two_hosts, name):
    two_hosts.check(name)
