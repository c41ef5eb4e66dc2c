"""The release before this one and this one, at the two ends of connections on one host, over shared memory.

guest/versions.py has the same over RDMA.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from integration.acceptance import support
from integration.acceptance.test_galera import ADDRESSES, Loaded, host_for_nodes, needs_galera
from integration.lib import galera, processes

from . import previous

TALKER = Path(__file__).parent / "talker.py"
COUNT = 20
ANSWER_S = 60
RULE = {"promote_after": "{ messages = 2 }"}
PAIRS = [("previous", "today"), ("today", "previous")]
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # of every host


@pytest.fixture(name="builds", scope="module")
def fixture_builds():
    return {"previous": previous.build(), "today": support.BUILD}


class Side:
    """A process under one version, and what either version's command says about it."""

    def __init__(self, host, build, policy, *words):
        log = host.directory / f"{words[0]}.log"
        self.talker = processes.Talker(["/usr/bin/python3", "-I", TALKER, *words], log,
                                       host.preload(policy, library=build / "lib" / "libringroad.so"))
        self.pid = self.talker.pid

    def tell(self, line):
        self.talker.tell(line)
        return self.line()

    def line(self):
        return self.talker.line(processes.patient(ANSWER_S))


def for_a_look(builds):
    """Whose command looks: the previous one knows no file of today's library in a container."""
    inside = os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE
    if inside:
        print("not in the initial pid namespace: the previous version's command was not tried")
    return [builds["today"]] if inside else list(builds.values())


def command(build, *words):
    return subprocess.run([build / "bin" / "ringroad", *map(str, words)], capture_output=True,
                          text=True, check=False)


def streams(build, host, pid):
    done = command(build, "ss", "--json", "--directory", host.runtime, "--pid", pid)
    assert done.returncode == 0, done.stderr
    return [stream for process in json.loads(done.stdout)["processes"]
            for stream in process["streams"]]


def carriers(build, host, pid):
    return sorted(stream["carrier"] for stream in streams(build, host, pid))


class Pair:
    """Two processes with connections between them; `rule` is what the policy's says besides."""

    def __init__(self, host, builds, listener, connector, address="127.0.0.1", count=COUNT, **rule):
        self.host, self.builds, self.count = host, builds, count
        policy = host.policy("policy", ["1-65535"], **RULE | rule)
        self.carrier = rule.get("via", "shm")
        self.server = Side(host, builds[listener], policy, "serve", address)
        self.client = Side(host, builds[connector], policy, "ask", address, self.server.line(), count)
        assert self.client.line() == "done 0"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.talker.end()
        self.server.talker.end()

    def are_on(self, carrier, questions=5):
        """Every stream at both ends, as both commands tell; questions go on meanwhile."""
        def all_are():
            self.do(f"ask {questions}", 100 * questions)
            return all(carriers(build, self.host, side.pid) == [carrier] * self.count
                       for build in for_a_look(self.builds) for side in (self.server, self.client))
        support.wait_for(all_are, f"all streams to be on {carrier}", 60)

    def do(self, line, bytes_each):
        assert self.client.tell(line) == f"done {self.count * bytes_each}"

    def set(self, build, pid, mode):
        done = command(build, "set", "--directory", self.host.runtime, "--wait", 30, pid, mode)
        assert done.returncode == 0, (done.stdout, done.stderr)

    def are_moved_by_either_command(self):
        self.are_on(self.carrier)
        for build in for_a_look(self.builds):
            for side in (self.server, self.client):
                self.set(build, side.pid, "tcp")
                self.are_on("tcp")
                self.set(build, side.pid, "auto")
                self.set(build, self.client.pid, "rdma")
                self.are_on(self.carrier)
                self.set(build, self.client.pid, "auto")

    def lose_nothing_at_forks(self):
        """Each fork while all streams are on the carrier: the release before loses what is unread in a switch."""
        for _ in range(3):
            self.are_on(self.carrier)
            self.do("forks", 5000)
            self.do("ask 10", 1000)

    def lose_nothing_that_came_before_the_switch(self):
        for _ in range(2):
            self.do("late 3000", 3400)
            self.do("ask 10", 1000)


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.mark.parametrize("listener, connector", PAIRS)
def test_the_versions_share_channels_and_an_operator_moves_both_with_either_command(
        host, builds, listener, connector):
    with Pair(host, builds, listener, connector) as pair:
        pair.are_moved_by_either_command()
        side = pair.server if listener == "today" else pair.client
        for stream in streams(builds["today"], host, side.pid):
            assert stream["protocol"] == 1 and not stream["gives_back"], stream


