"""What RDMA may do to a running load without an error, run inside the virtual machine by boots.py.

   sysbench, crowd.py call ── 10.9.0.1 rxe0 v0 ═══ veth ═══ v1 rxe1 10.9.1.1 ── mariadbd, crowd.py serve
                                             ▲               ▲
                                        netem and ip link do their harm here

One uninterrupted load lasts through all of it, in this order. What it has written is compared with what the
same load leaves in a server that is on TCP and is not harmed.
"""

import contextlib
import json
import os
import signal
import subprocess
import time

import pytest

from integration.lib import checks, processes

from .. import increments, support
from .one_host import ADDRESS, LATER, NETWORK, queue_pairs, server_of, start_load
from ..test_sysbench import INCREMENTS, check_report

CABLE = ("v0", "v1")
DEVICES = ("rxe0", "rxe1")
CLIENT = os.environ.get("RINGROAD_CLIENT_ADDR", "")
SERVER_MAC = "02:00:00:09:01:01"
ROCE_PORT = "4791"
THREADS = 4
MOST_S = 120
STOPPED_S = 3
FAILOVER_STREAMS = 24
FAILOVER_ROUNDS = 4


def tool(*words):
    subprocess.run([str(word) for word in words], check=True)


@contextlib.contextmanager
def netem(*harm, only_rdma=False):
    """Both ends of the cable do `harm` to what they send: to all of it, or to RoCE's packets."""
    try:
        for end in CABLE:
            if only_rdma:
                # Nothing goes into the fourth band by its type of service, which MariaDB sets.
                tool("tc", "qdisc", "add", "dev", end, "root", "handle", "1:", "prio", "bands", "4")
                tool("tc", "qdisc", "add", "dev", end, "parent", "1:4", "netem", *harm)
                tool("tc", "filter", "add", "dev", end, "parent", "1:0", "protocol", "ip", "prio", "1",
                     "u32", "match", "ip", "dport", ROCE_PORT, "0xffff", "flowid", "1:4")
            else:
                tool("tc", "qdisc", "add", "dev", end, "root", "netem", *harm)
        yield
    finally:
        for end in CABLE:
            subprocess.run(["tc", "qdisc", "del", "dev", end, "root"], check=False)


def reach_over_the_cable(address):
    """As layout-pair has it for the server's end."""
    tool("ip", "neigh", "replace", address, "lladdr", SERVER_MAC, "dev", CABLE[0], "nud", "permanent")
    tool("ip", "route", "replace", address, "dev", CABLE[0], "src", CLIENT, "table", "100")


@contextlib.contextmanager
def queues():
    """Before both ends, as a card has them: what is sent is lost behind a queue.

    Without, veth says that it has dropped a packet whose other end is down, and Soft-RoCE sends it again at
    once, for ever, in the process's own ibv_post_send() (Linux 6.1: a processor that never comes back).
    """
    for end in CABLE:
        tool("tc", "qdisc", "add", "dev", end, "root", "pfifo")
    try:
        yield
    finally:
        for end in CABLE:
            tool("tc", "qdisc", "del", "dev", end, "root")


def without_connection_manager():
    """Devices whose queue pair for the messages of connecting the kernel has left in error.

    Soft-RoCE of Linux 6.12 does so for good when such a message meets a link that is down. Then rping
    connects no more, either, until the device is made anew.
    """
    shown = subprocess.run(["rdma", "-j", "resource", "show", "qp"], check=True, capture_output=True, text=True)
    return [pair["ifname"] for pair in json.loads(shown.stdout)
            if pair["type"] == "GSI" and pair["state"] == "ERR"]


def make_anew(device):
    # It returns when nobody has the device open any more; a server listens at its address besides.
    tool("timeout", "20", "rdma", "link", "delete", device)
    tool("rdma", "link", "add", device, "type", "rxe", "netdev", CABLE[DEVICES.index(device)])


@contextlib.contextmanager
def link_down(servers=(ADDRESS,)):
    with queues():
        tool("ip", "link", "set", CABLE[0], "down")
        try:
            yield
        finally:
            tool("ip", "link", "set", CABLE[0], "up")
            for address in servers:  # which the kernel has forgotten with the link
                reach_over_the_cable(address)
            for device in without_connection_manager():
                make_anew(device)


@pytest.fixture(name="modules", scope="module", autouse=True)
def fixture_modules():
    for module in ("sch_netem", "sch_prio", "cls_u32"):
        tool("modprobe", module)


@pytest.fixture(name="host", scope="module")
def fixture_host(tmp_path_factory):
    return support.Host(tmp_path_factory.mktemp("faults"))


