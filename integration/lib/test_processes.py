"""Child processes: their end is seen, bounded and accounted for."""

import os
import time

import pytest

from lib import processes


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
