"""An ssh server of a test's own on loopback: own port, keys and configuration."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

from lib import processes, template

PROGRAM = "/usr/sbin/sshd"


def obstacle():
    """Why there can be none here, or ""."""
    if not os.access(PROGRAM, os.X_OK) or shutil.which("ssh") is None:
        return "not installed: openssh-server openssh-client"
    return "" if os.geteuid() == 0 else "sshd needs root, to become the user who comes"


class Sshd:
    """A context; `options` are ssh's words to reach it, after which comes root@127.0.0.1."""

    def __init__(self, directory):
        self._directory = Path(directory)
        self.port = template.free_port()
        self._server = None
        self.options = ["-F", "none", "-p", str(self.port), "-i", str(self._directory / "user"),
                        "-o", f"UserKnownHostsFile={self._directory / 'known'}",
                        "-o", "StrictHostKeyChecking=accept-new"]

    def __enter__(self):
        self._directory.mkdir()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            self._directory / name], check=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # it wants that
        config = self._directory / "config"
        config.write_text(f"ListenAddress 127.0.0.1:{self.port}\nHostKey {self._directory}/host\n"
                          f"AuthorizedKeysFile {self._directory}/user.pub\nPidFile none\n"
                          "StrictModes no\nUsePAM no\nPermitRootLogin yes\n"
                          "PasswordAuthentication no\n")
        self._server = processes.Child([PROGRAM, "-D", "-e", "-f", config],
                                       self._directory / "log")
        processes.wait_until(self._greets, 20, "sshd to greet", self._server)
        return self

    def _greets(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                return probe.recv(4) == b"SSH-"
        except OSError:
            return False

    def __exit__(self, *_):
        self._server.stop()
