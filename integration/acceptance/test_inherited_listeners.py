"""Servers that accept on listeners which another process has made: their clients are promoted.

     systemd ── exec, the listener open ──▶ server                 client ══ server
     old server ── exec, or a Unix socket ──▶ new server, and ends
"""

import os
import shutil
import signal

import pytest

from . import support
from .support import children
from .test_forking_programs import (  # pylint: disable=unused-import
    check_workers_promoted, fixture_host, fixture_preload, promoted)
from .test_programs import accepts, needs, nginx_configuration, output, server

WORKERS = 2


@pytest.fixture(name="site")
def fixture_site(host):
    """The configuration of an nginx, and the port of its listener that serves `small`."""
    directory = host.directory / "nginx"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "small").write_bytes(b"s" * 1000)
    back, front = support.free_port(), support.free_port()
    path = directory / "conf"
    path.write_text(f"user root;\n{nginx_configuration(directory, WORKERS, back, front)}")
    return path, back


@needs("nginx", "wrk", "systemd-socket-activate")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have workers of another user")
def test_clients_of_a_server_that_was_activated_by_a_socket_are_promoted(host, preload, site):
    host.environment = preload
    path, port = site
    named = {**preload, "NGINX": "3;"}
    activator = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}",
                 *(f"--setenv={name}={value}" for name, value in named.items()),
                 "nginx", "-p", path.parent, "-c", path]
    with server(host, "nginx", activator, port) as child:  # the activator is not preloaded
        output(["wrk", "-t", 1, "-c", 1, "-d", "1s", f"http://127.0.0.1:{port}/small"])
        support.wait_for(lambda: len(children(child.pid)) == WORKERS, "the workers")
        check_workers_promoted(host, children(child.pid), port)


@needs("nginx", "wrk")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have workers of another user")
def test_clients_of_an_nginx_that_has_replaced_its_program_are_promoted(host, preload, site):
    host.environment = preload
    path, port = site
    # It takes the signal only where its parent is not the one that started it. It hands on what
    # is named.
    named = "".join(f"env {name};\n" for name in preload)
    path.write_text(named + path.read_text().replace("daemon off", "daemon on"))
    number = path.parent / "pid"

    def pid_of_master():
        text = number.read_text() if number.exists() else ""
        return int(text) if text else None

    # It starts itself anew by the name that it was called.
    output([shutil.which("nginx"), "-p", path.parent, "-c", path], preload)
    try:
        support.wait_for(pid_of_master, "the old program")
        old = pid_of_master()
        support.wait_for(lambda: len(children(old)) == WORKERS, "the workers")
        os.kill(old, signal.SIGUSR2)
        support.wait_for(lambda: pid_of_master() not in (None, old), "the new program")
        new = pid_of_master()
        support.wait_for(lambda: len(set(children(new))) == WORKERS, "the new program's workers")
        workers = children(new)
        os.kill(old, signal.SIGQUIT)
        support.wait_for(lambda: not os.path.exists(f"/proc/{old}"), "the old program to end")
        check_workers_promoted(host, workers, port)
    finally:
        os.kill(pid_of_master(), signal.SIGTERM)
        support.wait_for(lambda: not accepts(port), "nginx to end")


@needs("haproxy", "nginx", "wrk")
def test_clients_of_a_haproxy_that_was_passed_its_listeners_are_promoted(host, preload, site):
    host.environment = preload
    path, back = site
    port = support.free_port()
    control = host.directory / "haproxy.sock"
    configuration = host.directory / "haproxy.cfg"
    configuration.write_text(f"""global
  nbthread 2
  stats socket {control} level admin expose-fd listeners
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
listen it
  bind 127.0.0.1:{port}
  server nginx 127.0.0.1:{back}
""")
    command = ["haproxy", "-f", configuration, "-db"]
    with server(host, "nginx", ["nginx", "-p", path.parent, "-c", path], back), \
            server(host, "haproxy-old", command, port, preload) as old:
        with server(host, "haproxy-new", [*command, "-x", control, "-sf", old.pid], port,
                    preload) as new:
            assert old.ends_within(support.ANSWER_S)
            output(["wrk", "-t", 1, "-c", 4, "-d", "1s", f"http://127.0.0.1:{port}/small"], preload)
            check_workers_promoted(host, [new.pid], port)
            assert promoted(host, [new.pid])[new.pid] > 0
