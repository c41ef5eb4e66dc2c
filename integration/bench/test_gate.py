"""The gate with a real sysbench and a real server: what it holds up and what it leaves alone."""

import os
import shutil

import pytest

from integration.bench import gate
from integration.lib import checks, mariadb, processes, sysbench, template

MISSING = [name for name in ("mariadbd", "mariadb", "mariadb-install-db", "sysbench")
           if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {' '.join(MISSING)}")
ROWS = 50
# What the counters' own reading adds to them.
OWN_QUESTIONS = 4


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return template.make(tmp_path_factory.mktemp("template") / "t", 1, ROWS)


@pytest.fixture
def server(prepared, tmp_path):
    with mariadb.MariaDb("one", prepared, tmp_path, "127.0.0.1", template.free_port()) as running:
        yield running


def gated(server, tmp_path, workload, threads, events, at_gate=lambda: None):
    """A run whose gate is closed after the connections and opened at once: (report, statements)."""
    load = sysbench.Load("127.0.0.1", server.port, 1, ROWS)
    with gate.Gate(tmp_path, workload, threads) as barrier:
        running = load.launch(gate.SCRIPT, tmp_path / "out", threads, 5, events=events,
                              preload=barrier.environment)
        barrier.wait_for_connections(running.child)
        statements = barrier.close(running.child)
        at_gate()
        barrier.open()
        running.wait_until_started()
        report = running.finish()
    assert not barrier.directory.exists()
    return report, statements


def test_nothing_moves_at_the_closed_gate_and_the_window_has_all_transactions(server, tmp_path):
    at_gate = []

    def look():
        at_gate.append(server.status("Questions")["Questions"])
        at_gate.append(server.status("Questions")["Questions"])
    report, statements = gated(server, tmp_path, "oltp_point_select", 3, 300, look)
    after = server.status("Questions")["Questions"]
    assert statements >= 3
    assert at_gate[1] - at_gate[0] <= OWN_QUESTIONS
    assert (report["exit_status"], report["transactions"], report["errors"]) == (0, 300, 0)
    assert report["queries"] - statements == 300
    assert after - at_gate[1] >= 300


def test_the_workload_behind_the_gate_is_that_of_its_seed(prepared, server, tmp_path):
    with mariadb.MariaDb("two", prepared, tmp_path, "127.0.0.1", template.free_port()) as other:
        before = checks.checksums(server)
        gated(server, tmp_path, "oltp_read_write", 1, 20)
        sysbench.Load("127.0.0.1", other.port, 1, ROWS).start(
            "oltp_read_write", tmp_path / "out", 1, 5, events=20).finish()
        assert checks.checksums(server) == checks.checksums(other) != before


def test_a_load_of_no_fixed_length_ends_once_the_file_is_there(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OLTP_END", str(tmp_path / "end"))
    load = sysbench.Load("127.0.0.1", server.port, 1, ROWS)
    with gate.Gate(tmp_path, "oltp_read_write", 3) as barrier:
        running = load.launch(gate.SCRIPT, tmp_path / "out", 3, 5, preload=barrier.environment)
        barrier.wait_for_connections(running.child)
        barrier.close(running.child)
        barrier.open()
        running.wait_until_started()
        before = server.status("Com_commit")["Com_commit"]
        processes.wait_until(lambda: server.status("Com_commit")["Com_commit"] > before, 30, "transactions",
                             running.child)
        (tmp_path / "end").touch()
        report = running.finish()
    assert report["exit_status"] == 0 and report["transactions"] > 0 and report["fatal"] == []


def test_a_sysbench_that_cannot_connect_is_said_with_its_words(tmp_path):
    load = sysbench.Load("127.0.0.1", template.free_port(), 1, ROWS)
    with gate.Gate(tmp_path, "oltp_point_select", 1) as barrier:
        with pytest.raises(processes.ProcessError,
                           match=r"(?s)sysbench's threads to connect: sysbench ended.*FATAL"):
            running = load.launch(gate.SCRIPT, tmp_path / "out", 1, 1, events=1,
                                  preload=barrier.environment)
            barrier.wait_for_connections(running.child)
    assert not barrier.directory.exists()


def test_the_script_by_itself_says_what_runs_it(server, tmp_path):
    load = sysbench.Load("127.0.0.1", server.port, 1, ROWS)
    with pytest.raises(processes.ProcessError, match="gate.py runs this script"):
        load.start(gate.SCRIPT, tmp_path / "out", 1, 1, events=1)
