"""The comparison as a whole, on this machine; and that it does not believe a dead library."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from oltp import oltp_demo

PROGRAM = Path(oltp_demo.__file__)
BUILD = PROGRAM.parents[2] / "build"
SHORT = ("--where", "native", "--rounds", "1", "--time", "1", "--threads", "2")
STRAY_QUESTIONS = 40  # of connections that end, and of whoever asks for the counters
MISSING = [name for name in ("mariadbd", "mariadb-install-db", "sysbench", "cc")
           if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
needs_programs = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {' '.join(MISSING)}")


def run(*words, **environment):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=120)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return tmp_path_factory.mktemp("oltp") / "template"


@needs_programs
def test_tcp_against_tcp_succeeds_and_leaves_its_result(tmp_path, template):
    done = run(*SHORT, "--channel", "none", "--out", tmp_path, "--template", template)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tables as written are equal on both servers" in done.stdout
    result = json.loads((tmp_path / "oltp-native.json").read_text())
    assert [workload["name"] for workload in result["workloads"]] == list(oltp_demo.WORKLOADS)
    assert result["failures"] == []
    for workload in result["workloads"]:
        assert [pair[side]["label"] for pair in workload["rounds"]
                for side in ("tcp", "channel")] == ["tcp", "tcp (A/A)"]
    for pair in result["workloads"][0]["rounds"]:
        for record in pair.values():
            # One query each: those of the warm-up are not among them.
            assert record["queries"] == record["transactions"]
            asked = record["server_status"]["Questions"]
            assert record["queries"] <= asked < record["queries"] + STRAY_QUESTIONS
            assert record["whole"]["server_status"]["Questions"] >= \
                asked + record["set_up"]["statements"]
            assert record["set_up"]["seconds"] >= oltp_demo.WARM_UP_S["native"]


@needs_programs
@pytest.mark.skipif(not (BUILD / "lib" / "libringroad.so").exists(), reason="not built: make")
def test_the_window_begins_when_the_streams_have_left_tcp(tmp_path, template):
    done = run(*SHORT, "--build", BUILD, "--out", tmp_path, "--template", template)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "oltp-native.json").read_text())
    for workload in result["workloads"]:
        for pair in workload["rounds"]:
            window, whole = pair["channel"]["bytes"], pair["channel"]["whole"]["bytes"]
            assert window["tcp"] == 0 < whole["tcp"]
            assert 0 < window["channel"] < whole["channel"]
            assert pair["channel"]["set_up"]["promotion_s"] > 0
            assert sum(pair["tcp"]["whole"]["bytes"].values()) == 0


@needs_programs
def test_a_library_that_does_nothing_fails_the_comparison(tmp_path, template):
    build = tmp_path / "build"
    (build / "lib").mkdir(parents=True)
    (build / "bin").mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o",
                    build / "lib" / "libringroad.so"], check=True)
    command = build / "bin" / "ringroad"
    command.write_text("#!/bin/sh\n[ \"$1\" = policy ] || echo '{\"processes\": []}'\n")
    command.chmod(0o755)
    done = run(*SHORT, "--build", build, "--out", tmp_path / "out", "--template", template)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the library is not active in it" in done.stdout
    failures = json.loads((tmp_path / "out" / "oltp-native.json").read_text())["failures"]
    assert len([words for words in failures if "not active" in words]) == \
        len(oltp_demo.WORKLOADS) + 1  # and the equality check


@needs_programs
def test_a_missing_build_is_said_with_the_remedy(tmp_path, template):
    done = run(*SHORT, "--build", tmp_path, "--out", tmp_path / "out", "--template", template)
    assert done.returncode == 1
    assert "libringroad.so is missing: build the project first" in done.stderr


def test_the_part_for_the_virtual_machine_refuses_to_run_outside(tmp_path):
    environment = {"RINGROAD_SERVER_ADDR": ""}
    done = run("--where", "softroce", "--out", tmp_path, **environment)
    assert done.returncode == 2
    assert "integration/softroce/run" in done.stderr


@pytest.mark.parametrize("words, message", [(("--time", "0"), "--time must be positive"),
                                            (("--rounds", "-1"), "--rounds must be positive"),
                                            (("--time", "soon"), "invalid int value")])
def test_bad_arguments_are_named(tmp_path, words, message):
    done = run("--where", "native", "--out", tmp_path, *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_output_directory_is_asked_for():
    done = run("--where", "native", OUT="")
    assert done.returncode == 2
    assert "give --out DIR" in done.stderr
