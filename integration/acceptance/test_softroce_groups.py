"""MySQL's group replication and Galera over RDMA."""

import pytest

from integration.lib import mysql, roots

from . import support
from .boots import GUEST, Boot, names_in
from .test_galera import needs_galera

MYSQL, GALERA = GUEST / "mysql.py", GUEST / "galera.py"
LIMIT_S = 1300
pytestmark = [pytest.mark.softroce, support.needs_mariadb]


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
        return Boot([GALERA], work / "out", LIMIT_S)
    return Boot([MYSQL, GALERA], work / "out", LIMIT_S,
                variables={"RINGROAD_TEST_MYSQL_DATA": str(mysql.prepare(work))})


@pytest.mark.parametrize("name", names_in(MYSQL))
def test_of_mysql(no_mysql, request, name):
    if no_mysql:
        pytest.skip(no_mysql)
    request.getfixturevalue("groups").check(name)


@needs_galera
@pytest.mark.parametrize("name", names_in(GALERA))
def test_three_galera_nodes(groups, name):
    groups.check(name)