@pytest.mark.parametrize("listener, connector", PAIRS)
def test_streams_of_two_versions_lose_nothing_when_the_client_forks(host, builds, listener, connector):
    with Pair(host, builds, listener, connector) as pair:
        pair.lose_nothing_at_forks()


@pytest.mark.parametrize("listener, connector", PAIRS)
def test_bytes_from_before_the_switch_reach_a_child_whatever_its_peers_version(
        host, builds, listener, connector):
    with Pair(host, builds, listener, connector) as pair:
        pair.lose_nothing_that_came_before_the_switch()


def test_two_ends_of_this_version_give_bytes_back(host, builds):
    with Pair(host, builds, "today", "today") as pair:
        pair.are_on("shm")
        assert all(stream["gives_back"] for stream in streams(builds["today"], host, pair.client.pid))
        pair.lose_nothing_that_came_before_the_switch()


def test_what_watches_reads_processes_of_the_other_version(host, builds):
    with Pair(host, builds, "previous", "previous") as pair:
        pair.are_on("shm")
        done = command(builds["today"], "top", "--directory", host.runtime, "--batch", "-n", 1, "-d",
                       0.2, "--json")
        assert done.returncode == 0, done.stderr
        reading = json.loads(done.stdout)
        assert reading["skipped"] == 0, reading
        done = command(builds["today"], "ab", "--directory", host.runtime, "--rounds", 1, "--period",
                       "200ms", "--warm-up", "0", pair.server.pid, "--", "sleep", 60)
        assert done.returncode == 0, (done.stdout, done.stderr)


class Mixed(Loaded):
    """A cluster whose nodes are asked by the command of their own version."""

    def __init__(self, host, cluster, builds):
        super().__init__(host, cluster)
        self.builds = builds

    def build_of(self, node):
        maps = Path(f"/proc/{node.pid}/maps").read_text()
        return next(build for build in self.builds.values()
                    if f"{build / 'lib' / 'libringroad.so'}" in maps)

    def group_streams(self, node):
        ports = (f":{galera.GROUP_PORT}",)
        return [stream for stream in streams(self.build_of(node), self.host, node.pid)
                if stream["local"].endswith(ports) or stream["remote"].endswith(ports)]


@support.needs_mariadb
@needs_galera
def test_a_cluster_is_upgraded_node_by_node_and_keeps_its_channels(builds, tmp_path):
    with host_for_nodes() as host:
        policy = host.policy("galera", [galera.GROUP_PORT, galera.IST_PORT], **RULE)
        preload = {name: host.preload(policy, library=build / "lib" / "libringroad.so")
                   for name, build in builds.items()}
        with galera.Cluster(support.prepared_data(), host.directory / "nodes", ADDRESSES,
                            support.free_port(ADDRESSES[0]), preload["previous"]) as cluster:
            loaded = Mixed(host, cluster, builds)
            run = loaded.start(tmp_path)
            try:
                loaded.is_all_on("shm")
                cluster.preload = preload["today"]
                for index in (2, 1):
                    cluster.nodes[index].stop()
                    loaded.goes_on()
                    cluster.again(index)
                    loaded.is_all_on("shm")
                    loaded.goes_on()
                # The operator's switch, of two versions at once.
                loaded.set_mode("tcp")
                loaded.is_all_on("tcp")
                loaded.set_mode("auto")
                loaded.set_mode("rdma")
                loaded.is_all_on("shm")
                loaded.goes_on()
                loaded.finish()
            finally:
                run.kill()
            loaded.nodes_agree()
            # The one that was written to is the last.
            cluster.nodes[0].stop()
            cluster.again(0)
            loaded.is_all_on("shm")
            assert {loaded.build_of(node) for node in cluster.nodes} == {builds["today"]}
            loaded.nodes_agree()
