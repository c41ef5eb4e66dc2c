"""A Galera cluster of throw-away MariaDB servers, one on each address.

   sysbench ── 23306 ── node 1 ═══ 4567 (replication), 4568 (IST), 4444 (SST) ═══ node 2, node 3
"""

import os
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from . import mariadb, processes

USER = "mysql"
PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
GROUP_PORT = 4567
IST_PORT = 4568
SST_PORT = 4444
FORM_TIMEOUT_S = 120
RECOVERY_TIMEOUT_S = 120


class Node(mariadb.MariaDb):
    """One server; `first` makes the cluster instead of joining it."""

    def __init__(self, name, cluster, address, first):
        self._cluster = cluster
        options = [
            "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}", "--wsrep-cluster-name=ringroad",
            f"--wsrep-cluster-address=gcomm://{'' if first else ','.join(cluster.addresses)}",
            f"--wsrep-node-name={name}", f"--wsrep-node-address={address}",
            "--wsrep-sst-method=rsync", f"--wsrep-sst-receive-address={address}:{SST_PORT}",
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://{address}:{GROUP_PORT};"
            f"ist.recv_addr={address}:{IST_PORT};gcache.size=64M;{cluster.provider_options}",
            *cluster.options]
        super().__init__(name, cluster.prepared, cluster.work, address, cluster.port,
                         cluster.preload, cluster.native_aio, options,
                         processes.patient(mariadb.START_TIMEOUT_S), place=cluster.place)

    def start(self):
        if self.data.exists():
            self._options.append(f"--wsrep-start-position={self._recovered_position()}")
        else:
            self.directory.mkdir(parents=True)
            shutil.copytree(self._prepared, self.data)
            if self.user_options():
                subprocess.run(self.entered(["chown", "-R", USER, self.directory])[0], check=True)
        super().start()

    def user_options(self):
        # State is transferred by an rsync daemon, which writes nothing as root.
        return [f"--user={USER}"] if os.geteuid() == 0 else []

    def _recovered_position(self):
        """How far the data of a node that was killed go, as the service's start script asks."""
        log = self.directory / "recovery.log"
        done = subprocess.run(
            self.entered(["mariadbd", "--no-defaults", *self.user_options(), f"--datadir={self.data}",
             f"--tmpdir={self.directory}", f"--log-error={log}", f"--innodb-log-file-size={mariadb.REDO_LOG}",
             "--innodb-use-native-aio=0", *self._options, "--wsrep-recover", "--skip-networking",
             f"--socket={self.directory / 'recovery.sock'}"])[0],
            check=False, timeout=processes.patient(RECOVERY_TIMEOUT_S))
        if done.returncode != 0:
            raise processes.ProcessError(f"{self.name}: recovery ended with {done.returncode}"
                                         f"{processes.tail(log)}")
        found = re.findall(r"WSREP: Recovered position: (\S+)", log.read_text(errors="replace"))
        if not found:
            raise processes.ProcessError(f"{self.name}: no position{processes.tail(log)}")
        return found[-1]

    def state(self):
        """(cluster size, state, whether it takes queries), as the node itself sees it."""
        found = dict(self.query("SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_cluster_size', "
                                "'wsrep_local_state_comment', 'wsrep_ready')"))
        return (int(found["wsrep_cluster_size"]), found["wsrep_local_state_comment"],
                found["wsrep_ready"] == "ON")

    def is_one_of(self, size):
        try:
            return self.state() == (size, "Synced", True)
        except processes.ProcessError:
            # A server that has received its state may end the connections that it had before.
            self.connect()
            return False

    def joins(self, size):
        processes.wait_until(lambda: self.is_one_of(size),
                             processes.patient(FORM_TIMEOUT_S),
                             f"{self.name} to be one of {size}", self._server, self.log)


class Cluster:
    """The nodes, in the order of `addresses`; a context that forms and ends it."""

    def __init__(self, prepared, work, addresses, port, preload=None, native_aio=True, options=(),
                 provider_options="", place=None):
        self.prepared, self.work, self.addresses, self.port = prepared, work, addresses, port
        self.preload, self.native_aio, self.options = preload, native_aio, options
        self.provider_options = provider_options
        self.place = place  # of mariadbd and the provider, as mariadb.MariaDb says
        self._stack = ExitStack()
        self.nodes = []

    def _start(self, index, first=False):
        return Node(f"node{index + 1}", self, self.addresses[index], first)

    def __enter__(self):
        try:
            for index in range(len(self.addresses)):
                node = self._start(index, first=index == 0)
                self.nodes.append(self._stack.enter_context(node))
                for known in self.nodes:
                    known.joins(index + 1)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_):
        # The last one to go must not wait for a majority.
        for node in reversed(self.nodes):
            node.stop()
        self._stack.close()

    def again(self, index):
        """Starts a node that has ended once more; it joins those that are left."""
        self.nodes[index] = node = self._stack.enter_context(self._start(index))
        for known in self.nodes:
            known.joins(len(self.nodes))
        return node
