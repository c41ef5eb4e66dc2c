"""The manual pages and the completion have every command, option, variable and key that there is."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from . import support
from .test_live_switch import Pair

PAGES = {"ringroad.1": support.BUILD / "packaging" / "share" / "ringroad.1",
         "libringroad.7": support.BUILD / "packaging" / "share" / "libringroad.7",
         "ringroad-policy.5": support.BUILD / "packaging" / "share" / "ringroad-policy.5"}
COMPLETION = support.ROOT / "packaging" / "completion" / "ringroad"
COMMAND = support.BUILD / "bin" / "ringroad"


def help_of(*words):
    return subprocess.run([COMMAND, *words, "--help"], check=True, capture_output=True,
                          text=True).stdout


def commands_in(text):
    block = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  (\w[\w-]*)", block, re.MULTILINE)


def every_command():
    """Each command, and each with its subcommand: lists of words."""
    for name in commands_in(help_of()):
        yield [name]
        for sub in commands_in(help_of(name)):
            yield [name, sub]


def options_of(*words):
    block = help_of(*words).partition("\nOptions:\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^  (?:-\w,)?(--[a-z][\w-]*)", block, re.MULTILINE))


ALL = list(every_command())
needs_page = pytest.mark.skipif(not PAGES["ringroad.1"].exists(),
                                reason=f"{PAGES['ringroad.1']} is not built: make")


def rendered(page):
    done = subprocess.run(["mandoc", "-Tascii", "-Owidth=200", page], check=True,
                          capture_output=True, text=True)
    return re.sub(r".\x08", "", done.stdout)


needs_mandoc = pytest.mark.skipif(shutil.which("mandoc") is None, reason="not installed: mandoc")


@needs_page
@needs_mandoc
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_the_page_has_each_command_with_its_options(words):
    page = rendered(PAGES["ringroad.1"])
    section = re.search(rf"^   ringroad {' '.join(words)}\n(.*?)(?=^ {{0,3}}\S)", page,
                        re.MULTILINE | re.DOTALL)
    assert section, page[:500]
    listed = set(re.findall(r"^     (?:-\w,)?(--[\w-]+)", section[1], re.MULTILINE))
    assert listed >= options_of(*words) and len(listed) > 0
    exits = re.findall(r"^  (\S+)  \S", help_of(*words).partition("Exit status:\n")[2], re.MULTILINE)
    for status in exits:
        assert re.search(rf"^       {status}  ", section[1], re.MULTILINE), status


def test_there_are_commands_and_options_to_look_for():
    assert {"run", "policy", "ss", "set", "ab", "exporter"} <= {words[0] for words in ALL}
    assert options_of("run") >= {"--policy", "--log", "--log-level"}


@needs_mandoc
@needs_page
@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_the_pages_are_without_fault(page):
    done = subprocess.run(["mandoc", "-Tlint", "-W", "warning", page], capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if shutil.which("groff"):
        done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page],
                              capture_output=True, text=True, check=False,
                              env={**os.environ, "LC_ALL": "C.UTF-8"})
        assert (done.returncode, done.stderr) == (0, "")


def items(page):
    """What the page's lists explain."""
    return set(re.findall(r"^\.It (?:Li|Ev) (\S+)$", PAGES[page].read_text(), re.MULTILINE))


def test_each_variable_is_explained():
    names = {"LD_PRELOAD"}
    for source in [*(support.ROOT / "preload").glob("*.cc"), *(support.ROOT / "cli").glob("**/*.cc")]:
        names |= set(re.findall(r'(?:getenv|from_environment)\("(RINGROAD_\w+)"',
                                source.read_text()))
    assert len(names) > 5
    assert names <= items("libringroad.7")


def test_each_key_of_a_policy_is_explained():
    rule = (support.ROOT / "policy" / "rule_reader.cc").read_text()
    process = (support.ROOT / "policy" / "process_reader.cc").read_text()
    keys = set(re.findall(r'^ +\{+"(\w+)", &RuleReader::', rule, re.MULTILINE))
    keys |= set(re.findall(r'"(\w+)"', re.search(r"kKeys = \{([^}]+)\}", process)[1]))
    assert keys >= {"subnet", "via", "key_file", "log", "max_channels"}
    assert items("ringroad-policy.5") == keys | {"version"}


