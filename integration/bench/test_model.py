"""What `ringroad bench model` makes of results, by figures that can be followed by hand."""

import json

import pytest

from integration.bench import model, net, oltp, results

CARD = model.Card(latency_us=4.0, mb_per_s=1000.0, more_us=0.5)
# p50 and processor time of either end, by carrier, of a round trip of 64 bytes and of 1064.
PINGPONG = {"tcp": (20.0, 30.0), "shm": (14.0, 24.0), "shm-sleeps": (12.0, 22.0),
            "shm-polls": (2.0, 12.0)}
SETTINGS = {"place": "this host", "ringroad": "a build", "mariadb": "mariadbd 10.11"}
WORDS = ("--shm-instructions", "100", "--verbs-instructions", "600", "--instructions-per-s", "1e9")


def told(p50, cpu, operations=1000):
    """What net_load says of a run."""
    end = {"cpu_us_per_operation": cpu, "switches_per_operation": 1.0}
    return {"operations": operations, "seconds": 1.0, "operations_per_s": operations,
            "bytes_per_s": 1e6, "client": end, "server": end,
            "latency_us": {"p50": p50, "p99": p50, "p99.9": p50} if p50 else None}


def net_cells(carriers=tuple(PINGPONG), measures=("pingpong", "stream", "rate"), rounds=1):
    for number in range(1, rounds + 1):
        for carrier in carriers:
            key = {"connections": 1, "wait": "block", "carrier": carrier, "round": number}
            for size, time in zip((64, 1064), PINGPONG[carrier]):
                yield {"key": key | {"measure": "pingpong", "size": size},
                       "figures": net.figures_of("pingpong", told(time * number, time / 2), 0)}
            if carrier in ("tcp", "shm"):
                for measure, size in (("stream", net.LARGE), ("rate", net.SMALL)):
                    if measure in measures:
                        yield {"key": key | {"measure": measure, "size": size},
                               "figures": net.figures_of(measure, told(0, 20.0), 0)}


def oltp_cell(carrier="tcp", threads=1, p50_ms=2.0, server_us=40.0, answers=64):
    """20 queries a transaction, of 100 us by the median."""
    record = dict.fromkeys(oltp.KEPT) | {
        "carrier": carrier, "transactions": 10, "queries": 200, "p50_ms": p50_ms,
        "server_cpu_us_per_query": server_us, "client_cpu_us_per_query": 10.0,
        "bytes": {"tcp": 0, "channel": 0}, "rdma_packets": 0, "client_streams": [],
        "server_status": {"Bytes_received": 64 * 200, "Bytes_sent": answers * 200}}
    return {"key": {"threading": "connection", "workload": "read_only", "threads": threads,
                    "carrier": carrier, "round": 1}, "figures": oltp.figures_of(record)}


def keep(folder, settings, cells):
    with results.Results(folder, settings) as kept:
        for cell in cells:
            kept.add(cell["key"], figures=cell["figures"])


def write_results(folder, of_net=None, of_oltp=None, threads=(1,), **settings):
    """Both benches' folders, as arguments."""
    keep(folder / "net", SETTINGS | {"bench": "net"} | settings,
         net_cells() if of_net is None else of_net)
    keep(folder / "oltp", SETTINGS | {"bench": "oltp", "threading": ["connection"],
                                      "workloads": ["read_only"], "threads": list(threads)},
         [oltp_cell(), oltp_cell("shm", 1, 1.8, 36.0)] if of_oltp is None else of_oltp)
    return ["--net", str(folder / "net"), "--oltp", str(folder / "oltp"), *WORDS]


def printed(capsys, words):
    """The tables by the words of their headings before a colon, as {(workload, threads): {title: word}}."""
    status = model.main(words)
    text = capsys.readouterr().out
    found = {}
    for part in text.split("\n## ")[1:]:
        heading, *lines = part.split("\n")
        rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
        found[heading.partition(":")[0]] = {
            tuple(row[:2]): dict(zip(rows[0], row)) for row in rows[2:]} if rows else {}
    return status, found, text


def software():
    return model.Net(list(net_cells())).software("block")


