"""MySQL Router over shared memory, with TLS of its own on either side.

     mysql ══ TLS ══ mysqlrouter ══ TLS ══ mysqld        all preloaded
     mysql ──────────────────────────────── mysqld       plain: the answer to compare with
"""

import random
import socket

import pytest

from integration.acceptance import support
from integration.acceptance.test_programs import check_promoted
from integration.lib import mysql, processes, roots

pytestmark = pytest.mark.releases
BLOB = random.Random(20240229).randbytes(1 << 20).hex()
CONFIGURATION = """
[DEFAULT]
logging_folder = {directory}
runtime_folder = {directory}
data_folder = {directory}
keyring_path = {directory}/keyring
master_key_path = {directory}/key
[logger]
level = info
[routing:classic]
bind_address = 127.0.0.1
bind_port = {port}
destinations = 127.0.0.1:{server.port}
routing_strategy = first-available
protocol = classic
client_ssl_mode = REQUIRED
client_ssl_cert = {server.data}/server-cert.pem
client_ssl_key = {server.data}/server-key.pem
server_ssl_mode = REQUIRED
server_ssl_verify = DISABLED
"""


class Router:
    """A router in front of `server`, with its preload; a context. Clients take it for a server."""

    def __init__(self, server, directory):
        directory.mkdir()
        self.work, self.address, self.port = server.work, server.address, support.free_port()
        configuration = directory / "router.conf"
        configuration.write_text(CONFIGURATION.format(directory=directory, port=self.port,
                                                      server=server))
        self._child = processes.Child(
            roots.inside(mysql.ROOT, ["mysqlrouter", "--user=root", "-c", configuration],
                         env=server.preload, writable=[server.work, support.BUILD]),
            directory / "output")
        self.pid = self._child.pid

    def _accepts(self):
        with socket.socket() as probe:
            return probe.connect_ex((self.address, self.port)) == 0

    def __enter__(self):
        try:
            processes.wait_until(self._accepts, processes.patient(support.ANSWER_S),
                                 "the router to accept", self._child)
        except BaseException:
            self._child.stop()
            raise
        return self

    def __exit__(self, *_):
        assert self._child.stop(), "the router ends when asked to"


def asked(server, preload, directory):
    """A client that lasts, and its answers to what a session is and to a large statement."""
    client = processes.Talker(
        mysql.client("mysql", server, ["--batch", "--skip-column-names", "--unbuffered",
                                       "--ssl-mode=REQUIRED"], preload, support.BUILD),
        directory / "client.log")
    return client, [answer(client, "SHOW SESSION STATUS LIKE 'Ssl_version'"),
                    answer(client, f"SELECT '{BLOB}'")]


def answer(client, statement):
    client.tell(f"{statement};")
    return client.line(processes.patient(support.ANSWER_S))


def ends(host, router):
    """The addresses of what the router has on channels."""
    return {address for stream in host.on_channel(router.pid)
            for address in (stream["local"], stream["remote"])}


def test_both_sides_of_a_router_with_tls_are_on_channels(work, prepared):
    directory = work / "router"
    directory.mkdir()
    host = support.Host(directory)
    preload = host.preload(host.policy("mysql", ["1-65535"],
                                       promote_after="{ messages = 2 }"))

    def server(name, variables):
        return mysql.MySql(name, prepared, directory, "127.0.0.1", support.free_port(), variables,
                           support.BUILD, ["--max-allowed-packet=64M"])
    with server("plain", None) as plain, server("preloaded", preload) as preloaded:
        client, wanted = asked(plain, None, directory)
        client.end()
        with Router(preloaded, directory / "run") as router:
            client, said = asked(router, preload, directory)
            assert said == wanted == ["Ssl_version\tTLSv1.3", BLOB]
            support.wait_for(lambda: ends(host, router) >= {
                f"127.0.0.1:{router.port}", f"127.0.0.1:{preloaded.port}"},
                "both sides on channels", support.ANSWER_S)
            assert answer(client, f"SELECT '{BLOB}'") == BLOB
            client.end()
            # Each byte of the second answer comes in and goes out.
            check_promoted(host, router.pid, 2 * len(BLOB))
