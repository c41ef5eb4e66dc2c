"""A prepared data directory of MariaDB or MySQL: a user and sysbench's tables, made once and then
copied.

Servers that run on copies of it start fast and hold the same data to the byte.
"""

import errno
import json
import os
import random
import shutil
import socket
from pathlib import Path

from . import locks, mariadb, processes, servers, sysbench

PORTS = range(25_000, 32_000)
WORKERS = 8
GIVEN_BY_THE_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def make(directory, tables, table_size, program=mariadb.PROGRAM):
    """Makes the template in `directory` unless one with the same contents is there already.

    Returns the data directory to give to servers of this program. It is built beside its final place and
    renamed, so that an interrupted build leaves no half of one. Another process that wants it waits.
    """
    directory = Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(directory.parent):
        return _make(directory, tables, table_size, program)


def _make(directory, tables, table_size, program):
    product = servers.of(program)
    wanted = {"server": product.version, "tables": tables, "table_size": table_size,
              "redo_log": mariadb.REDO_LOG}
    stamp = directory / "contents.json"
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return directory / "data"
    building = directory.with_name(f"{directory.name}.building.{os.getpid()}")
    try:
        building.mkdir(parents=True)
        with processes.WorkDirectory("ringroad-template") as work:
            product.install(work / "empty")
            server = product.server("template", work / "empty", work, "127.0.0.1", free_port())
            with server:
                fill(server, tables, table_size)
            shutil.copytree(server.data, building / "data")
        (building / stamp.name).write_text(json.dumps(wanted, indent=1))
        shutil.rmtree(directory, ignore_errors=True)
        building.rename(directory)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return directory / "data"


def fill(server, tables, table_size):
    """The user and sysbench's tables, in a server that has neither."""
    server.query(f"CREATE DATABASE {mariadb.DATABASE}")
    server.query(f"CREATE USER {mariadb.USER}@'%' IDENTIFIED BY '{mariadb.PASSWORD}'")
    server.query(f"GRANT ALL ON {mariadb.DATABASE}.* TO {mariadb.USER}@'%'")
    sysbench.Load(server.address, server.port, tables, table_size).prepare()


def free_port(address="127.0.0.1"):
    """A TCP port of this host's address that nothing listens on now, and that no other worker of
    pytest-xdist is told. Unless the kernel's settings forbid that, no connection gets it meanwhile."""
    lowest_given = int(GIVEN_BY_THE_KERNEL.read_text(encoding="ascii").split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    candidates = [] if lowest_given < PORTS.stop else list(PORTS[worker::WORKERS])
    random.shuffle(candidates)
    for port in (*candidates, 0):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            try:
                probe.bind((address, port))
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE:
                    raise
                continue
            return probe.getsockname()[1]
    raise processes.ProcessError(f"{address} has no free port")
