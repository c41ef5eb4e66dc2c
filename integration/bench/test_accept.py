"""`ringroad bench accept` without hosts: its steps in turn, what is kept of them, and what may be taken away."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from integration.bench import accept, accept_report, arguments, hosts, net, run
from integration.bench.accept import CannotRun, Failed, LeftOut, Step
from integration.bench.accept_report import CANNOT_RUN, FAILED, LEFT_OUT, PASSED, Outcome
from integration.lib import processes

ROOT = Path(__file__).parents[2]
INVENTORY = """[server]
ssh = "root@db1"
address = "10.9.1.1"
[client]
ssh = "root@db2"
address = "10.9.1.2"
"""


class FakeHost:
    """Answers as it is told: {function's name: value, an exception, or what makes it of the words}."""

    def __init__(self, name, answers, remote=True):
        self.name, self.work, self.is_remote = name, "/nowhere", remote
        self.answers = answers
        self.asked = []

    def call(self, function, *words, **_):
        name = function.partition(":")[2]
        self.asked.append((name, *words))
        answer = self.answers[name]
        answer = answer(*words) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    make = call

    def start(self):
        pass

    end = start


def ends(**answers):
    answers = {"versions": {"system": "Debian", "library": "aa"}, "ssh_server": ["10.0.0.9", "10.0.0.1"],
               "link_obstacle": "", **answers}
    return {role: hosts.End(FakeHost(role, dict(answers)), address, "ringroad")
            for role, address in (("server", "10.9.1.1"), ("client", "10.9.1.2"))}


def place_of(both):
    return hosts.Place(both["server"], both["client"], False, "hosts.toml")


class Steps:
    """Steps that note that they were performed, and do what they are told to."""

    def __init__(self, **does):
        self.done, self.minutes = [], {}
        self.steps = tuple(Step(name, f"does {name}", 1, self._step(name, what)) for name, what in does.items())

    def _step(self, name, what):
        def perform(_run, minutes):
            self.done.append(name)
            self.minutes[name] = minutes
            if isinstance(what, BaseException):
                raise what
            return what() if callable(what) else what
        return perform


def options_of(out, *words):
    options = arguments.parser_of("accept").parse_args(["--out", str(out), "--inventory", "hosts.toml", *words])
    options.steps = options.steps or ["doctor", "net", "link", "device"]
    return options


@pytest.fixture(name="out")
def fixture_out(tmp_path):
    return tmp_path / "out"


def accepted(out, steps, *words, both=None):
    return accept.Acceptance(place_of(both or ends()), options_of(out, *words), steps.steps).run()


def told(out):
    return {one["step"]: one for one in json.loads((out / "report.json").read_text())["steps"]}


FINE = Outcome(PASSED, "as it should be")


# ---- the run

def test_each_step_is_performed_and_its_row_is_in_the_report(out, capsys):
    steps = Steps(doctor=FINE, net=FINE)
    assert accepted(out, steps) == 0 and steps.done == ["doctor", "net"]
    assert [one["verdict"] for one in told(out).values()] == [PASSED, PASSED]
    assert "| doctor | passed | as it should be | - |" in (out / "report.md").read_text()
    said = capsys.readouterr().out
    assert "doctor: does doctor; about 25 min at most" in said and "doctor: passed: as it should be" in said


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), SystemExit(143)])
def test_a_run_that_was_interrupted_goes_on_with_what_is_left(out, problem):
    with pytest.raises(type(problem)):
        accepted(out, Steps(doctor=FINE, net=problem, link=FINE))
    assert told(out)["doctor"]["verdict"] == PASSED and told(out)["link"]["reason"] == "not begun"
    again = Steps(doctor=FINE, net=FINE, link=FINE)
    assert accepted(out, again) == 0 and again.done == ["net", "link"]
    assert [one["verdict"] for one in told(out).values()] == [PASSED] * 3


def test_what_has_failed_is_not_done_again_and_what_could_not_run_is(out):
    assert accepted(out, Steps(doctor=Failed("a query was lost"), net=CannotRun("install perftest"))) == 1
    assert told(out)["doctor"] | {"file": ""} == {"step": "doctor", "verdict": FAILED, "figure": "", "file": "",
                                                  "reason": "a query was lost", "is_late": False}
    assert "| net | cannot run | install perftest | - |" in (out / "report.md").read_text()
    again = Steps(doctor=FINE, net=FINE)
    assert accepted(out, again) == 1 and again.done == ["net"]


