"""`ringroad bench model` as it is called, on results that were made up."""

import subprocess

import pytest

from integration.bench import test_model

from . import support


def bench_model(*words, folder):
    return subprocess.run([support.BUILD / "bin" / "ringroad", "bench", "model", *words],
                          capture_output=True, text=True, check=False, cwd=folder,
                          timeout=support.ANSWER_S)


def test_the_results_become_a_page(tmp_path):
    done = bench_model(*test_model.write_results(tmp_path), "--latency", "5us", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# ") and "| read_only | 1 |" in done.stdout
    assert "- latency: 5 us one way" in done.stdout


def test_what_was_not_measured_is_told_with_its_command(tmp_path):
    words = test_model.write_results(tmp_path, of_net=test_model.net_cells(measures=("pingpong",)))
    done = bench_model(*words, folder=tmp_path)
    assert done.returncode == 1 and "no round has stream over tcp and shm: ringroad bench net" in done.stdout


def test_the_folders_are_those_that_the_benches_leave(tmp_path):
    done = bench_model(*test_model.WORDS, folder=tmp_path)
    assert done.returncode == 2 and "ringroad-bench-net/settings.json: No such file" in done.stderr
    test_model.write_results(tmp_path)
    for name in ("net", "oltp"):
        (tmp_path / name).rename(tmp_path / f"ringroad-bench-{name}")
    assert bench_model(*test_model.WORDS, folder=tmp_path).returncode == 0


@pytest.mark.parametrize("words", [(), ("--carriers", "tcp"), (*test_model.WORDS, "--latency", "soon")])
def test_wrong_words_print_nothing(tmp_path, words):
    done = bench_model(*words, folder=tmp_path)
    assert done.returncode != 0 and done.stderr and done.stdout == ""
