"""A lock has one holder, and none once that one is killed."""

import multiprocessing

import pytest

from . import locks


def hold(path, said):
    with locks.held(path):
        said.send("held")
        said.recv()


@pytest.mark.parametrize("name", [".", "new/lock"])
def test_a_lock_passes_on_when_its_holder_is_killed(tmp_path, name):
    holders = []
    for _ in range(2):
        ours, theirs = multiprocessing.Pipe()
        holder = multiprocessing.Process(target=hold, args=(tmp_path / name, theirs))
        holder.start()
        holders.append((holder, ours))
        assert holders[0][1].poll(30)
    (first, _), (second, said) = holders
    assert not said.poll(0.2)
    first.kill()
    assert said.poll(30)
    second.kill()
    for holder, _ in holders:
        holder.join()