def test_a_step_that_reached_no_host_is_tried_again(out):
    assert accepted(out, Steps(doctor=hosts.Unreachable("db1: no agent there"))) == 1
    again = Steps(doctor=FINE)
    assert accepted(out, again) == 0 and again.done == ["doctor"]


def test_what_could_not_run_is_no_success(out):
    assert accepted(out, Steps(doctor=FINE, net=CannotRun("install perftest"))) == 1


@pytest.mark.parametrize("problem", [hosts.Silent("db1: no answer"), hosts.HostError("no"), run.CellError("bad"),
                                     processes.ProcessError("ended")])
def test_a_step_that_goes_wrong_does_not_hold_the_others_up(out, problem):
    steps = Steps(doctor=problem, net=FINE)
    assert accepted(out, steps) == 1 and steps.done == ["doctor", "net"]
    assert told(out)["doctor"]["reason"] == str(problem)


def test_what_was_not_asked_for_is_no_failure(out):
    steps = Steps(doctor=FINE, net=LeftOut("--upgrade is not given"))
    assert accepted(out, steps, "--steps", "doctor,net") == 0
    steps = Steps(doctor=FINE, net=FINE)
    assert accepted(out.with_name("other"), steps, "--steps", "doctor") == 0 and steps.done == ["doctor"]
    assert told(out.with_name("other"))["net"]["reason"] == "--steps does not name it"


def test_the_minutes_are_shared_and_what_is_not_needed_goes_to_the_others(out):
    steps = Steps(doctor=FINE, net=FINE, link=FINE)
    accepted(out, steps, "--budget", "30")
    assert [round(steps.minutes[name]) for name in steps.done] == [10, 15, 30]


def test_steps_for_which_there_is_no_time_are_told_and_left_to_the_next_run(out):
    def slow():
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
        return FINE
    assert accepted(out, Steps(doctor=slow, net=FINE), "--budget", "0.002") == 1
    assert told(out)["net"]["reason"] == "out of time: the same command goes on" and told(out)["net"]["verdict"] == LEFT_OUT
    again = Steps(doctor=FINE, net=FINE)
    assert accepted(out, again) == 0 and again.done == ["net"]


def test_a_folder_of_another_build_is_refused(out):
    accepted(out, Steps(doctor=FINE))
    with pytest.raises(accept.results.ResultsError, match="client is \"aa\" there and \"bb\" now"):
        accepted(out, Steps(doctor=FINE), both=ends(versions={"library": "bb"}))


def test_one_archive_has_the_report_and_what_the_steps_left(out):
    accepted(out, Steps(doctor=FINE))
    names = subprocess.run(["tar", "-tzf", f"{out}.tar.gz"], capture_output=True, text=True, check=True).stdout
    assert "out/report.md" in names and "out/report.json" in names and "out/cells.jsonl" in names


@pytest.mark.parametrize("text, said", [
    (None, "name the two hosts with --inventory FILE"),
    (INVENTORY.replace("db2", "db1"), "hosts.toml:5: both ends are on one host: name another one"),
    (INVENTORY.replace("address", "adress"), "hosts.toml:3: [server] adress: there is no such key"),
])
def test_a_wrong_inventory_is_told_before_anything_is_done(tmp_path, capsys, text, said):
    words = ["--out", str(tmp_path / "out")]
    if text:
        (tmp_path / "hosts.toml").write_text(text)
        words += ["--inventory", str(tmp_path / "hosts.toml")]
    assert accept.main(words) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("words, said", [
    (["--upgrade", "next/bin/ringroad"], "--upgrade: next/bin/ringroad is no whole path"),
    (["--upgrade", "ringroad"], "--upgrade: ringroad is no whole path"),
    (["--server", "sbin/mysqld"], "--server: sbin/mysqld is no whole path"),
    (["--budget", "0"], '"0" is not a positive number'), (["--steps", "dance"], 'there is no "dance"')])
def test_wrong_arguments_are_named_before_anything_is_done(capsys, words, said):
    with pytest.raises(SystemExit):
        accept.main(words)
    assert said in capsys.readouterr().err


def test_the_steps_are_those_that_the_help_names_and_fill_an_hour_at_most():
    assert [step.name for step in accept.STEPS] == list(arguments.choices("accept", "--steps"))
    assert sum(step.minutes for step in accept.STEPS) == arguments.default("accept", "--budget") < 60


