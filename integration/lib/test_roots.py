"""The bookkeeping of roots; mmdebstrap, apt and the namespace are stand-ins."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from . import processes, roots

TARGETS = """\
http://mirror.example/debian-security bookworm-security main
http://vendor.example nodistro main
http://mirror.example/debian bookworm contrib
http://mirror.example/debian bookworm main
"""
# Makes what the real one makes, as far as it is looked at, and counts how often.
MMDEBSTRAP = """#!/bin/sh
for word; do last2=$last; last=$word; done
echo made >>"$COUNT"
test -z "$BROKEN" || { mkdir "$last2"; echo "E: $BROKEN"; exit 25; }
mkdir "$last2" && echo "$@" >"$last2/command"
"""


@pytest.fixture(name="place")
def fixture_place(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    monkeypatch.delenv("RINGROAD_ROOTS", raising=False)
    monkeypatch.setattr(roots, "PROJECT", tmp_path)
    monkeypatch.setattr(roots, "check_can_enter", lambda: None)
    monkeypatch.setattr(roots, "check_can_make", lambda release: "http://mirror.example/debian")
    monkeypatch.setattr(roots, "ROOTS", {"one": roots.Root("trixie", "b a", "for a test")})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mmdebstrap").write_text(MMDEBSTRAP)
    (tmp_path / "bin" / "mmdebstrap").chmod(0o755)
    if os.geteuid() != 0:
        monkeypatch.setattr(roots, "OWN_MOUNTS", ())
    (tmp_path / "count").touch()
    return tmp_path


def times_made(place):
    return len((place / "count").read_text().split())


def test_a_root_is_made_once_from_the_mirror(place):
    root = roots.ensure("one")
    assert root == place / "build" / "roots" / "one" and roots.ensure("one") == root
    command = (root / "command").read_text()
    assert command.endswith(f" trixie {root}.building http://mirror.example/debian\n")
    assert "--include=b,a" in command and 'Check-Valid-Until "false"' in command
    assert times_made(place) == 1


def test_two_callers_at_once_make_one_root(place):
    callers = [threading.Thread(target=roots.ensure, args=("one",)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert times_made(place) == 1


def test_another_list_of_packages_makes_the_root_anew(place, monkeypatch):
    root = roots.ensure("one")
    (root / "old").touch()
    monkeypatch.setitem(roots.ROOTS, "one", roots.Root("trixie", "a b", "the order is no matter"))
    roots.ensure("one")
    assert (root / "old").exists()
    monkeypatch.setitem(roots.ROOTS, "one", roots.Root("trixie", "a b c", "one more"))
    roots.ensure("one")
    assert not (root / "old").exists() and times_made(place) == 2


def test_a_root_that_could_not_be_made_is_told_with_the_last_words_and_leaves_nothing(
        place, monkeypatch):
    monkeypatch.setenv("BROKEN", "no such package")
    with pytest.raises(RuntimeError, match="status 25.*\nE: no such package"):
        roots.ensure("one")
    assert not list((place / "build" / "roots").glob("one")) + list(
        (place / "build" / "roots").glob("*.building"))


def test_a_root_made_by_hand_is_taken_where_the_environment_names_the_folder(place, monkeypatch):
    root = place / "elsewhere" / "one"
    root.mkdir(parents=True)
    monkeypatch.setenv("RINGROAD_ROOTS", str(root.parent))
    assert roots.ensure("one") == root
    assert times_made(place) == 0


def test_a_folder_of_others_in_the_place_of_a_root_is_left_alone(place):
    root = place / "build" / "roots" / "one"
    root.mkdir(parents=True)
    with pytest.raises(RuntimeError, match="remove it, or set RINGROAD_ROOTS"):
        roots.ensure("one")
    assert root.exists() and times_made(place) == 0


def test_the_mirror_is_where_the_machines_own_release_comes_from():
    assert roots.mirror(TARGETS, "bookworm") == "http://mirror.example/debian"
    with pytest.raises(roots.Unavailable, match="no mirror"):
        roots.mirror(TARGETS, "jammy")
    with pytest.raises(roots.Unavailable, match="no mirror"):
        roots.mirror("", "bookworm")


def test_a_machine_that_cannot_make_a_root_says_why(place, monkeypatch, capsys):
    def refuse(release):
        raise roots.Unavailable(f"the mirror does not give {release}")
    monkeypatch.setattr(roots, "check_can_make", refuse)
    with pytest.raises(roots.Unavailable, match="does not give trixie"):
        roots.ensure("one")
    assert roots.main([]) == 0
    assert "root one: unavailable: the mirror does not give trixie" in capsys.readouterr().out
    assert roots.main(["two"]) == 2


def test_only_root_enters_a_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(roots.Unavailable, match="needs root"):
        roots.ensure("trixie")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mounts")


@needs_root
def test_what_is_mounted_in_an_unfinished_root_goes_with_it(place):
    building = place / "build" / "roots" / "one.building"
    for mounted in (building / "dev", building / "dev" / "a folder"):
        mounted.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mounted], check=True)
    assert (roots.ensure("one") / "command").exists() and not building.exists()


@needs_root
def test_what_makes_a_root_takes_its_mounts_and_programs_with_it(tmp_path):
    script = 'mount -t tmpfs tmpfs "$1"; setsid sleep 1000 & echo; sleep 1000'
    with subprocess.Popen([*roots.OWN_MOUNTS, "sh", "-c", script, "sh", tmp_path],
                          stdout=subprocess.PIPE) as making:
        making.stdout.readline()
        held = Path(f"/proc/{making.pid}/task/{making.pid}/children").read_text().split()
        making.kill()
    for pid in held:
        processes.wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 30, "the end")
    assert held and not roots.mounts_below(tmp_path, Path("/proc/self/mountinfo").read_text())


def test_mounts_are_told_from_the_latest_and_by_their_names():
    told = ("1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /r/x.building/dev rw - tmpfs a rw\n"
            "3 2 0:3 / /r/x.building/dev/a\\040b rw - tmpfs a rw\n4 1 0:4 / /r/x.building2 rw - tmpfs a rw\n")
    assert roots.mounts_below("/r/x.building", told) == ["/r/x.building/dev/a b", "/r/x.building/dev"]


def test_the_command_line_has_nothing_of_this_process_but_what_is_given(place, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    words = roots.inside("one", ["prog", Path("arg")], env={"A": "b c"}, cwd=work, writable=[work])
    folders = words.index(str(tmp_path / "build" / "roots" / "one"))
    assert words[folders + 1:] == [str(work), str(tmp_path), str(work), "--", f"PATH={roots.PATH}",
                                   "HOME=/root", "LC_ALL=C.UTF-8", "A=b c", "prog", "arg"]


def test_the_script_that_enters_is_one_for_sh():
    subprocess.run(["sh", "-nc", roots.ENTER], check=True)
    subprocess.run(["sh", "-nc", roots.SERVICES_OFF], check=True)
