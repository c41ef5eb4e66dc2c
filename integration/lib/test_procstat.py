"""Processor time and context switches from /proc."""

import os
import select
import threading
import time

import pytest

from integration.lib import procstat

# A recorded line whose command name holds what separates the fields.
STAT = ("11214 (maria) db (d) S 11213 11212 31036 0 -1 4194560 20502 0 6 0 42 41 0 0 20 0 29 0 "
        "349648 8797536993280 25147 18446744073709551615 93976714870784 93976724505193 0 0 0\n")
STATUS = "Name:\tmariadbd\nvoluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t{}\n"


def recorded(proc, pid, threads):
    (proc / str(pid) / "task").mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "stat").write_text(STAT)
    for thread, counts in threads.items():
        (proc / str(pid) / "task" / str(thread)).mkdir(exist_ok=True)
        (proc / str(pid) / "task" / str(thread) / "status").write_text(STATUS.format(*counts))


def test_a_command_name_with_brackets_and_spaces_does_not_shift_the_fields(tmp_path):
    recorded(tmp_path, 11214, {})
    assert procstat.read(11214, tmp_path).cpu_s == pytest.approx(83 / procstat.TICKS_PER_S)


def test_switches_count_from_zero_for_new_threads(tmp_path):
    recorded(tmp_path, 7, {7: (10, 1), 8: (100, 5)})
    before = procstat.read(7, tmp_path)
    recorded(tmp_path, 7, {7: (12, 1), 8: (130, 6), 9: (40, 2)})
    assert procstat.read(7, tmp_path).since(before)[1] == 2 + 31 + 42


def test_a_busy_thread_shows_as_processor_time():
    before = procstat.read(os.getpid())
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
    assert procstat.read(os.getpid()).since(before)[0] == pytest.approx(0.2, abs=0.1)


def test_waiting_threads_show_as_context_switches():
    before = procstat.read(os.getpid())
    has_waited, is_read = threading.Event(), threading.Event()

    def wait_often():
        for _ in range(50):
            select.select([], [], [], 0.001)
        has_waited.set()
        is_read.wait()
    thread = threading.Thread(target=wait_often)
    thread.start()
    has_waited.wait()
    after = procstat.read(os.getpid())
    is_read.set()
    thread.join()
    assert after.since(before)[1] >= 50


def test_a_process_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(OSError):
        procstat.read(1, tmp_path)


def test_idle_time_is_not_busy_time(tmp_path):
    (tmp_path / "stat").write_text("cpu  100 20 30 99999 888 3 4 0 0 0\ncpu0 1 1 1 1\n")
    assert procstat.machine_busy_s(tmp_path) == pytest.approx(157 / procstat.TICKS_PER_S)