@pytest.mark.parametrize("name, kind", [("perftest", net.Net), ("net", net.Net), ("oltp", accept.oltp.Oltp)])
@pytest.mark.parametrize("quick", [False, True])
def test_the_words_of_each_bench_are_words_that_it_takes(name, kind, quick):
    assert run.parse(kind, accept.WORDS[name][quick].split()).carriers


# ---- the steps

class FakeRun:
    def __init__(self, out, both, *words, verdict=LEFT_OUT):
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.place, self.options = out, place_of(both), options_of(out, *words)
        self.given = []
        self.verdict = lambda name: verdict

    def taken_under_load(self, *words):
        self.given.append(words)
        return FINE

    rolled = taken_under_load


class Forgettable:
    def forget(self):
        pass


def finding(level, subject="rxe0"):
    return {"level": level, "check": "port", "subject": subject, "evidence": "is\nDOWN", "consequence": "stays on TCP",
            "remedy": "cable"}


@pytest.mark.parametrize("levels, verdict, figure", [(["ok", "warn"], PASSED, "3 warn, 3 ok"),
                                                     (["ok", "fail"], FAILED, "3 fail, 3 ok")])
def test_the_doctor_looks_at_both_hosts_and_from_one_to_the_other(out, levels, verdict, figure):
    both = ends(free_port=4711, policy=lambda path, other, ports, device: f"for {other} {ports}",
                doctor={"findings": [finding(level) for level in levels]}, Answerer=Forgettable())
    outcome = accept.doctor(FakeRun(out, both), 1)
    assert (outcome.verdict, outcome.figure) == (verdict, figure)
    asked = {role: [words for words in end.host.asked if words[0] in ("doctor", "Answerer")]
             for role, end in both.items()}
    own, other = "for 10.9.1.2 [3306, 4711]", "for 10.9.1.1 [3306, 4711]"
    assert asked == {"server": [("doctor", "ringroad", own),
                                ("Answerer", "ringroad", own, "10.9.1.1:4711", "/nowhere/answer.log")],
                     "client": [("doctor", "ringroad", other),
                                ("doctor", "ringroad", other, "--peer", "10.9.1.1:4711")]}
    assert set(json.loads((out / "doctor.json").read_text())) == {"server", "client", "client to server"}


@pytest.mark.parametrize("obstacles, taken", [({}, "client"), ({"client": "ssh goes by eth0"}, "server")])
def test_the_link_goes_down_where_both_hosts_stay_in_reach(out, obstacles, taken):
    both = ends(link=lambda address: {"of": address})
    for role, why in obstacles.items():
        both[role].host.answers["link_obstacle"] = why
    here = FakeRun(out, both)
    assert accept.link(here, 1) is FINE
    assert here.given[0][1:3] == (both[taken], {"of": both[taken].address})


def test_the_link_stays_up_where_a_host_would_be_lost_and_the_reasons_are_told(out):
    both = ends(link_obstacle="ssh goes by eth0, the device that is measured")
    with pytest.raises(CannotRun, match="client: ssh goes by eth0.*; server: ssh goes by eth0"):
        accept.link(FakeRun(out, both), 1)


def test_this_host_keeps_the_link_by_which_it_reaches_the_other(out):
    both = ends(link=lambda address: {})
    both["client"].host.is_remote = False
    accept.link(FakeRun(out, both), 1)
    assert both["client"].host.asked[1] == ("link_obstacle", "10.9.1.2", False, [["10.0.0.9", "10.0.0.1"]])


def test_a_device_is_removed_only_where_that_is_asked_for(out):
    both = ends(removal=lambda address, device: {"of": address})
    with pytest.raises(LeftOut, match="--remove-device is not given"):
        accept.device(FakeRun(out, both), 1)
    assert not both["client"].host.asked
    here = FakeRun(out, both, "--remove-device")
    assert accept.device(here, 1) is FINE and here.given[0][2] == {"of": "10.9.1.2"}
    both["client"].host.answers["removal"] = hosts.HostError("no auxiliary device")
    with pytest.raises(CannotRun, match="client: no auxiliary device"):
        accept.device(here, 1)


class Copy(Forgettable):
    def command(self):
        return "/copy/bin/ringroad"


