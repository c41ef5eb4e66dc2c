"""What RDMA may do to a running load without an error of the program's."""

import pytest

from . import support
from .boots import GUEST, Boot, names_in

FAULTS = GUEST / "faults.py"
LIMIT_S = 500
pytestmark = [pytest.mark.softroce, support.needs_mariadb]


@pytest.fixture(name="faults", scope="module")
def fixture_faults(tmp_path_factory):
    return Boot([FAULTS], tmp_path_factory.mktemp("faults") / "out", LIMIT_S)


@pytest.mark.parametrize("name", names_in(FAULTS))
def test_with_faults(faults, name):
    faults.check(name)
