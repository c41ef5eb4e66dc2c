"""The merged report, from a recorded result."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from oltp import report

SAMPLE = Path(__file__).parent / "testdata" / "oltp-native-a-a.json"


@pytest.fixture
def part():
    return json.loads(SAMPLE.read_text())


def test_every_workload_and_figure_is_in_the_table(part):
    table = report.rows(part)
    assert len({len(row) for row in table}) == 1
    words = report.text([part])
    for expected in ("oltp_point_select", "oltp_read_write", "p99 ms", "min..max",
                     "switches/query", f"{len(part['workloads'][0]['rounds'])} rounds"):
        assert expected in words


def test_a_losing_channel_is_shown_as_worse(part):
    for pair in part["workloads"][0]["rounds"]:
        pair["channel"]["tps"] = pair["tcp"]["tps"] / 3
    summary = report.summarise(part)[0]
    assert summary["metrics"]["tps"]["verdict"] == "worse"
    assert "0.33" in report.text([part]) and "worse" in report.text([part])
    assert "worse" in report.markdown([part], None)


def test_failures_are_in_every_form_of_the_report(part):
    part["failures"].append("oltp_read_write round 1/6, rdma: 0 of 4 client streams were on rdma")
    assert "FAILED: oltp_read_write round 1/6" in report.text([part])
    assert "**FAILED**: oltp_read_write round 1/6" in report.markdown([part], None)


def test_equal_tables_are_claimed_only_when_they_were_equal(part):
    assert "equal tables" in report.text([part])
    differing = copy.deepcopy(part)
    differing["failures"].append("tables as written differ: 1 on tcp, 2 on shm")
    assert "equal tables" not in report.text([differing])
    assert "equal tables" not in report.text([part | {"equality": None}])


def test_the_carrier_of_the_bytes_is_proved(part):
    part.update(carrier="rdma", label="rdma", where="softroce")
    for workload in part["workloads"]:
        for pair in workload["rounds"]:
            pair["channel"].update(bytes={"tcp": 1, "channel": 999}, rdma_packets=1000)
            pair["channel"]["whole"]["bytes"] = {"tcp": 300, "channel": 1200}
            pair["channel"]["set_up"] = {"promotion_s": 0.4, "seconds": 0.7, "statements": 9}
            pair["tcp"]["set_up"]["seconds"] = 0.6
    part["workloads"][0]["rounds"][2]["channel"]["set_up"]["promotion_s"] = 0.9
    words = " ".join(report.text([part]).split())
    rounds = len(part["workloads"][0]["rounds"])
    assert "99.90 % of the bytes in the channel phases' windows crossed RDMA" in words
    assert "with set-up and warm-up, from before the connections on, 80.00 %" in words
    assert f"{1000 * rounds} packets in these windows and 0 in those over TCP" in words
    assert ("before a window took 0.60 s over TCP and 0.70 s over RDMA; all connections were seen "
            "on RDMA 0.40 s (at most 0.90 s) after they were up") in words


def test_a_promotion_that_did_not_come_is_not_given_a_time(part):
    part["workloads"][0]["rounds"][1]["channel"]["set_up"]["promotion_s"] = None
    first, second = report.summarise(part)
    assert first["set_up"]["promotion"] is None and second["set_up"]["promotion"]
    assert "were up" not in report.before_the_windows(first, "RDMA")


@pytest.mark.parametrize("where, carrier, factor, said", [
    ("softroce", "rdma", 0.7, True), ("softroce", "rdma", 1.4, False),
    ("softroce", "tcp", 0.7, False), ("native", "shm", 0.7, False)])
def test_rdma_that_loses_in_the_virtual_machine_is_given_the_reason(part, where, carrier, factor,
                                                                    said):
    part.update(where=where, carrier=carrier, label="tcp (A/A)" if carrier == "tcp" else carrier)
    for pair in part["workloads"][1]["rounds"]:
        pair["channel"]["tps"] = factor * pair["tcp"]["tps"]
        pair["channel"]["rdma"] = {"rxe0/1": {"sent_pkts": 3 * pair["channel"]["queries"]},
                                   "rxe1/1": {"sent_pkts": pair["channel"]["queries"],
                                              "rcvd_pkts": 7}}
    for pair in part["workloads"][0]["rounds"]:
        pair["channel"]["tps"] = 1.1 * pair["tcp"]["tps"]
    words = " ".join(report.proof(part))
    assert ("fewer transactions than TCP, by the medians, in oltp_read_write. " in words) == said
    assert ("(4.0 packets a query" in words) == said


def test_the_report_says_what_was_measured(part):
    assert report.WINDOW in report.markdown([part], None)
    assert " ".join(report.text([part]).split()).startswith(report.WINDOW)


def test_a_busy_machine_is_warned_about(part):
    assert "quieter" not in report.text([part | {"other_load": 0.02}])
    assert "40 % of this machine's processors meanwhile; repeat it on a quieter one" in \
        report.text([part | {"other_load": 0.4}])


def test_rounds_that_were_left_out_are_said(part):
    asked = part["parameters"]["rounds"]
    part["workloads"][1]["rounds"] = part["workloads"][1]["rounds"][:-2]
    assert f"{asked - 2} to {asked} of {asked} rounds" in report.heading(part)


def test_a_part_that_failed_before_its_first_round_is_reported(part, tmp_path):
    part["workloads"] = []
    part["failures"].append("no RDMA device has counters here")
    report.write([part], tmp_path)
    assert "no RDMA device" in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "oltp.png").exists()


def test_the_program_writes_all_files_and_fails_with_its_parts(part, tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(part))
    bad.write_text(json.dumps(part | {"failures": ["something"]}))

    def run(*results):
        return subprocess.run([sys.executable, report.__file__, *results, "--out",
                               tmp_path / "out"], capture_output=True, text=True)
    assert run(good).returncode == 0
    assert (tmp_path / "out" / "oltp.png").read_bytes().startswith(b"\x89PNG")
    assert "![throughput and latency](oltp.png)" in (tmp_path / "out" / "report.md").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())[0]["summary"]
    assert run(good, bad).returncode == 1


def test_a_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(SystemExit, match="x.json is no result of oltp_demo.py"):
        report.load(tmp_path / "x.json")
