"""What MySQL's tests share: a folder in memory, and a data directory that is initialised once."""

import pytest

from lib import mysql, processes, roots


@pytest.fixture(name="work", scope="session")
def fixture_work():
    try:
        roots.ensure(mysql.ROOT)
    except roots.Unavailable as reason:
        pytest.skip(str(reason))
    with processes.WorkDirectory("ringroad-mysql") as work:
        yield work


@pytest.fixture(name="prepared", scope="session")
def fixture_prepared(work):
    return mysql.prepare(work)
