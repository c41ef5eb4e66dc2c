"""Programs that fork, stop, die or lose their device over RDMA, and two versions, on one host."""

import os

import pytest

from integration.versions import previous

from . import support
from .boots import GUEST, Boot, names_in

VERSIONS = GUEST / "versions.py"
ONE = GUEST / "one_host.py"  # the last: at its end a device is gone
LIMIT_S = 1000
CPUS = min(2, os.cpu_count() or 1)  # for 64 threads that are promoted within the policy's time
pytestmark = [pytest.mark.softroce, support.needs_mariadb]


@pytest.fixture(name="one_host", scope="module")
def fixture_one_host(tmp_path_factory):
    files = []
    if not previous.why_not():
        previous.build()
        files.append(VERSIONS)
    return Boot([*files, ONE], tmp_path_factory.mktemp("one") / "out", LIMIT_S, cpus=CPUS)


@pytest.mark.skipif(bool(previous.why_not()), reason=previous.why_not())
@pytest.mark.parametrize("name", names_in(VERSIONS))
def test_of_two_versions(one_host, name):
    one_host.check(name)


@pytest.mark.parametrize("name", names_in(ONE))
def test_on_one_host(one_host, name):
    one_host.check(name)
