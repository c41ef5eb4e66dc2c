"""What `ringroad bench oltp` measures of which server."""

import pytest

from integration.bench import hosts, oltp, run

MARIADB = {"title": "MariaDB", "threadings": {"connection": [], "pool": []}}
MYSQL = {"title": "MySQL", "threadings": {"connection": []}}


def test_without_a_wish_each_threading_that_the_server_has_is_measured():
    assert oltp.threadings(None, MARIADB) == ["connection", "pool"]
    assert oltp.threadings(None, MYSQL) == ["connection"]
    assert oltp.threadings(["pool"], MARIADB) == ["pool"]


@pytest.mark.parametrize("wanted", [["pool"], ["connection", "pool"]])
def test_a_pool_that_the_server_has_not_is_refused(wanted):
    with pytest.raises(hosts.HostError, match="this MySQL has no pool"):
        oltp.threadings(wanted, MYSQL)


def test_a_quick_run_measures_no_pool():
    assert run.parse(oltp.Oltp, ["--quick"]).threading == ["connection"]
    assert run.parse(oltp.Oltp, ["--quick", "--threading", "pool"]).threading == ["pool"]


@pytest.mark.parametrize("server, programs", [
    ("mariadbd", {"mariadbd", "mariadb", "mariadb-install-db"}), ("mysqld", {"mysqld", "mysql"}),
    ("/opt/mysqld", set())])
def test_the_programs_of_the_server_that_is_asked_for_are_needed(server, programs):
    needed = oltp.Oltp.programs(run.parse(oltp.Oltp, ["--server", server]))
    assert set(needed["server"]) == programs | {"sysbench", "ip"}
    assert set(needed["client"]) == {"sysbench", "ip"}


def test_a_path_of_a_server_is_a_whole_one(capsys):
    with pytest.raises(SystemExit):
        run.parse(oltp.Oltp, ["--server", "bin/mysqld"])
    assert "bin/mysqld is neither a name nor a whole path" in capsys.readouterr().err
