"""Programs, `ringroad doctor` and `ringroad bench` over RDMA, client and server on one host."""

import pytest

from . import support
from .boots import GUEST, Boot, names_in

DOCTOR, PROGRAMS = GUEST / "doctor.py", GUEST / "programs.py"
BENCH, NET, NAMESPACES = GUEST / "bench.py", GUEST / "bench_net.py", GUEST / "namespaces.py"
LIMIT_S = 1000
pytestmark = [pytest.mark.softroce, support.needs_mariadb]


@pytest.fixture(name="programs", scope="module")
def fixture_programs(tmp_path_factory):
    return Boot([DOCTOR, PROGRAMS, BENCH, NET, NAMESPACES], tmp_path_factory.mktemp("programs") / "out", LIMIT_S)


@pytest.mark.parametrize("name", names_in(DOCTOR))
def test_of_the_doctor(programs, name):
    programs.check(name)


@pytest.mark.parametrize("name", names_in(PROGRAMS))
def test_of_programs(programs, name):
    programs.check(name)


@pytest.mark.parametrize("name", names_in(BENCH))
def test_of_the_bench(programs, name):
    programs.check(name)


@pytest.mark.parametrize("name", names_in(NET))
def test_of_the_bench_of_connections(programs, name):
    programs.check(name)


@pytest.mark.parametrize("name", names_in(NAMESPACES))
def test_in_a_network_namespace(programs, name):
    programs.check(name)
