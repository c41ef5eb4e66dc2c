"""Which server a program is, and one that a script executes."""

import pytest

from integration.lib import mariadb, processes, servers
from integration.lib.test_mariadb import MISSING

SAYS = {
    "mysqld  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)":
        ("mariadb", "MariaDB", "--thread-handling=pool-of-threads", mariadb.MariaDb),
    "/usr/sbin/mysqld  Ver 9.7.4 for Linux on x86_64 ((Debian))":
        ("mysql", "MySQL", None, servers.MySql),
    "/usr/sbin/mysqld  Ver 8.4.5-5 for Linux on x86_64 (Percona Server (GPL), Release 5)":
        ("mysql", "MySQL", "--thread-handling=pool-of-threads", servers.MySql),
    "postgres (PostgreSQL) 15.6": None,
}


def script(directory, text):
    path = directory / "server"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("said", [said for said, found in SAYS.items() if found])
def test_a_server_is_what_its_version_says(tmp_path, said):
    program = script(tmp_path, f"echo '{said}'")
    name, title, pool, kind = SAYS[said]
    told = servers.described(program)
    threadings = told.pop("threadings")
    assert told == {"name": name, "title": title, "version": said}
    assert threadings.get("pool") == (pool and [pool]) and "connection" in threadings
    made = servers.of(program).server("one", tmp_path, tmp_path, "127.0.0.1", 1)
    assert type(made) is kind


def test_mysqls_pool_is_a_plugin_that_it_can_load(tmp_path):
    program = script(tmp_path, """case "$*" in
        *--plugin-load-add=thread_pool.so*--help*) echo "  --thread-pool-size=#" ;;
        *) echo "mysqld  Ver 9.7.4 for Linux on x86_64" ;;
        esac""")
    assert servers.described(program)["threadings"]["pool"] == ["--plugin-load-add=thread_pool.so"]


@pytest.mark.parametrize("said", [said for said, found in SAYS.items() if not found])
def test_what_is_no_server_of_these_is_refused(tmp_path, said):
    with pytest.raises(processes.ProcessError, match="is neither MariaDB's server nor MySQL's"):
        servers.of(script(tmp_path, f"echo '{said}'"))


def test_a_program_that_is_not_there_or_fails_is_refused_with_its_words(tmp_path):
    with pytest.raises(processes.ProcessError, match="nowhere: No such file"):
        servers.of(f"{tmp_path}/nowhere")
    with pytest.raises(processes.ProcessError, match="status 3: no such root"):
        servers.of(script(tmp_path, "echo no such root >&2; exit 3"))


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {' '.join(MISSING)}")
def test_a_script_that_executes_a_server_is_one(tmp_path):
    product = servers.of(script(tmp_path, 'exec mariadbd "$@"'))
    product.install(tmp_path / "data")
    with product.server("one", tmp_path / "data", tmp_path, "127.0.0.1", 0) as server:
        pid_file = (server.directory / "pid").read_text().strip()
        assert (server.query("SELECT 1"), pid_file) == ([["1"]], str(server.pid))