def test_a_query_in_the_place_of_tcps_software_has_ringroads():
    found = model.predict(model.Query((64, 64), 100.0, 40.0, 10.0), software()[0], CARD)
    wire = 2 * 4.0 + 128 / 1000
    assert found["wire_us"] == pytest.approx(wire)
    assert found["time_sleeps"] == pytest.approx((100 - 20 + 12 + 2 * 0.5 + wire) / (100 + wire))
    assert found["time_polls"] == pytest.approx((100 - 20 + 2 + 2 * 0.5 + wire) / (100 + wire))
    assert found["time_best"] == pytest.approx((100 - 20 + wire) / (100 + wire))
    # Each end has one send and one receive.
    assert found["server_sleeps"] == pytest.approx((40 - 10 + 6 + 0.5) / 40)
    assert found["server_best"] == pytest.approx((40 - 10) / 40)
    assert found["room_us"] == pytest.approx(20 - 12 - 2 * 0.5)
    assert found["room_server_us"] == pytest.approx(10 - 6 - 0.5)


def test_a_card_that_costs_more_than_the_room_is_a_loss():
    dear = model.Card(4.0, 1000.0, more_us=4.5)
    found = model.predict(model.Query((64, 64), 100.0, 40.0, 10.0), software()[0], dear)
    assert found["room_us"] < 0 and found["time_sleeps"] > 1
    assert found["room_server_us"] < 0 and found["server_sleeps"] > 1


@pytest.mark.parametrize("sizes, us", [((64, 64), 20), ((1064, 1064), 30), ((564, 564), 25),
                                       ((64, 1064), 25), ((1, 20), 20), ((20, 564), 22.5)])
def test_a_message_between_two_sizes_costs_what_lies_between(sizes, us):
    assert software()[0].of("tcp", model.TIME, sizes) == pytest.approx(us)


def test_a_message_larger_than_any_that_was_measured_is_not_guessed(tmp_path, capsys):
    words = write_results(tmp_path, of_oltp=[oltp_cell(answers=3000)])
    status, tables, text = printed(capsys, words)
    assert status == 1
    assert tables["Time by a card of 1 us"]["read_only [1]", "1"]["sleeping"] == "-"
    assert "1. no ping-pong was as large as its 3000 bytes: ringroad bench net" in text
    assert "--sizes 64,1064,4096" in text


def test_each_row_has_its_ratios_and_the_check(tmp_path, capsys):
    status, tables, text = printed(capsys, [*write_results(tmp_path), "--latency", "4.8"])
    assert status == 0, text
    here = tables["A query here, in us"]["read_only", "1"]
    assert (here["time"], here["of it TCP: time"], here["bytes"]) == ("100.0", "20.0", "128")
    assert (here["Ringroad sleeping: time"], here["Ringroad polling: time"]) == ("13.0", "3.0")
    row = tables["Time by a card of 4.8 us"]["read_only", "1"]
    assert row["card and wire, us"] == "9.6"
    assert row["sleeping"].startswith("0.94 ") and row["polling"].startswith("0.84 ")
    assert tables["By any card"]["read_only", "1"]["server CPU, sleeping"].startswith("0.91 ")
    # Predicted by ping-pongs over shared memory; measured by sysbench over it.
    check = tables["The check"]["read_only", "1"]
    assert check["time: predicted"].startswith("0.94 ") and check["time: measured"].startswith("0.90 ")
    assert check["server CPU: predicted"].startswith("0.93 ")
    assert check["server CPU: measured"].startswith("0.90 ")
    alone = ("ping-pong, 64 bytes", "1")
    assert tables["By any card"][alone]["server CPU, at best"].startswith("0.00 ")
    assert tables["Time by a card of 4.8 us"][alone]["sleeping"].startswith("0.76 ")
    assert "| TCP |" in text and "- latency: 4.8 us" in text


def test_each_latency_has_its_table_with_the_bandwidth(tmp_path, capsys):
    words = [*write_results(tmp_path), "--latency", "200us,100", "--bandwidth", "0.008Gb/s"]
    _, tables, text = printed(capsys, words)
    by_cards = [tables[f"Time by a card of {latency} us"]["read_only", "1"] for latency in (100, 200)]
    assert [row["card and wire, us"] for row in by_cards] == ["328.0", "528.0"]
    assert [row["sleeping"].partition(" ")[0] for row in by_cards] == ["0.98", "0.99"]
    assert "- latency: 100, 200 us" in text and "- bandwidth: 0.008 Gb/s" in text


def test_what_is_asked_is_what_the_field_measured_and_more(tmp_path, capsys):
    _, tables, _ = printed(capsys, write_results(tmp_path))
    assert [heading for heading in tables if heading.startswith("Time by")] == [
        f"Time by a card of {latency} us" for latency in ("1", "1.26", "2", "5")]


