"""Child processes: their end is seen, bounded and accounted for."""

import os
import time

import pytest

from integration.lib import processes


def shell(tmp_path, script, environment=None):
    return processes.Child(["bash", "-c", script], tmp_path / "log", environment)


def test_waiting_for_the_end_leaves_the_account_to_the_collector(tmp_path):
    child = shell(tmp_path, "exit 3")
    assert child.ends_within(10)
    assert child.ends_within(10)
    assert child.collect() == 3
    assert child.usage.ru_utime + child.usage.ru_stime > 0


def test_a_signal_shows_as_a_negative_status(tmp_path):
    child = shell(tmp_path, "kill -9 $$")
    assert child.collect() == -9


def test_the_environment_is_added_to_the_own_one(tmp_path):
    child = shell(tmp_path, 'echo "$EXTRA $HOME"', {"EXTRA": "more"})
    child.collect()
    assert (tmp_path / "log").read_text() == f"more {os.environ.get('HOME', '')}\n"


def test_a_process_that_ends_when_asked_is_told_from_one_that_had_to_be_killed(tmp_path):
    polite = shell(tmp_path, "exec sleep 60")
    assert polite.stop(timeout_s=10)
    stubborn = shell(tmp_path, "trap '' TERM; echo ready; read -t 60 < <(sleep 60)")
    processes.wait_until(lambda: "ready" in (tmp_path / "log").read_text(), 10, "trap", stubborn)
    assert not stubborn.stop(timeout_s=0.1)
    assert stubborn.status == -9


def test_waiting_ends_at_once_with_the_log_when_the_process_ends(tmp_path):
    child = shell(tmp_path, "echo bad option; exit 7")
    began = time.monotonic()
    with pytest.raises(processes.ProcessError, match=r"(?s)bash ended with status 7.*bad option"):
        processes.wait_until(lambda: False, 30, "readiness", child)
    assert time.monotonic() - began < 10


def test_waiting_is_bounded():
    began = time.monotonic()
    with pytest.raises(processes.ProcessError, match="readiness: not within 0.1 s"):
        processes.wait_until(lambda: False, 0.1, "readiness")
    assert time.monotonic() - began < 10


def test_a_condition_that_came_true_as_the_process_ended_counts(tmp_path):
    child = shell(tmp_path, "echo done")
    processes.wait_until(lambda: "done" in (tmp_path / "log").read_text(), 10, "output", child)
    child.collect()


def test_the_work_directory_is_removed_also_after_a_failure():
    with pytest.raises(ValueError):
        with processes.WorkDirectory("ringroad-test") as path:
            (path / "file").write_text("x")
            raise ValueError
    assert not path.exists()


def test_a_process_that_hangs_is_seen_doing_that(tmp_path):
    child = processes.Child(["sleep", "600"], tmp_path / "log")
    try:
        with pytest.raises(processes.ProcessError, match="sleep: 1 thread state S in system call"):
            processes.wait_until(lambda: False, 0.3, "a word", child)
    finally:
        assert child.abandon()
    assert child.status == -9 and processes.doing(child.pid) == "it has ended"


def test_the_states_of_threads_are_counted(tmp_path):
    for number, (state, call, where) in enumerate([("S", "202 0x1", "futex_wait"), ("D", "3 0x0", "rxe"),
                                                   ("S", "202 0x2", "futex_wait"), ("R", "running", "0")]):
        task = tmp_path / "7" / "task" / str(number)
        task.mkdir(parents=True)
        (task / "status").write_text(f"Name:\tx\nState:\t{state} (words)\n")
        (task / "syscall").write_text(call)
        (task / "wchan").write_text(where)
    assert processes.doing(7, tmp_path) == ("2 threads state S in system call 202 (futex_wait), "
                                            "1 thread state D in system call 3 (rxe), 1 thread state R")


def test_patience_is_as_long_as_the_environment_says(monkeypatch):
    monkeypatch.delenv("RINGROAD_TEST_PATIENCE", raising=False)
    assert processes.patient(30) == 30
    monkeypatch.setenv("RINGROAD_TEST_PATIENCE", "4")
    assert processes.patient(30) == 120
