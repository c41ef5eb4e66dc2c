"""A GlusterFS volume that two bricks replicate, written by a client of libgfapi.

     client ══ glusterd 24007            where the bricks are
       ╚══════ brick 1, brick 2          each has every file
"""

import ctypes.util
import hashlib
import json
import os
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.acceptance import support
from integration.acceptance.test_programs import needs, output, server
from integration.lib import processes

CLIENT = Path(__file__).parent / "gluster_client.py"
PORT = 24007  # bricks know no other
FILES = 20
SIZE = 1_000_000


def own_address():
    """One of this host's that is not loopback's, which GlusterFS takes for no host; None: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


ADDRESS = own_address()
pytestmark = [
    needs("glusterd", "gluster"),
    pytest.mark.skipif(not ctypes.util.find_library("gfapi"), reason="not installed: libgfapi0"),
    pytest.mark.skipif(os.geteuid() != 0, reason="glusterd runs as root only"),
    pytest.mark.skipif(ADDRESS is None, reason="this host has only loopback addresses, which GlusterFS "
                                               "takes for no host")]


@pytest.fixture(name="host")
def fixture_host():
    """Bricks want extended attributes, which a file system in memory has."""
    with processes.WorkDirectory("ringroad-gluster") as work:
        yield support.Host(work)


class Volume:
    def __init__(self, host):
        self.host = host
        self.bricks = [host.directory / f"brick{number}" for number in (1, 2)]
        self._socket = host.directory / "glusterd.socket"

    def gluster(self, *words):
        return output(["gluster", "--mode=script", f"--glusterd-sock={self._socket}", *words]).decode()

    @contextmanager
    def running(self, preload):
        work = self.host.directory
        (work / "glusterd.vol").write_text(
            "volume management\n  type mgmt/glusterd\n"
            f"  option working-directory {work}/state\n  option run-directory {work}/run\n"
            f"  option glusterd-sockfile {self._socket}\n  option transport-type socket\n"
            "  option transport.address-family inet\n"
            f"  option transport.socket.listen-port {PORT}\nend-volume\n")
        command = ["glusterd", "-N", "-f", work / "glusterd.vol", "-l", work / "log", "-p",
                   work / "pid"]
        for directory in (work / "run", *self.bricks):
            directory.mkdir()
        with server(self.host, "glusterd", command, PORT, preload):
            try:
                support.wait_for(self._socket.exists, "glusterd's socket", support.ANSWER_S)
                self.gluster("volume", "create", "v", "replica", "2", "transport", "tcp",
                             *(f"{ADDRESS}:{brick}/data" for brick in self.bricks), "force")
                self.gluster("volume", "start", "v")
                yield
                self.gluster("volume", "stop", "v")
            finally:
                for pid in self.processes():
                    os.kill(pid, signal.SIGKILL)

    def processes(self, pattern="**"):
        """Those that glusterd has started and that are still there."""
        pids = [int(path.read_text() or 0)
                for path in (self.host.directory / "run").glob(f"{pattern}/*.pid")]
        return [pid for pid in pids if pid and Path(f"/proc/{pid}").exists()]


def digests(directory):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in directory.glob("file*")}


def test_a_replicated_volume(host):
    preload = host.preload(host.policy("gluster", ["24007", "49152-65535"], subnet=f"{ADDRESS}/32",
                                       promote_after="{ messages = 1 }"))
    volume = Volume(host)
    with volume.running(preload):
        client = subprocess.Popen(
            ["/usr/bin/python3", "-I", CLIENT, ADDRESS, "v", str(FILES), str(SIZE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **preload})
        try:
            said = json.loads(client.stdout.readline())
            bricks = volume.processes("vols/v")
            assert len(bricks) == len(volume.bricks)
            host.wait_for_channels(client.pid, 1 + len(bricks))
            written = FILES * SIZE
            for pid in bricks:
                assert host.ss(pid)["totals"]["channel"]["rx_bytes"] > written * 0.9
            client.communicate("", timeout=support.ANSWER_S)
            assert client.returncode == 0
        finally:
            client.kill()
            client.wait()
        assert len(said) == FILES
        for brick in volume.bricks:
            assert digests(brick / "data") == said
