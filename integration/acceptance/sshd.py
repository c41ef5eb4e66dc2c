"""An ssh server of a test's own: own port, keys and configuration."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

from integration.lib import processes, template

PROGRAM = "/usr/sbin/sshd"


def obstacle():
    """Why there can be none here, or ""."""
    if not os.access(PROGRAM, os.X_OK) or shutil.which("ssh") is None:
        return "not installed: openssh-server openssh-client"
    return "" if os.geteuid() == 0 else "sshd needs root, to become the user that comes"


def options(port, directory):
    """ssh's words to reach one, with the user's key in `directory`; after them comes root@ADDRESS."""
    return ["-F", "none", "-p", str(port), "-i", str(directory / "user"),
            "-o", f"UserKnownHostsFile={directory / 'known'}", "-o", "StrictHostKeyChecking=accept-new"]


class Sshd:
    """A context; `options` are ssh's words to reach it, `key` is the user's."""

    def __init__(self, directory, address="127.0.0.1"):
        self._directory = Path(directory)
        self._address = address
        self.port = template.free_port(address)
        self._server = None
        self.options = options(self.port, self._directory)
        self.key = self._directory / "user"

    def __enter__(self):
        self._directory.mkdir()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            self._directory / name], check=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # it wants that
        config = self._directory / "config"
        config.write_text(f"ListenAddress {self._address}:{self.port}\nHostKey {self._directory}/host\n"
                          f"AuthorizedKeysFile {self._directory}/user.pub\nPidFile none\n"
                          "StrictModes no\nUsePAM no\nPermitRootLogin yes\n"
                          "PasswordAuthentication no\n")
        self._server = processes.Child([PROGRAM, "-D", "-e", "-f", config],
                                       self._directory / "log")
        processes.wait_until(self._greets, processes.patient(20), "sshd to greet", self._server)
        return self

    def _greets(self):
        try:
            with socket.create_connection((self._address, self.port), processes.patient(5)) as probe:
                return probe.recv(4) == b"SSH-"
        except OSError:
            return False

    def __exit__(self, *_):
        self._server.stop()
