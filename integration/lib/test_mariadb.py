"""A real throw-away server: prepared once, copied, asked, lost and stopped."""

import os
import shutil
import signal
import time

import pytest

from integration.lib import checks, mariadb, processes, sysbench, template

MISSING = [name for name in ("mariadbd", "mariadb", "mariadb-install-db", "sysbench")
           if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {' '.join(MISSING)}")
ROWS = 50


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return template.make(tmp_path_factory.mktemp("template") / "t", 1, ROWS)


@pytest.fixture
def server(prepared, tmp_path):
    with mariadb.MariaDb("one", prepared, tmp_path, "127.0.0.1", template.free_port()) as running:
        yield running


def test_a_template_is_made_once_and_again_when_its_contents_change(tmp_path):
    data = template.make(tmp_path / "t", 1, ROWS)
    made = (data / "ibdata1").stat().st_ino
    assert template.make(tmp_path / "t", 1, ROWS) == data
    assert (data / "ibdata1").stat().st_ino == made
    template.make(tmp_path / "t", 1, ROWS + 1)
    assert (data / "ibdata1").stat().st_ino != made
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


def test_servers_of_one_template_hold_the_same_until_one_is_written_to(prepared, server, tmp_path):
    with mariadb.MariaDb("two", prepared, tmp_path, "127.0.0.1", template.free_port()) as other:
        first = checks.checksums(server)
        assert list(first) == ["sbtest1"]
        assert checks.checksums(other) == first
        other.query("UPDATE sbtest.sbtest1 SET k = k + 1 WHERE id = 7")
        assert checks.checksums(other) != first


def test_a_query_returns_rows_and_an_error_is_raised(server):
    assert server.query("SELECT 1, 'two words' UNION SELECT 3, 'ERROR'") == \
        [["1", "two words"], ["3", "ERROR"]]
    assert server.query("SELECT 1 FROM DUAL WHERE 1 = 0") == []
    with pytest.raises(processes.ProcessError, match="ERROR 1146.*sbtest.nowhere"):
        server.query("SELECT * FROM sbtest.nowhere")
    assert server.query("SELECT 4") == [["4"]]


def test_status_counts_what_the_load_asked(server, tmp_path):
    before = server.status("Questions", "Bytes_sent")
    load = sysbench.Load("127.0.0.1", server.port, 1, ROWS)
    report = load.start("oltp_point_select", tmp_path / "out", 2, 1, events=200).finish()
    after = server.status("Questions", "Bytes_sent")
    assert (report["exit_status"], report["queries"], report["errors"]) == (0, 200, 0)
    assert after["Questions"] - before["Questions"] >= 200
    assert after["Bytes_sent"] - before["Bytes_sent"] > 200 * 100
    assert report["client_cpu_s"] > 0


def test_the_same_seed_on_one_thread_writes_the_same_tables(prepared, server, tmp_path):
    with mariadb.MariaDb("two", prepared, tmp_path, "127.0.0.1", template.free_port()) as other:
        before = checks.checksums(server)
        for each in (server, other):
            load = sysbench.Load("127.0.0.1", each.port, 1, ROWS)
            load.start("oltp_read_write", tmp_path / "out", 1, 5, events=20).finish()
        assert checks.checksums(server) == checks.checksums(other) != before


def test_a_server_that_dies_under_load_fails_the_run_and_later_queries(server, tmp_path):
    load = sysbench.Load("127.0.0.1", server.port, 1, ROWS)
    run = load.start("oltp_point_select", tmp_path / "out", 2, 1, seconds=30)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(processes.ProcessError, match=r"(?s)status 1.*FATAL"):
        run.finish()
    began = time.monotonic()
    with pytest.raises(processes.ProcessError, match="server one answers no more"):
        server.query("SELECT 1")
    assert time.monotonic() - began < mariadb.ANSWER_TIMEOUT_S / 2


def test_a_server_that_cannot_start_says_why(prepared, server, tmp_path):
    clash = mariadb.MariaDb("clash", prepared, tmp_path, "127.0.0.1", server.port)
    with pytest.raises(processes.ProcessError, match=r"(?s)clash to accept.*Address already"):
        with clash:
            pass


def test_stopping_is_clean_and_leaves_no_process(prepared, tmp_path):
    server = mariadb.MariaDb("one", prepared, tmp_path, "127.0.0.1", template.free_port())
    with server:
        pid = server.pid
    assert server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "Shutdown complete" in server.log.read_text()
