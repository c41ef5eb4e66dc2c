"""The frame of the benches, with a bench that measures nothing but itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.bench import arguments, awake, run

ROOT = Path(__file__).parents[2]
arguments.DECLARED["counted"] = [arguments.declared("oltp", "--carriers")]


class Nothing:
    def close(self):
        pass


class Counted(run.Bench):
    """Its cells are `size` 1 and 2; what the environment names goes wrong."""

    name, title = "counted", "Counted"
    groups, rows, field = ("block",), ("size",), "size"
    metrics = panels = (run.report.Metric("rate", "per second", 0, True, True),)
    rounds = (3, 2)

    def settings(self):
        return {"sizes": [1, 2]}

    def facts(self):
        return {"weather": "fine"}

    def blocks(self):
        return [{"block": "one"}, {"block": "two"}]

    def cells(self):
        return [{"size": 1}, {"size": 2}]

    def remarks(self, figures):
        return [f"{len(figures)} cells, all remarkable."]

    def open(self, block, carrier):
        self._act("open", block["block"], carrier)
        return Nothing()

    def measure(self, opened, carrier, key, number):
        self._act("measure", key["block"], carrier)
        print("MEASURED", key["block"], key["size"], carrier.name, number)
        return {"rate": 100 * key["size"] * (2 if carrier.name == "shm" else 1)}

    def _act(self, what, block, carrier):
        wish = os.environ.get("COUNTED_FAILS", "")
        if wish == f"{what} {block} {carrier.name}":
            raise run.CellError("as it was told to:\n  the last line of its log")
        if wish == f"hang {what} {block} {carrier.name}":
            self.place.server.host.call("time:sleep", 600, limit_s=0.3)
        if os.environ.get("COUNTED_DIES") == f"{what} {block} {carrier.name}":
            os.kill(os.getpid(), signal.SIGKILL)


def counted(out, *words, fails="", dies="", carriers="tcp,shm"):
    return subprocess.run(
        [sys.executable, "-c", "import sys; from integration.bench import run, test_run; "
         "sys.exit(run.main(test_run.Counted, sys.argv[1:]))", "--out", out, "--carriers", carriers, "--ringroad", ringroad(out), *words],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "COUNTED_FAILS": fails, "COUNTED_DIES": dies})


def ringroad(out):
    """A command that says that it has a library, which does nothing."""
    command = out.parent / "ringroad"
    if not command.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o",
                        out.parent / "library.so"], check=True)
        command.write_text(f"#!/bin/sh\necho 'library: {out.parent}/library.so'\n")
        command.chmod(0o755)
    return command


@pytest.fixture(name="out")
def fixture_out(tmp_path):
    return tmp_path / "out"


def measured(done):
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("MEASURED")]


def test_every_cell_is_measured_once_in_turns(out):
    done = counted(out)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = measured(done)
    assert len(cells) == len(set(map(tuple, cells))) == 2 * 3 * 2 * 2
    firsts = [cell[2] for cell in cells[::2]]
    assert firsts[:4] == ["shm", "tcp", "tcp", "shm"]
    report = json.loads((out / "report.json").read_text())
    rows = report["tables"][0]["rows"]
    assert [row["figures"]["rate"]["median"] for row in rows] == [100, 200, 200, 400]
    assert rows[1]["figures"]["rate"]["ratio"]["values"] == [2, 2, 2]
    text = (out / "report.md").read_text()
    assert "2.00 (2.00..2.00)" in text and "weather: fine" in text
    assert "24 cells, all remarkable." in text and "24 cells, all remarkable." in done.stdout
    assert (out / "counted-one.png").exists() and "](counted-one.png)" in text


def test_a_run_that_was_killed_goes_on_where_it_was(out):
    died = counted(out, dies="measure two shm")
    assert died.returncode == -signal.SIGKILL
    with open(out / "cells.jsonl", "a", encoding="utf-8") as cells:
        cells.write('{"key": {"blo')  # what it was writing
    before = measured(died)
    done = counted(out)
    assert done.returncode == 0, done.stdout + done.stderr
    again = [cell for cell in measured(done) if cell in before]
    # Of the round that was cut, the carrier that had been measured is measured again.
    assert len(again) <= 1 and len(measured(done)) + len(before) == 24 + len(again)
    nothing_left = counted(out)
    assert nothing_left.returncode == 0 and measured(nothing_left) == [], nothing_left.stderr
    assert [row["rounds"] for table in json.loads((out / "report.json").read_text())["tables"]
            for row in table["rows"]] == [3] * 8


def test_a_folder_of_other_settings_is_refused(out):
    assert counted(out).returncode == 0
    done = counted(out, "--seconds", "9")
    assert done.returncode == 2
    assert "seconds is 5 there and 9 now" in done.stderr and "--out" in done.stderr


def test_a_folder_that_cannot_be_made_is_named(out):
    out.write_text("a file")
    done = counted(out)
    assert done.returncode == 2
    assert done.stderr.endswith(f"{out}: File exists: name another folder with --out\n")


@pytest.mark.parametrize("fails, rows", [("measure one shm", [3, 0, 3, 0, 3, 3, 3, 3]),
                                         ("open two shm", [3, 3, 3, 3, 3, 0, 3, 0])])
def test_a_carrier_that_fails_has_its_row_and_holds_nobody_up(out, fails, rows):
    done = counted(out, fails=fails)
    assert done.returncode == 1, done.stdout + done.stderr
    tables = json.loads((out / "report.json").read_text())["tables"]
    assert [row["rounds"] for table in tables for row in table["rows"]] == rows
    text = (out / "report.md").read_text()
    assert "as it was told to" in text and "the last line of its log" in text
    assert text.count("not measured [1]") == 2


def test_a_host_that_hangs_with_a_carrier_measures_the_others(out):
    done = counted(out, fails="hang measure one shm")
    assert done.returncode == 1, done.stdout + done.stderr
    tables = json.loads((out / "report.json").read_text())["tables"]
    assert [row["rounds"] for table in tables for row in table["rows"]] == [3, 0, 3, 0, 3, 3, 3, 3]
    assert "no answer within 0.3 s" in (out / "report.md").read_text()


def test_rivals_that_cannot_run_have_rows_that_say_why(out):
    done = counted(out, carriers="tcp,rsockets,smc")
    assert done.returncode == 0, done.stdout + done.stderr
    tables = json.loads((out / "report.json").read_text())["tables"]
    rivals = [row for row in tables[0]["rows"] if row["carrier"] != "tcp"]
    assert all(row["rounds"] == 0 and row["failed"] for row in rivals) and len(rivals) == 4


def test_a_librspreload_that_is_given_is_measured_too_and_named(out):
    done = counted(out, "--rsockets", "/no/such/librspreload.so", carriers="tcp,rsockets")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((out / "report.json").read_text())["tables"][0]["rows"]
    given = [row["failed"] for row in rows if row["carrier"] == "rsockets-given"]
    assert len(given) == 2 and all("there is no file /no/such/librspreload.so" in failed[0] for failed in given)
    assert [row["carrier"] for row in rows[:3]] == ["tcp", "rsockets", "rsockets-given"]
    assert "rsockets, given: /no/such/librspreload.so" in (out / "report.md").read_text()
    other = counted(out, "--rsockets", "/another/librspreload.so", carriers="tcp,rsockets")
    assert other.returncode == 2 and 'rsockets is "/no/such/librspreload.so" there' in other.stderr


@pytest.mark.parametrize("words, said", [
    (("--carriers", "shm"), "tcp must be among them"),
    (("--rsockets", "librspreload.so"), "librspreload.so is no whole path"),
    (("--carriers", "tcp,pigeons"), 'no "pigeons"; there are tcp, rdma'),
    (("--rounds", "0"), "0 is not positive"),
    (("--inventory", "/nowhere.toml"), "/nowhere.toml: No such file"),
    (("--netns", "--inventory", "hosts.toml"), "--inventory names others"),
])
def test_wrong_arguments_are_named(out, words, said):
    done = counted(out, *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_budget_ends_a_run_that_goes_on_later(out):
    done = counted(out, "--budget", "0.0001")
    assert done.returncode == 0 and "out of time" in done.stdout
    assert len(measured(done)) < 24
    more = counted(out)
    assert len(measured(done)) + len(measured(more)) == 24


@pytest.mark.alone
def test_a_budget_is_shared_by_the_blocks(out):
    done = counted(out, "--budget", "0.05", "--rounds", "1000", carriers="tcp")
    assert done.returncode == 0 and "out of time" in done.stdout, done.stdout + done.stderr
    blocks = [cell[0] for cell in measured(done)]
    assert min(blocks.count("one"), blocks.count("two")) >= len(blocks) / 8


def test_processors_are_kept_awake_for_the_bench_that_asks_and_no_longer(tmp_path):
    file = tmp_path / "latency"
    file.write_bytes(b"at first")
    held = awake.Awake(file)
    assert file.read_bytes() == bytes(4) + b"irst", "0 us, as a number of 32 bits"
    number = held._file  # pylint: disable=protected-access
    os.fstat(number)
    held.close()
    with pytest.raises(OSError):
        os.fstat(number)


@pytest.mark.skipif(not os.access(awake.PATH, os.W_OK), reason=f"{awake.PATH} is not to be written to")
def test_a_run_that_keeps_processors_awake_says_so_and_is_no_other(out):
    done = counted(out, "--awake", carriers="tcp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No processor halted" in done.stdout and "No processor halted" in (out / "report.md").read_text()
    other = counted(out, carriers="tcp")
    assert other.returncode == 2 and "awake is true there" in other.stderr
