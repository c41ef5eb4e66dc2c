"""RDMA device counters, from a tree like sysfs and from the recorded answer of `rdma`."""

from pathlib import Path

from integration.lib import rdma_counters

RECORDED = (Path(__file__).parent / "testdata" / "rdma_statistic.json").read_text()


def tree(root, sent, received):
    """Two devices as rdma_rxe shows them; the first has device counters too."""
    for device in ("rxe0", "rxe1"):
        counters = root / device / "ports" / "1" / "hw_counters"
        counters.mkdir(parents=True, exist_ok=True)
        (counters / "sent_pkts").write_text(f"{sent}\n")
        (counters / "rcvd_pkts").write_text(f"{received}\n")
        (counters / "lifespan").write_text("12\n")
        (counters / "vendor").write_text("not a number\n")
    (root / "rxe0" / "hw_counters").mkdir(exist_ok=True)
    (root / "rxe0" / "hw_counters" / "resets").write_text("3\n")


def test_counters_of_devices_and_ports_are_read(tmp_path):
    tree(tmp_path, 10, 20)
    assert rdma_counters.read(tmp_path) == {
        "rxe0": {"resets": 3}, "rxe0/1": {"sent_pkts": 10, "rcvd_pkts": 20},
        "rxe1/1": {"sent_pkts": 10, "rcvd_pkts": 20}}


def test_only_what_moved_is_in_a_difference(tmp_path):
    tree(tmp_path, 10, 20)
    before = rdma_counters.read(tmp_path)
    (tmp_path / "rxe1/ports/1/hw_counters/sent_pkts").write_text("17\n")
    assert rdma_counters.difference(rdma_counters.read(tmp_path), before) == \
        {"rxe1/1": {"sent_pkts": 7}}


def test_packets_are_summed_over_devices_and_directions(tmp_path):
    tree(tmp_path, 0, 0)
    before = rdma_counters.read(tmp_path)
    tree(tmp_path, 5, 7)
    (tmp_path / "rxe0" / "hw_counters" / "resets").write_text("900\n")
    grown = rdma_counters.difference(rdma_counters.read(tmp_path), before)
    assert rdma_counters.packets(grown) == 2 * (5 + 7)


def test_a_device_that_appeared_counts_from_zero():
    assert rdma_counters.difference({"rxe9/1": {"sent_pkts": 4}}, {}) == \
        {"rxe9/1": {"sent_pkts": 4}}


def test_the_tools_answer_has_the_same_form():
    counters = rdma_counters.parse_tool(RECORDED)
    assert set(counters) == {"rxe0/1", "rxe1/1"}
    assert counters["rxe1/1"]["sent_pkts"] == 0
    assert "ifname" not in counters["rxe1/1"] and "port" not in counters["rxe1/1"]


def test_a_machine_without_devices_has_no_counters():
    assert rdma_counters.parse_tool("") == {}


def test_nothing_is_waited_for_without_devices(monkeypatch):
    looks = []
    monkeypatch.setattr(rdma_counters, "read", lambda: looks.append(1) or {})
    assert rdma_counters.read_when_quiet() == {}
    assert len(looks) == 1
