"""The pages of the operator's guide name what there is."""

import re
import subprocess

import pytest

from . import guide, support

STEPS, RUNBOOK, OPERATIONS = (page.read_text() for page in guide.PAGES)
ALL = STEPS + RUNBOOK + OPERATIONS
REFERENCE = (support.ROOT / "docs" / "reference.md").read_text()


def test_their_policies_are_accepted(tmp_path):
    host = support.Host(tmp_path)
    blocks = re.findall(r"```toml\n(.*?)```", ALL, re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        host.tool.check_policy(path)


def test_the_reference_names_every_environment_variable():
    sources = (support.ROOT / "preload").glob("*.cc")
    names = {name for source in sources for name in re.findall(r'getenv\("(RINGROAD_\w+)"', source.read_text())}
    assert len(names) >= 5
    table = REFERENCE.partition("## Environment variables")[2].partition("\n## ")[0]
    assert names <= set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


# What field reports of databases on RoCEv2 name: each must be there, with a check.
SYMPTOMS = {
    "no device": "No device in `ibv_devinfo`",
    "latency": "Latency is higher than over TCP",
    "unreachable": "RDMA_CM_EVENT_UNREACHABLE",
    "not seen": "The database does not see RDMA",
    "cpu": "CPU is still high",
    "no gain": "No gain",
}


@pytest.mark.parametrize("symptom", SYMPTOMS.values(), ids=SYMPTOMS)
def test_each_symptom_has_a_check_that_can_be_run(symptom):
    text = RUNBOOK.partition(f"\n## {symptom}\n")[2].partition("\n## ")[0]
    given = re.findall(r"^(?:db1|db2|both)# (ringroad (?:doctor|ss) ?.*)$", text, re.MULTILINE)
    assert given, f"no command of doctor or ss for: {symptom}"


def tool(*words):
    return subprocess.run([support.BUILD / "bin" / "ringroad", *words], capture_output=True,
                          text=True, check=True).stdout


def test_they_name_checks_that_the_doctor_has_and_options_that_commands_have():
    checks = {line.split()[0] for line in tool("doctor", "--list").splitlines()[1:]}
    named = re.findall(r"ringroad doctor [^\n`]*?--only ([\w,-]+)", ALL)
    assert len(named) > 8
    assert {check for some in named for check in some.split(",")} <= checks
    helps = {}
    uses = re.findall(r"\bringroad ((?:policy|bench) \w+|[a-z]+) ([^\n`]*)", ALL)
    assert len(uses) > 40
    for command, rest in uses:
        options = re.findall(r"(?<!\S)(--[a-z][\w-]*)", f" {rest}".partition(" -- ")[0].partition(" #")[0])
        if options and command not in helps:
            helps[command] = tool(*command.split(), "--help")
        for option in options:
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", helps[command]), (command, option)


def test_what_cannot_be_done_on_soft_roce_is_marked_so():
    """Every command of the steps has a prompt, and is given by guest/guide.py, or says what it needs."""
    titles = re.findall(r"^## (\d\. .+)$", STEPS, re.MULTILINE)
    assert len(titles) == 9
    for block in guide.blocks(STEPS):
        if block.section not in titles or block.language == "console":
            continue
        place = guide.PLACE.search(block.before.replace("\n", " "))
        assert place or any(mark in block.before for mark in guide.LEFT_OUT), block
    for mark in guide.LEFT_OUT:
        assert f"{mark} " in STEPS.partition("\n## 1. ")[0]


def test_every_step_is_read():
    prompts = re.findall(r"^(?:db1|db2|both|build)[#$] .+$", ALL, re.MULTILINE)
    steps = guide.all_steps()
    assert len(prompts) == sum(1 for step in steps if step.command) > 50
    assert sum(1 for step in steps if step.file) == 3


def test_what_it_prints_is_compared_but_for_numbers():
    printed = ["PID  CARRIER  REMOTE", "4711 rdma 10.9.1.2:36946 5.6K", "...", "0 fail, 2 warn"]
    real = "PID CARRIER  REMOTE\n7    rdma     10.9.1.2:40001   12\nmore\n0 fail, 3 warn\n"
    assert guide.says(real, printed)
    for wrong in (real.replace("rdma", "tcp"), real.replace("10.9.1.2", "10.9.1.3"),
                  real.replace("0 fail", "1 fail"), real.replace("7 ", "x\n7 "), real + "more\n",
                  real.partition("more")[0]):
        assert not guide.says(wrong, printed), wrong
    assert not guide.says("said", []) and guide.says("", []) and guide.says("said", ["..."])
    assert guide.says("10.9.1.1:3306", ["10.9.1.1:3306"])
    assert not guide.says("10.9.1.1:3307", ["10.9.1.1:3306"])