class Harmed:
    """The load that everything is done to."""

    def __init__(self, host, plain, server, preload, directory):
        self.host, self.plain, self.server = host, plain, server
        self.directory = directory
        self.load = increments.UntilTold(directory / "stop")
        self.run = start_load(server, INCREMENTS, directory / "log", THREADS, preload=preload,
                              more=self.load.go_on)
        self.ends = (self.run.pid, server.pid)

    def finish(self):
        self.load.stop()
        report = self.run.finish()
        check_report(report)
        assert report["transactions"] == self.load.count() > 0
        again = start_load(self.plain, INCREMENTS, self.directory / "again", THREADS,
                           more=self.load.repeat)
        assert not again.goes_on_for(MOST_S), "the same load over TCP does not end"
        check_report(again.finish())

    def moved(self, carrier):
        totals = self.host.ss(self.server.pid)["totals"][carrier]
        return totals["rx_bytes"]

    def goes_on_over(self, carrier):
        before = self.moved(carrier)
        support.wait_for(lambda: self.moved(carrier) > before, f"queries over {carrier}")
        assert self.run.goes_on_for(0), "the load was over too soon"

    def carriers(self):
        return [stream["carrier"] for pid in self.ends for stream in self.host.streams(pid)]

    def is_on_rdma(self):
        return self.carriers() == ["rdma"] * 2 * THREADS

    def comes_to_rdma(self):
        """On the operator's word: the pause after a failure does not count then."""

        def told():
            subprocess.run([self.host.tool.command, "set", "--directory", self.host.runtime,
                            "--wait", "1", *map(str, self.ends), "rdma"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            return self.is_on_rdma()

        support.wait_for(told, "all streams on RDMA", 60)
        self.goes_on_over("channel")

    def comes_back_by_itself(self):
        support.wait_for(self.is_on_rdma, "all streams on RDMA again", 60)
        self.goes_on_over("channel")

    def leaves_rdma(self):
        try:
            support.wait_for(lambda: self.carriers() == ["tcp"] * 2 * THREADS, "all streams on TCP")
        except processes.ProcessError as problem:
            raise AssertionError([(pid, stream) for pid in self.ends
                                  for stream in self.host.streams(pid)]) from problem
        self.goes_on_over("tcp")


@pytest.fixture(name="load", scope="module")
def fixture_load(host, tmp_path_factory):
    policy = host.policy("faults", ["1-65535"], via="rdma", subnet=NETWORK,
                         promote_after="{ messages = 1 }")
    preload = host.preload(policy)
    with server_of(host, "plain", None) as plain, \
            server_of(host, "harmed", host.preload(policy)) as server:
        os.setpriority(os.PRIO_PROCESS, server.pid, LATER)
        load = Harmed(host, plain, server, preload, tmp_path_factory.mktemp("load"))
        try:
            yield load
        finally:
            load.run.kill()


def test_lost_packets_cost_no_query(load):
    load.comes_to_rdma()
    with netem("loss", "2%"):
        before = load.moved("channel") + load.moved("tcp")
        support.wait_for(lambda: load.moved("channel") + load.moved("tcp") > before + 50_000,
                         "queries in spite of it", 60)
        assert load.run.goes_on_for(0)


def test_a_fabric_that_goes_dark_costs_no_query_and_is_used_again_when_it_is_back(load):
    load.comes_to_rdma()
    with netem("loss", "100%", only_rdma=True):
        load.leaves_rdma()
        for pid in load.ends:
            assert {stream["reason"] for stream in load.host.streams(pid)} <= {
                "qp_error", "peer_left", "peer_gone", "pending", "timeout", "peer_gave_up"}
    load.comes_back_by_itself()


def test_a_link_that_goes_down_costs_no_query(load):
    load.comes_to_rdma()
    with link_down():
        assert load.run.goes_on_for(2)
    load.comes_back_by_itself()


@pytest.mark.parametrize("end", [0, 1], ids=["client", "server"])
def test_a_device_that_is_taken_away_and_comes_back_costs_no_query(load, end):
    load.comes_to_rdma()
    # It returns when nobody has the device open any more; a server listens at its address besides.
    tool("timeout", "20", "rdma", "link", "delete", DEVICES[end])
    load.leaves_rdma()
    tool("rdma", "link", "add", DEVICES[end], "type", "rxe", "netdev", CABLE[end])
    load.comes_back_by_itself()


def test_a_device_is_let_go_by_a_process_that_has_nothing_on_it_any_more(tmp_path):
    """Nothing but its node in /dev tells such a process of the removal."""
    host = support.Host(tmp_path)
    preload = host.preload(host.policy("gone", ["1-65535"], via="rdma", subnet=NETWORK,
                                       promote_after="{ messages = 1 }"))
    with support.Talker("serve", ADDRESS, 0, preload=preload) as server:
        port = server.line().split()[1]
        with support.Talker("call", ADDRESS, port, preload=preload, program="crowd.py") as caller:
            assert caller.tell("open 1") == "ok"

            def on_rdma():
                assert caller.tell("talk 0 1 1 2") == "ok"
                return [stream["carrier"] for stream in host.streams(caller.pid)] == ["rdma"]

            support.wait_for(on_rdma, "the stream to be on RDMA")
            assert caller.tell("close") == "ok"
            support.wait_for(lambda: not host.streams(caller.pid), "the stream to end")
            make_anew(DEVICES[0])
            assert caller.tell("open 1") == "ok"
            support.wait_for(on_rdma, "a new stream to be on RDMA")


@pytest.mark.parametrize("end", ["client", "server"])
def test_an_end_that_is_stopped_goes_on_where_it_was(load, end):
    load.comes_to_rdma()
    pid = load.ends[end == "server"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert load.run.goes_on_for(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    load.goes_on_over("channel")


def test_after_all_of_that_the_tables_are_as_without_it(load):
    load.finish()
    assert checks.checksums(load.server) == checks.checksums(load.plain)
    support.wait_for(lambda: queue_pairs() == 0, "the queue pairs to go")


def test_a_server_that_is_killed_ends_its_clients_as_over_tcp(load):
    run = start_load(load.server, "oltp_point_select", load.directory / "killed", THREADS, seconds=60,
                     preload=load.host.preload(load.host.directory / "faults.toml"))
    load.host.wait_for_channels(run.pid, THREADS)
    os.kill(load.server.pid, signal.SIGKILL)
    assert not run.goes_on_for(20), "a client waits for a dead server"
    support.wait_for(lambda: queue_pairs() == 0, "the queue pairs to go")


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@pytest.mark.parametrize("detect_ms", [100, 500])
def test_the_first_byte_over_tcp_comes_soon_after_the_fabric_went_dark(tmp_path, detect_ms):
    host = support.Host(tmp_path)
    policy = host.policy("dark", ["1-65535"], via="rdma", subnet=NETWORK,
                         promote_after="{ messages = 1 }", detect=f'"{detect_ms}ms"')
    preload = host.preload(policy)
    took_ms = []
    with support.Talker("serve", ADDRESS, preload=preload, program="crowd.py") as server:
        port = server.line().split()[1]
        with support.Talker("call", ADDRESS, port, preload=preload, program="crowd.py") as caller:
            assert caller.tell(f"open {FAILOVER_STREAMS}") == "ok"
            for _ in range(FAILOVER_ROUNDS):

                def promoted():
                    subprocess.run([host.tool.command, "set", "--directory", host.runtime, "--wait",
                                    "2", str(caller.pid), "rdma"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, check=False)
                    assert caller.tell(f"talk 0 1 {FAILOVER_STREAMS} 2") == "ok"
                    return len(host.on_channel(caller.pid)) == FAILOVER_STREAMS

                support.wait_for(promoted, "all streams on RDMA", 60)
                caller.write(f"ping {FAILOVER_STREAMS} 6")
                before = host.ss(caller.pid)["totals"]["channel"]["rx_bytes"]
                support.wait_for(lambda before=before: host.ss(caller.pid)["totals"]["channel"]
                                 ["rx_bytes"] > before, "the first round trips")
                began_ns = time.monotonic_ns()
                with netem("loss", "100%", only_rdma=True):
                    late = json.loads(caller.line())
                    # Some ask again meanwhile, and are answered as soon as the fabric is there.
                    assert {stream["carrier"] for stream in host.streams(caller.pid)} == {"tcp"}
                assert len(late) == FAILOVER_STREAMS
                # A stream's longest silence from then on: the first byte over TCP ends it.
                took_ms += [max(wait_ns for wait_ns, end_ns in answers if end_ns > began_ns) / 1e6
                            for answers in late]
    took_ms.sort()
    median, p99 = quantile(took_ms, 0.5), quantile(took_ms, 0.99)
    report = (f"| {detect_ms} ms | {len(took_ms)} | {median:.0f} ms | {p99:.0f} ms | "
              f"{took_ms[-1]:.0f} ms |")
    print(report)
    if os.environ.get("OUT"):
        with open(os.path.join(os.environ["OUT"], "failover.md"), "a", encoding="ascii") as file:
            file.write(report + "\n")
    # A device may take four times the time that it was told (IBTA 1.4, 9.7.6.1.3).
    assert p99 < 4 * detect_ms + 1000