def test_each_example_of_the_page_is_a_policy(tmp_path):
    text = PAGES["ringroad-policy.5"].read_text()
    blocks = re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        path = tmp_path / "policy.toml"
        path.write_text(block.replace("\\-", "-"))
        assert subprocess.run([COMMAND, "policy", "check", path], check=False).returncode == 0


# ---- completion

BASE = Path("/usr/share/bash-completion/bash_completion")
needs_completion = pytest.mark.skipif(not BASE.exists(), reason="not installed: bash-completion")
ASK = r"""
compopt() { :; }  # knows that nobody has pressed a key
source "$1"; source "$2"; shift 2
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMP_KEY=9
_ringroad "$1" "${@: -1}" "${@: -2:1}"
printf '%s\n' "${COMPREPLY[@]}"
"""


def complete(*words, directory="/", **environment):
    """What the last word, which may be empty, could become."""
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "ask", BASE, COMPLETION, "ringroad", *map(str, words)],
        capture_output=True, text=True, check=False, cwd=directory,
        env={**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}", **environment})
    assert done.returncode == 0 and done.stderr == "", done
    return {word for word in done.stdout.split("\n") if word}


@needs_completion
def test_commands_are_completed():
    assert complete("") == {words[0] for words in ALL} | {"--help", "--version"}
    assert complete("ex") == {"exporter"}
    assert complete("policy", "") == set(commands_in(help_of("policy"))) | {"--help"}


@needs_completion
@pytest.mark.parametrize("words", [words for words in ALL if words != ["policy"]], ids=" ".join)
def test_options_are_completed(words):
    assert complete(*words, "--") == options_of(*words) > set()


@needs_completion
def test_preloaded_processes_are_completed(tmp_path):
    host = support.Host(tmp_path)
    preload = host.preload(host.policy("completed", ["1-65535"], promote_after="{ messages = 2 }"))
    (host.runtime / "999999999").write_bytes(b"")  # of a process that is gone
    with Pair(preload, 1, host=host) as pair:
        pids = {str(pair.server.pid), str(pair.askers[0].pid)}
        where = {"RINGROAD_RUNTIME_DIR": str(host.runtime)}
        assert complete("set", "", **where) == pids | {"all", "tcp", "rdma", "auto"}
        assert complete("ab", "", **where) == pids | {"--"}
        assert complete("ss", "--pid", "", **where) == pids
        assert complete("ss", "--directory", host.runtime, "--pid", "") == pids
        assert complete("set", "a", **where) == {"all", "auto"}


@needs_completion
def test_values_files_and_programs_are_completed(tmp_path):
    (tmp_path / "a.toml").touch()
    (tmp_path / "b.toml").touch()
    (tmp_path / "c.txt").touch()
    (tmp_path / "folder").mkdir()
    assert complete("ss", "--carrier", "") == {"tcp", "shm", "rdma"}
    assert complete("run", "--log-level", "w") == {"warn"}
    assert complete("run", "--log", "s") == {"stderr", "syslog"}
    assert complete("policy", "check", "", directory=tmp_path) == {"a.toml", "b.toml", "folder"}
    assert complete("run", "--policy", "", directory=tmp_path) == {"a.toml", "b.toml", "c.txt", "folder"}
    assert complete("ss", "--directory", "", directory=tmp_path) == {"folder"}
    assert "setarch" in complete("run", "--policy", "a.toml", "--", "setar")
    assert "setarch" in complete("run", "setar")
    assert "c.txt" in complete("run", "--", "cat", "", directory=tmp_path)


@needs_completion
def test_completion_without_the_command_is_silent(tmp_path):
    (tmp_path / "bash").symlink_to(shutil.which("bash"))
    (tmp_path / "awk").symlink_to(shutil.which("awk"))
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "ask", BASE, COMPLETION, "ringroad", ""], check=False,
        capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.stderr == ""