def test_threads_that_wait_for_each_other_have_no_ratio_of_time(tmp_path, capsys):
    words = write_results(tmp_path, threads=(1, 16), of_oltp=[oltp_cell(), oltp_cell(threads=16)])
    _, tables, _ = printed(capsys, words)
    time, row = (tables[name]["read_only", "16"] for name in ("Time by a card of 1 us", "By any card"))
    assert time["sleeping"] == time["at best"] == row["time, room us"] == "-"
    assert row["server CPU, sleeping"].startswith("0.91 ")
    # Shared memory was not measured under this load.
    assert tables["The check"]["read_only", "16"]["server CPU: measured"] == "-"


def test_the_spread_is_of_all_rounds():
    found = model.Net(list(net_cells(rounds=2)))
    settings = {"threading": ["connection"], "workloads": ["read_only"], "threads": [1]}
    for row in (next(model.pingpong_rows(found, CARD)),
                next(model.oltp_rows(settings, [oltp_cell()], found, CARD))):
        spread = row.figures["tcp_us"]
        assert (spread["min"], spread["max"], spread["median"]) == (20, 40, 30)


def test_one_direction_is_bounded_by_the_card():
    tcp, shm = ({"server_cpu_us": server, "client_cpu_us": client}
                for server, client in ((60.0, 100.0), (20.0, 10.0)))
    found = model.one_way(tcp, shm, 65536, CARD)
    assert found["tcp"] == pytest.approx(65536 / 80)
    assert found["ringroad"] == pytest.approx(65536 / 20.5)
    assert found["ratio"] == pytest.approx(1000 / (65536 / 80))


@pytest.mark.parametrize("cells, missing", [
    (list(net_cells(measures=("pingpong",))), "no round has stream over tcp and shm"),
    (list(net_cells(measures=("pingpong", "stream"))), "no round has rate over tcp and shm")])
def test_what_was_not_measured_in_one_direction_is_named(tmp_path, capsys, cells, missing):
    status, _, text = printed(capsys, write_results(tmp_path, of_net=cells))
    assert status == 1 and f"{missing}: ringroad bench net --measures" in text


def test_a_load_that_was_not_measured_over_tcp_is_named(tmp_path, capsys):
    status, tables, text = printed(capsys, write_results(tmp_path, of_oltp=[oltp_cell("shm")]))
    assert status == 1 and ("read_only [1]", "1") in tables["By any card"]
    assert "1. it was not measured over TCP: ringroad bench oltp --carriers tcp,shm --workloads " \
           "read_only --threads 1 --threading connection" in text


def refused(capsys, words):
    assert model.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("carriers", [("tcp", "shm", "shm-sleeps"), ("shm", "shm-sleeps", "shm-polls")])
def test_without_a_carriers_ping_pong_there_is_no_model(tmp_path, capsys, carriers):
    words = write_results(tmp_path, of_net=net_cells(carriers))
    assert "no round has all of tcp, shm, shm-sleeps, shm-polls" in refused(capsys, words)


def test_results_of_another_kind_are_refused(tmp_path, capsys):
    words = write_results(tmp_path)
    folders = {name: str(tmp_path / name) for name in ("net", "oltp")}
    assert "is of bench oltp, not of net" in refused(capsys, [*words, "--net", folders["oltp"]])
    assert "settings.json: No such file" in refused(capsys, [*words, "--oltp", str(tmp_path)])
    settings = tmp_path / "net" / results.SETTINGS
    for change, why in (({"place": "soft-roce"}, "was measured on soft-roce"),
                        ({"ringroad": "another"}, "are of two builds"),
                        ({"awake": True}, "one was measured with --awake")):
        settings.write_text(json.dumps(SETTINGS | {"bench": "net"} | change))
        assert why in refused(capsys, words)
    for text, why in (("{", "settings.json:1: is no JSON"), ("[]", "settings.json:1: holds no settings")):
        settings.write_text(text)
        assert why in refused(capsys, words)


@pytest.mark.parametrize("words, why", [
    (WORDS[2:], "--shm-instructions is missing: `ctest --test-dir build -L cost -V` prints it"),
    ([*WORDS, "--latency", "1us,4.8ms"], "\"4.8ms\" is not a positive number of us"),
    ([*WORDS, "--bandwidth", "0Gb/s"], "is not a positive number of Gb/s"),
    ([*WORDS, "--instructions-per-s", "inf"], "is not a positive number")])
def test_wrong_words_are_refused(capsys, words, why):
    with pytest.raises(SystemExit) as ended:
        model.main(list(words))
    assert ended.value.code == 2 and why in capsys.readouterr().err
