"""What the tests of other Debian releases share: roots that are made once, and MySQL's data."""

import pytest

from integration.lib import mysql, processes, roots


@pytest.fixture(name="root", scope="session")
def fixture_root():
    """A function that makes the named root, or skips the test where the machine cannot."""
    def made(name):
        try:
            return roots.ensure(name)
        except roots.Unavailable as reason:
            pytest.skip(f"root {name}: {reason}")
    return made


@pytest.fixture(name="work", scope="session")
def fixture_work(root):
    root(mysql.ROOT)
    with processes.WorkDirectory("ringroad-mysql") as work:
        yield work


@pytest.fixture(name="prepared", scope="session")
def fixture_prepared(work):
    return mysql.prepare(work)
