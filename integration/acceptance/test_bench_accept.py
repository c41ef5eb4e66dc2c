"""Steps of `ringroad bench accept` that need no RDMA, for real: both ends on this host, over shared memory.

guest/accept.py has the command between two machines.
"""

import json
import subprocess

import pytest

from integration.bench import accept, arguments, carriers, hosts, net, oltp, probe

from . import support

COMMAND = support.BUILD / "bin" / "ringroad"
pytestmark = support.needs_mariadb


@pytest.fixture(name="other")
def fixture_other(tmp_path):
    return support.other_build(tmp_path / "other").parents[1]


@pytest.fixture(name="accepted")
def fixture_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(accept, "RDMA", carriers.of("shm"))
    monkeypatch.setattr(accept, "AWAY_S", 1)
    monkeypatch.setenv(oltp.TEMPLATE, str(support.prepared_data().parent))
    out = tmp_path / "out"

    def run(step, *words):
        options = arguments.parser_of("accept").parse_args(
            ["--quick", "--out", str(out), "--steps", step, "--ringroad", str(COMMAND), *words])
        status = accept.Acceptance(hosts.here(str(COMMAND)), options).run()
        told = json.loads((out / "report.json").read_text())["steps"]
        return status, next(one for one in told if one["step"] == step)
    return run


def test_a_second_build_comes_in_the_place_of_the_first_under_load(accepted, other, tmp_path):
    status, told = accepted("upgrade", "--upgrade", str(other / "bin" / "ringroad"))
    assert (status, told["verdict"]) == (0, "passed"), told
    stages = json.loads((tmp_path / "out" / "upgrade.json").read_text())
    assert list(stages) == ["replaced", "old server, new client", "new server, old client", "both new"]
    assert stages["replaced"]["report"]["transactions"] > 0 and stages["replaced"]["goes_on"]
    ours, others = (probe.ringroad_build(str(command)) for command in (COMMAND, other / "bin" / "ringroad"))
    assert [list(stage["builds"].values()) for stage in list(stages.values())[1:]] == [
        [ours, others], [others, ours], [others, others]]
    assert all(stage["channel_percent"] >= 99 for stage in list(stages.values())[1:])


def test_a_second_build_that_does_nothing_fails_with_the_evidence(accepted, other):
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", other / "lib" / "libringroad.so"],
                   check=True)
    status, told = accepted("upgrade", "--upgrade", str(other / "bin" / "ringroad"))
    assert (status, told["verdict"]) == (1, "FAILED"), told
    assert "streams were on shm" in told["reason"] or "were not all on shm" in told["reason"], told


def test_a_bench_is_a_step_with_its_ratios_in_the_report(accepted, tmp_path, monkeypatch):
    inventory = tmp_path / "hosts.toml"
    inventory.write_text('[server]\naddress = "127.0.0.1"\n[client]\naddress = "127.0.0.1"\n')
    monkeypatch.setitem(accept.WORDS, "net", ("", "--carriers tcp,shm --measures rate --rounds 1"))
    monkeypatch.setattr(accept.Acceptance.__init__, "__defaults__", (
        (accept.Step("net", "compares", 1, accept.bench_step(net.Net, "net", "shm")),),))
    status, told = accepted("net", "--inventory", str(inventory))
    assert (status, told["verdict"], told["file"]) == (0, "passed", "net/report.md"), told
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [one["carrier"] for one in report["ratios"]["net"]] == ["shm"]
    assert "## Ringroad to TCP: net" in (tmp_path / "out" / "report.md").read_text()


def test_what_is_taken_under_load_is_told_with_what_became_of_the_queries(accepted, tmp_path, monkeypatch):
    file = tmp_path / "there"
    file.touch()
    monkeypatch.setattr(accept, "may_lose_its_link", lambda place: "client")
    monkeypatch.setattr(accept.hosts.Host, "call", lambda host, function, *words, call=hosts.Host.call, **named:
                        {"take": [["rm", str(file)]], "give": [["touch", str(file)]]}
                        if function.endswith(":link") else call(host, function, *words, **named))
    status, told = accepted("link")
    assert (status, told["verdict"], told["file"]) == (0, "passed", "link.json"), told
    assert "the streams stayed on RDMA, on RDMA again 0." in told["figure"] and file.exists()
