"""One build of the products, that of this machine, runs on older and on newer Debian releases.

     sysbench ══ mariadbd        both preloaded and in the root, of what is installed there;
                                 its `ringroad ss` sees both, and so does that of this machine
"""

import json
import subprocess
from dataclasses import dataclass

import pytest

from integration.acceptance import support
from integration.acceptance.test_packages import fixture_packages  # pylint: disable=unused-import
from integration.acceptance.test_programs import AT_ONCE
from integration.lib import mariadb, processes, roots, servers, sysbench, template

pytestmark = pytest.mark.releases
# Debian 11's Redis is one of those whose jemalloc makes system calls while glibc's dlsym() may not be called.
SERVERS = [("bullseye", "mariadbd"), ("bullseye", "redis-server"), ("trixie", "mariadbd"),
           ("sid", "mysqld"), ("sid", "valkey-server"), ("sid-mariadb", "mariadbd")]
# In a root each program has what it installs to itself: so each begins with this.
INSTALL = {
    "packages": 'dpkg -i "$0"/ringroad_*.deb "$0"/libringroad_*.deb "$0"/libringroad-verbs_*.deb >&2',
    "archive": 'mkdir -p /opt/here && tar -C /opt/here --strip-components=1 -xf "$0"/ringroad-*.tar.gz'}
LIBRARY = {"packages": "/usr/lib/x86_64-linux-gnu/ringroad/libringroad.so",
           "archive": "/opt/here/lib/libringroad.so"}
TOOL = {"packages": "ringroad", "archive": "/opt/here/bin/ringroad"}
THREADS = 4
TABLE_SIZE = 500
RUN_S = 3
# Shown inside the root it can only be the one that was preloaded.
MAPPED = ["grep", "-c", "/libringroad.so$", "/proc/self/maps"]


@pytest.fixture(name="host")
def fixture_host():
    with processes.WorkDirectory("ringroad-releases") as work:
        yield support.Host(work)


def place_of(host, name):
    return roots.Place(name, (host.directory, support.BUILD))


def says(place, words, environment=None):
    """(exit status, output, errors) of a program in the root."""
    done = subprocess.run(place.command(words, environment), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False,
                          timeout=processes.patient(support.ANSWER_S))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name,program", SERVERS)
def test_a_program_starts_with_the_library_and_says_the_same(root, host, name, program):
    root(name)
    place = place_of(host, name)
    preload = host.preload(host.policy("start", ["1-65535"]))
    assert says(place, ["true"], preload) == (0, "", "")
    status, mappings, errors = says(place, MAPPED, preload)
    assert (status, errors) == (0, "") and int(mappings) > 0
    plain = says(place, [program, "--version"])
    assert plain[0] == 0 and plain[1], plain
    policy = ["--policy", preload["RINGROAD_POLICY"]]
    assert says(place, [host.tool.command, "run", *policy, "--", program, "--version"]) == plain


@dataclass(frozen=True)
class Installed(roots.Place):
    """A place in which the products are installed, before a program is preloaded with them."""
    kind: str = ""

    def command(self, argv, env=None):
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        return super().command(["sh", "-ec", f'{INSTALL[self.kind]}; exec env "$@"',
                                support.ROOT / "build" / "package", *variables, *argv])


@pytest.mark.parametrize("name,kind", [
    ("bullseye", "packages"), ("bullseye", "archive"), ("trixie", "packages"), ("sid-mariadb", "packages")])
def test_mariadb_and_sysbench_talk_over_shared_memory(root, host, packages, name, kind):
    assert packages
    root(name)
    place = Installed(name, (host.directory,), kind)
    preload = host.preload(host.policy("mariadb", ["1-65535"], **AT_ONCE), library=LIBRARY[kind])
    servers.Product("mariadbd", "MariaDB").install(host.directory / "empty", place)
    with mariadb.MariaDb(
            "server", host.directory / "empty", host.directory, "127.0.0.1", support.free_port(),
            preload, native_aio=False, place=place,
            start_timeout_s=processes.patient(mariadb.START_TIMEOUT_S)) as server:
        template.fill(server, 1, TABLE_SIZE)
        load = sysbench.Load(server.address, server.port, 1, TABLE_SIZE)
        run = sysbench.Run(
            place.command(load.command("oltp_read_write", THREADS, seed=1, seconds=RUN_S), preload),
            host.directory / "sysbench.log", RUN_S)
        try:
            run.wait_until_started()
            for pid in (server.pid, run.pid):
                host.wait_for_channels(pid, THREADS)
            status, report, errors = says(place, [TOOL[kind], "ss", "--json", "--directory", host.runtime])
            assert status == 0 and "warning" not in errors, errors
            seen = {process["pid"]: process for process in json.loads(report)["processes"]}
            for pid in (server.pid, run.pid):
                carried = [stream["carrier"] for stream in seen[pid]["streams"]
                           if stream["state"] == "ON_CHANNEL"]
                assert carried == ["shm"] * THREADS, seen[pid]
            result = run.finish()
        finally:
            run.kill()
        assert result["exit_status"] == 0 and not result["fatal"], result
        assert result["transactions"] > 0 and result["reconnects"] == 0, result
        assert server.stop(), "the server ends when asked to"
