"""`ringroad bench oltp` with a root's MySQL, which a script executes, and this host's sysbench.

The root has /dev/shm of this host's folders, and none that holds temporary files.
"""

import json
import os
import shlex
import subprocess

import pytest

from integration.acceptance import support
from integration.lib import mysql, processes, roots

pytestmark = [pytest.mark.releases, support.needs_mariadb]
# Executes the root's mysqld with the variables of a preload, should there be any.
SCRIPT = """#!/bin/bash
passed=()
for name in LD_PRELOAD "${{!RINGROAD_@}}"; do
  [ -z "${{!name+set}}" ] || passed+=("$name=${{!name}}")
done
unset LD_PRELOAD
exec {entered} "${{passed[@]}}" mysqld "$@"
"""
LIMIT_S = 150


@pytest.fixture(name="server")
def fixture_server(work):
    script = work / "mysqld"
    entered = roots.inside(mysql.ROOT, [], writable=[support.BUILD])
    script.write_text(SCRIPT.format(entered=shlex.join(entered)))
    script.chmod(0o755)
    return str(script)


def bench(server, out, *words):
    return subprocess.run(
        [support.BUILD / "bin" / "ringroad", "bench", "oltp", "--server", server, "--out", out,
         "--carriers", "tcp,shm", "--workloads", "read_write", "--threads", "4", "--rounds", "1",
         "--seconds", "1", "--table-size", "100", *words], capture_output=True, text=True,
        check=False, timeout=processes.patient(LIMIT_S),
        env={**os.environ, "RINGROAD_ROOTS": str(roots.directory())})


def test_mysql_and_its_pool_are_measured_over_tcp_and_on_channels(server, tmp_path):
    done = bench(server, tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    rows = [row for table in report["tables"] for row in table["rows"]]
    assert [(row["key"]["threading"], row["carrier"], row["rounds"]) for row in rows] == [
        (threading, carrier, 1) for threading in ("connection", "pool")
        for carrier in ("tcp", "shm")]
    assert "MySQL under sysbench" in (tmp_path / "out" / "report.md").read_text()
    assert mysql_version(server) in json.dumps(report)


def test_mysql_is_measured_between_two_network_namespaces(server, tmp_path):
    done = bench(server, tmp_path / "out", "--netns", "--threading", "connection")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [(row["carrier"], row["rounds"]) for table in report["tables"] for row in table["rows"]] == [
        ("tcp", 1), ("shm", 1)]


def mysql_version(server):
    return subprocess.run([server, "--version"], capture_output=True, text=True,
                          check=True).stdout.strip()