def test_an_upgrade_wants_another_build_on_both_hosts(out):
    both = ends(Rolling=Copy(), ringroad_build=lambda command: command, ringroad_library=["lib", None])
    with pytest.raises(LeftOut, match="--upgrade is not given"):
        accept.upgrade(FakeRun(out, both), 1)
    here = FakeRun(out, both, "--upgrade", "/opt/next/bin/ringroad")
    assert accept.upgrade(here, 1) is FINE
    assert [end.ringroad for end in here.given[0][0].ends.values()] == ["/copy/bin/ringroad"] * 2
    with pytest.raises(CannotRun, match="server: --upgrade: ringroad has the library that ringroad has"):
        accept.upgrade(FakeRun(out, both, "--upgrade", "ringroad"), 1)
    both["client"].host.answers["ringroad_library"] = [None, "/opt/next: No such file"]
    with pytest.raises(CannotRun, match="client: --upgrade: /opt/next: No such file"):
        accept.upgrade(here, 1)


def test_a_bench_that_is_refused_cannot_run_and_says_what_helps(out, monkeypatch):
    monkeypatch.setattr(run, "perform", lambda *_: (_ for _ in ()).throw(run.Refused("apt-get install sysbench")))
    (out / "oltp").mkdir(parents=True)
    with pytest.raises(CannotRun, match="apt-get install sysbench"):
        accept.bench_step(accept.oltp.Oltp, "oltp", "rdma")(FakeRun(out, ends()), 5)
    assert (out / "oltp").exists()


def test_a_bench_that_could_not_run_before_begins_anew_with_its_minutes(out, monkeypatch):
    given = []
    monkeypatch.setattr(run, "perform", lambda kind, options: given.append(options) or 0)
    monkeypatch.setattr(accept_report, "of_bench", lambda *words: words)
    (out / "net").mkdir(parents=True)
    here = FakeRun(out, ends(), verdict=CANNOT_RUN)
    assert accept.bench_step(net.Net, "net", "rdma")(here, 7.5) == (out / "net", "rdma", 0)
    assert not (out / "net").exists() and given[0].budget == 7.5 and given[0].out == out / "net"
    assert given[0].inventory == Path("hosts.toml")


# ---- under load

class FakeLoad:
    """On RDMA as the list says, one look after the other; ends after so many waits."""

    def __init__(self, on_rdma, waits=99):
        self._on_rdma, self._waits = list(on_rdma), waits

    def goes_on_for(self, _seconds):
        self._waits -= 1
        return self._waits >= 0

    def is_on_rdma(self):
        looked = self._on_rdma.pop(0)
        if isinstance(looked, BaseException):
            raise looked
        return looked

    def reasons(self):
        return "4 x ON_TCP (qp_error; peer none)"


class Away:
    given = 0

    def give_back(self):
        self.given += 1


@pytest.mark.parametrize("on_rdma, waits, left, wrong", [
    ([False, False, False, True], 99, True, ""), ([True, True], 99, False, ""),
    ([False], 0, True, "the load was over before it was given back"),
    ([False] * 9, 3, True, "not on RDMA again 0 s after it was back: 4 x ON_TCP")])
def test_what_is_taken_under_load_is_given_back_and_the_streams_are_waited_for(on_rdma, waits, left, wrong):
    away = Away()
    host = FakeHost("client", {"Taken": away})
    found = accept.taken(hosts.End(host, "10.9.1.2", ""), {"take": 1}, FakeLoad(on_rdma, waits))
    assert away.given == 1 and found["left"] == left and host.asked == [("Taken", {"take": 1}, accept.AWAY_LIMIT_S)]
    assert ("back_s" in found) == (not wrong) and wrong in "".join(found.get("problems", [""]))


def test_streams_that_do_not_come_back_are_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(accept, "BACK_S", 0)
    found = accept.taken(hosts.End(FakeHost("client", {"Taken": Away()}), "", ""), {}, FakeLoad([False] * 99))
    assert found["problems"][0].startswith("not on RDMA again 0 s after it was back")


def test_what_is_taken_is_given_back_where_the_user_interrupts():
    away = Away()
    with pytest.raises(KeyboardInterrupt):
        accept.taken(hosts.End(FakeHost("client", {"Taken": away}), "", ""), {}, FakeLoad([KeyboardInterrupt()]))
    assert away.given == 1


def test_what_a_host_does_not_let_be_taken_cannot_run():
    host = FakeHost("client", {"Taken": hosts.HostError("ip link set: Operation not permitted")})
    with pytest.raises(CannotRun, match="client: ip link set: Operation not permitted"):
        accept.taken(hosts.End(host, "", ""), {}, FakeLoad([]))


