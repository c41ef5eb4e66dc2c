"""A Ceph cluster whose objects are in memory: a monitor, a manager, two OSDs, and rados as a client.

     rados ══ mon, osd.0 ═══ osd.1       each object is on both OSDs
"""

import hashlib
import os
import re
import uuid
from contextlib import ExitStack

import pytest

from integration.acceptance import support
from integration.acceptance.test_programs import needs, output
from integration.lib import processes

pytestmark = needs("ceph-mon", "ceph-mgr", "ceph-osd", "rados", "monmaptool")
POOL = "pool"
OSDS = 2
OBJECT_BYTES = 5_000_000
WRITTEN_S, SIZE, AT_ONCE = 2, 65536, 4


@pytest.fixture(name="host")
def fixture_host():
    with processes.WorkDirectory("ringroad-ceph") as work:
        yield support.Host(work)


class Cluster:
    def __init__(self, host, preload):
        self.host, self.children = host, {}
        self.environment = {**preload, "CEPH_CONF": str(host.directory / "ceph.conf")}
        self._stack = ExitStack()

    def ask(self, *words):
        return output(["timeout", support.ANSWER_S, *words], self.environment).decode()

    def start(self, name, *command):
        log = self.host.directory / f"{name}.out"
        child = self.children[name] = processes.Child([*command, "-f"], log, self.environment)
        self._stack.callback(child.kill)

    def __enter__(self):
        work = self.host.directory
        monitor = f"[v2:127.0.0.1:{support.free_port()},v1:127.0.0.1:{support.free_port()}]"
        fsid = str(uuid.uuid4())
        (work / "ceph.conf").write_text(
            f"[global]\nfsid = {fsid}\nmon_host = {monitor}\n"
            "auth_cluster_required = none\nauth_service_required = none\n"
            "auth_client_required = none\n"
            f"osd_pool_default_size = {OSDS}\nosd_crush_chooseleaf_type = 0\n"
            "public_addr = 127.0.0.1\ncluster_addr = 127.0.0.1\n"
            f"run_dir = {work}\nadmin_socket = {work}/$name.asok\nlog_file = {work}/$name.log\n"
            f"mon_data = {work}/mon\nmgr_data = {work}/mgr\nosd_data = {work}/osd.$id\n"
            "osd_objectstore = memstore\nmemstore_device_bytes = 1073741824\n"
            "mon_data_avail_crit = 1\nmgr_initial_modules =\n")
        try:
            for name in ("mon", "mgr", *(f"osd.{number}" for number in range(OSDS))):
                (work / name).mkdir()
            output(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, work / "monmap"])
            self.ask("ceph-mon", "--mkfs", "-i", "a", "--monmap", work / "monmap")
            self.start("mon", "ceph-mon", "-i", "a")
            self.ask("ceph", "-s")
            self.start("mgr", "ceph-mgr", "-i", "x")
            for number in range(OSDS):
                own = str(uuid.uuid4())
                self.ask("ceph", "osd", "new", own, number)
                self.ask("ceph-osd", "--mkfs", "-i", number, "--osd-uuid", own)
                self.start(f"osd.{number}", "ceph-osd", "-i", str(number))
            support.wait_for(lambda: f"{OSDS} up" in self.ask("ceph", "osd", "stat"), "the OSDs",
                             support.ANSWER_S)
            self.ask("ceph", "osd", "pool", "create", POOL, 8, 8)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            # The monitor last: the others ask it until they end.
            for child in reversed(self.children.values()):
                assert child.stop(), f"{child.name} had to be killed{processes.tail(child.log)}"
        self._stack.close()

    def carried(self, name):
        return self.host.ss(self.children[name].pid)["totals"]["channel"]


def test_objects_are_what_was_written(host):
    preload = host.preload(host.policy("ceph", ["1-65535"], promote_after="{ messages = 1 }"))
    with Cluster(host, preload) as cluster:
        bench = ["rados", "bench", "-p", POOL, WRITTEN_S]
        said = cluster.ask(*bench, "write", "--no-cleanup", "-t", AT_ONCE, "-b", SIZE)
        objects = int(re.search(r"Total writes made: +(\d+)", said).group(1))
        assert objects > 0, said
        # rados compares what it reads with what it has written.
        said = cluster.ask(*bench, "seq", "-t", AT_ONCE)
        assert int(re.search(r"Total reads made: +(\d+)", said).group(1)) > 0, said
        own = host.directory / "own"
        own.write_bytes(os.urandom(OBJECT_BYTES))
        cluster.ask("rados", "-p", POOL, "put", "own", own)
        cluster.ask("rados", "-p", POOL, "get", "own", host.directory / "back")
        assert hashlib.sha256((host.directory / "back").read_bytes()).digest() == \
            hashlib.sha256(own.read_bytes()).digest()
        listed = cluster.ask("rados", "-p", POOL, "ls").split()
        assert len([name for name in listed if name.startswith("benchmark_data")]) >= objects
        # What one OSD is written, by clients or by the other, each has once.
        for number in range(OSDS):
            assert cluster.carried(f"osd.{number}")["rx_bytes"] > objects * SIZE * 0.9
        for child in cluster.children.values():
            assert host.ss(child.pid)["streams_promoted"] > 0, child.name
