"""What `make demo` and `make bench` start, without the measuring."""

import subprocess

import pytest

from integration.bench import arguments, run_all
from integration.lib import template


@pytest.fixture(name="started")
def fixture_started(monkeypatch, tmp_path):
    """The words of each bench that is started, in place of it."""
    words = []

    def start(command, **_):
        command = [str(word) for word in command]
        if str(run_all.VIRTUAL_MACHINE) in command:
            command = command[-1].partition("exec ")[2].split()
        words.append(command[command.index("bench") + 1:])
        return subprocess.CompletedProcess(command, 0)

    made = []
    monkeypatch.setattr(run_all.subprocess, "run", start)
    monkeypatch.setattr(run_all.processes, "end_on_signals", lambda: None)
    monkeypatch.setattr(template, "make", lambda *given: made.append(given))
    yield words
    assert made == [(tmp_path / "out" / "template", 2, 10000)]


@pytest.mark.parametrize("quick", [(), ("--quick",)])
@pytest.mark.parametrize("preset", run_all.PRESETS)
def test_every_part_is_started_with_words_that_its_bench_takes(started, tmp_path, preset, quick):
    assert run_all.main(["--preset", preset, "--out", str(tmp_path / "out"), *quick]) == 0
    assert len(started) == len(run_all.PRESETS[preset])
    for bench, *words in started:
        words = ["results" if word == '"$OUT/bench"' else word for word in words]
        parsed = arguments.parser_of(bench).parse_args(words)
        assert parsed.out and parsed.budget > 0