@pytest.mark.parametrize("change, wrong", [
    ({}, []), ({"errors": 2}, []), ({"errors": 3}, ["3 queries failed; deadlocks explain 2 of them"]),
    ({"reconnects": 1}, ["sysbench reconnected 1 times"]), ({"exit_status": 1}, ["sysbench ended with status 1"]),
    ({"fatal": ["FATAL: gone"]}, ["FATAL: gone"]), ({"transactions": 0}, ["there was no transaction"])])
def test_a_load_without_a_query_lost_has_no_problem(change, wrong):
    report = {"exit_status": 0, "fatal": [], "errors": 0, "reconnects": 0, "transactions": 9, **change}
    assert accept.problems(report, 2) == wrong


# ---- the report

def row(carrier, rounds=1, failed=(), **ratios):
    return {"key": {"measure": "rate", "wait": "block", "connections": 1, "size": 64}, "carrier": carrier,
            "rounds": rounds, "failed": list(failed),
            "figures": {key: {"median": 5.0, "ratio": {"median": ratio, "min": ratio, "max": ratio}}
                        for key, ratio in ratios.items()}}


def bench_report(folder, *rows):
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(
        {"conclusions": {"Targets": [["what", "target"], ["rate", "reached"]]},
         "tables": [{"heading": "messages", "rows": list(rows)}]}))
    (folder / "net-rate.png").touch()
    return folder


@pytest.mark.parametrize("rows, status, wanted", [
    ([row("rdma", per_s=2.0, p50_us=1.5)], 0,
     Outcome(PASSED, "per second 5, 2.00 (2.00..2.00) of TCP's; 1 of 2 ratios to TCP lose", "net/report.md")),
    ([row("rdma", per_s=0.5), row("smc", 0)], 0,
     Outcome(PASSED, "per second 5, 0.50 (0.50..0.50) of TCP's; 1 of 1 ratios to TCP lose; 1 of 2 rows had no time",
             "net/report.md")),
    ([row("rdma", per_s=2.0), row("tcp", 0, ["refused"]), row("smc", 0, ["no SMC"])], 1,
     Outcome(FAILED, "per second 5, 2.00 (2.00..2.00) of TCP's; 0 of 1 ratios to TCP lose", "net/report.md",
             "refused")),
    ([row("rdma", 0, ["db1: no device"])], 0, Outcome(CANNOT_RUN, file="net/report.md", reason="db1: no device")),
    ([row("rdma", 0, ["it crashed"])], 1, Outcome(FAILED, file="net/report.md", reason="it crashed")),
    ([row("rdma", 0)], 0, Outcome(LEFT_OUT, file="net/report.md", is_late=True,
                                  reason="out of time: the same command goes on")),
])
def test_a_bench_has_the_verdict_of_its_rows(tmp_path, rows, status, wanted):
    assert accept_report.of_bench(bench_report(tmp_path / "net", *rows), "rdma", status) == wanted


def test_the_report_has_hosts_findings_ratios_that_lose_targets_and_plots(out):
    bench_report(out / "net", row("rdma", per_s=0.5, p50_us=0.5), row("tcp", per_s=1.0))
    (out / "doctor.json").write_text(json.dumps(
        {"server": {"findings": [finding("ok", "fine"), finding("warn", "eth0")]},
         "client": {"findings": [finding("fail", "rxe0")]}}))
    steps = [(step, FINE) for step in accept.STEPS if step.name == "net"]
    accept_report.write(out, steps, {"server": {"kernel": "6.1"}, "client": {"kernel": "6.12"}})
    text = (out / "report.md").read_text()
    assert "| kernel | 6.1 | 6.12 |" in text
    fail, warn = (f"- **{level}**, {role}, `port` {subject}: is DOWN. Means: stays on TCP. Mend: cable"
                  for level, role, subject in (("fail", "client", "rxe0"), ("warn", "server", "eth0")))
    assert 0 < text.index(fail) < text.index(warn) and "fine" not in text
    where = "| messages | connections 1 size 64 | Ringroad, RDMA |"
    assert f"{where} per second | **0.50 (0.50..0.50)** | 1 |" in text
    assert f"{where} p50 us | 0.50 (0.50..0.50) | 1 |" in text
    assert "| rate | reached |" in text and "![net/net-rate.png](net/net-rate.png)" in text
    assert [one["loses"] for one in json.loads((out / "report.json").read_text())["ratios"]["net"]] == [True, False]
