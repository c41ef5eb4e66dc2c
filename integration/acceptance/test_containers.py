"""What an operator sees and can do across containers, from the host and from inside.

Each container has a pid, mount, UTS and network namespace, and a preloaded server that is process 1 there with a
preloaded client. Two share a runtime directory, or each has one of its own in its own /dev/shm.
"""

import json
import os
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import support

PROGRAMS = ("unshare", "nsenter", "ip", "setpriv")
SOMEBODY = 100_000
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING) or os.geteuid() != 0,
                                reason=f"needs root and {', '.join(MISSING or PROGRAMS)}")
KINDS = ("--pid", "--mount", "--uts")
OWN_SHM = "mount -t tmpfs -o mode=1777 shm /dev/shm"


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


class Container:
    """A server and its client; ends both at the end of `with`."""

    def __init__(self, host, name, runtime=None, labels="", user=False, kinds=KINDS, untitled=(), shares=None):
        """`runtime`: a directory that it shares; None: the default, in a /dev/shm of its own. `user`: its root is
        another user of the host. `kinds`: its namespaces beside that of networks. `untitled`: which of "serve" and
        "ask" overwrites its environment. `shares`: a directory that is at `runtime` there, and not in its own place."""
        self.name = name
        self._host = host
        policy = host.directory / "containers.toml"
        if not policy.exists():
            host.policy("containers", ["1-65535"], promote_after="{ messages = 2 }")
        self.preload = host.preload(policy) | {"RINGROAD_RUNTIME_DIR": str(runtime or "")}
        if labels:
            self.preload["RINGROAD_LABELS"] = labels
        self._words = {verb: ["untitled", verb] if verb in untitled else [verb] for verb in ("serve", "ask")}
        setup = " && ".join([*([f"hostname {name}"] if "--uts" in kinds else []),
                             *(["mount -t proc proc /proc"] if "--mount" in kinds else []),
                             *([] if runtime else [OWN_SHM]),
                             *([f"mount --bind {shares} {runtime}", f"mount -t tmpfs none {shares}"] if shares else []),
                             "ip link set lo up"])
        who = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"] if user else []
        kinds = [*kinds, "--net", "--fork", "--kill-child", *(["--map-root-user"] if user else [])]
        self._server = support.Talker(*self._words["serve"], "127.0.0.1", 0, preload=self.preload,
                                      prefix=[*who, "unshare", *kinds, "sh", "-c", f'{setup} && exec "$@"', "sh"])
        self._client = None

    def __enter__(self):
        try:
            self.port = int(self._server.line().split()[1])
            self.pid = support.children(self._server.pid)[0]
            self.namespace = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
            self._client = support.Talker(*self._words["ask"], "127.0.0.1", self.port, preload=self.preload,
                                          prefix=self.inside())
            assert self._client.line() == "connected"
            self.client_pid = support.children(self._client.pid)[0]
            self.talk()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for talker in (self._client, self._server):
            if talker is not None:
                talker.__exit__()

    def inside(self):
        """What executes a program in the container."""
        return ["nsenter", "--target", str(self.pid), "--all", "--"]

    def talk(self):
        for text in ("one", "two", "three", "four"):
            assert self._client.tell(f"say {text}").endswith(text)

    def run(self, *words):
        """The command, inside."""
        return run(self._host, *words, prefix=self.inside())

    def runtime(self):
        """Its runtime directory, as the host sees it."""
        return Path(f"/proc/{self.pid}/root{self.preload['RINGROAD_RUNTIME_DIR'] or '/dev/shm/ringroad'}")

    def file(self, pid=1):
        return self.runtime() / f"{pid}-{self.namespace}"


def run(host, *words, prefix=()):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RINGROAD_")}
    return subprocess.run([*prefix, host.tool.command, *map(str, words)], env=environment, capture_output=True,
                          text=True, timeout=60, check=False)


def processes_of(done):
    assert done.returncode == 0, done
    listed = json.loads(done.stdout)["processes"]
    processes = {process["pid"]: process for process in listed}
    assert len(processes) == len(listed), "each is listed once"
    return processes


def everywhere(host):
    """What the host's command shows of all directories."""
    return processes_of(run(host, "ss", "--json"))


def carriers(host, pid):
    return [stream["carrier"] for stream in everywhere(host)[pid]["streams"]]


@pytest.fixture(name="pair", params=["shared", "own"])
def fixture_pair(host, request):
    """Two containers whose processes have equal numbers, with one runtime directory or two."""
    runtime = host.runtime if request.param == "shared" else None
    with ExitStack() as stack:
        # The name that is first by the alphabet has the larger number.
        yield [stack.enter_context(Container(host, name, runtime)) for name in ("right", "left")]


def test_the_host_sees_each_container_s_processes_and_a_container_its_own(host, pair):
    right, left = pair
    assert left.namespace != right.namespace
    seen = everywhere(host)
    if left.preload["RINGROAD_RUNTIME_DIR"]:
        # The host has no process in that directory: it is found by the processes that use it.
        assert processes_of(run(host, "ss", "--json", "--directory", host.runtime)).keys() == {
            pid for container in pair for pid in (container.pid, container.client_pid)}
    for container in pair:
        server = seen[container.pid]
        assert (server["container"], server["own_pid"], server["alive"]) == (container.name, 1, True)
        assert server["pid_namespace"] == container.namespace
        assert server["cgroup"] == Path(f"/proc/{container.pid}/cgroup").read_text().split("::")[-1].strip()
        assert [stream["role"] for stream in server["streams"]] == ["accept"]
        assert server["streams"][0]["local"] == f"127.0.0.1:{container.port}"
        assert [stream["role"] for stream in seen[container.client_pid]["streams"]] == ["connect"]
        words = ["--directory", host.runtime] if container.preload["RINGROAD_RUNTIME_DIR"] else []
        inside = processes_of(container.run("ss", "--json", *words))
        assert inside.keys() == {1, seen[container.client_pid]["own_pid"]}
        assert inside[1]["container"] == "" and inside[1]["streams"][0]["local"] == f"127.0.0.1:{container.port}"
    table = run(host, "ss", "--pid", right.pid).stdout.splitlines()
    assert table[0].split()[-1] == "CONTAINER" and table[1].split()[-1] == "right"
    assert len(run(host, "ss", "container", "=", "left", "--no-header").stdout.splitlines()) == 2
    rows = run(host, "ss", "--sort", "container", "--no-header").stdout.splitlines()
    assert [row.split()[-1] for row in rows if row.split()[-1] in ("left", "right")] == ["left"] * 2 + ["right"] * 2


def test_set_reaches_the_container_that_is_meant(host, pair):
    right, left = pair
    support.wait_for(lambda: all(carriers(host, one.pid) == ["shm"] for one in pair), "both on channels")
    done = run(host, "set", left.pid, "tcp")
    assert done.returncode == 0, done
    assert carriers(host, left.pid) == ["tcp"] and carriers(host, right.pid) == ["shm"]
    assert everywhere(host)[left.pid]["operator"] == "tcp" and everywhere(host)[right.pid]["operator"] == "auto"
    words = ["--directory", host.runtime] if right.preload["RINGROAD_RUNTIME_DIR"] else []
    done = right.run("set", "1", "tcp", *words)
    assert done.returncode == 0, done
    assert carriers(host, right.pid) == ["tcp"]
    for container in pair:
        container.talk()


def test_the_exporter_and_top_name_the_containers(host, pair):
    text = run(host, "exporter", "--once").stdout
    for container in pair:
        labels = f'pid="{container.pid}",program="python3[.0-9]*",container="{container.name}"'
        assert re.search(rf"^ringroad_streams_opened_total{{{labels}}} 1$", text, re.MULTILINE), text
    rows = json.loads(run(host, "top", "--json", "--count", 1, "--interval", 0.1).stdout)["rows"]
    assert {row["pid"]: row["container"] for row in rows}.items() >= {one.pid: one.name for one in pair}.items()
    rows = json.loads(run(host, "top", "--json", "--count", 1, "--interval", 0.1, "--sort", "container").stdout)["rows"]
    names = [row["container"] for row in rows if row["container"] in ("left", "right")]
    assert names == ["left"] * 2 + ["right"] * 2
    table = run(host, "top", "--batch", "--count", 1, "--interval", 0.1).stdout
    assert sum(line.split()[-1:] in (["left"], ["right"]) for line in table.splitlines()) == 4, table


def test_ab_finds_a_process_in_a_container(host):
    with Container(host, "alone") as container:
        done = run(host, "ab", container.pid, "--warm-up", "0", "--period", "0.1s", "--rounds", 1, "--", "sleep", 60)
        assert done.returncode == 0, done
        assert "round 1 of 1, rdma" in done.stderr


def test_the_name_is_the_label_before_the_host_s_name(host):
    with Container(host, "host-name", labels="tier=db,pod=mysql-0") as container:
        assert everywhere(host)[container.pid]["container"] == "mysql-0"
    with Container(host, "host-name", labels="pod=mysql-0 container=mysqld") as container:
        assert everywhere(host)[container.pid]["container"] == "mysqld"


def test_a_name_is_no_longer_than_a_column(host):
    with Container(host, "host-name", labels=f"container={'x' * 100}") as container:
        assert everywhere(host)[container.pid]["container"] == 63 * "x"


def test_without_a_label_and_a_host_name_of_its_own_it_is_called_after_its_cgroup_or_its_namespace(host):
    with Container(host, "nameless", kinds=("--pid", "--mount")) as container:
        process = everywhere(host)[container.pid]
        end = process["cgroup"].rpartition("/")[2]
        assert process["container"] == (end or f"pid:[{container.namespace}]")


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/time"), reason="no time namespaces here")
def test_a_process_whose_clock_began_at_another_time_is_seen(host):
    with Container(host, "late", kinds=(*KINDS, "--time", "--boottime", "100000")) as container:
        assert everywhere(host)[container.pid]["alive"]


def test_a_process_with_mounts_of_its_own_alone_is_seen_and_obeys(host):
    with Container(host, "", kinds=("--mount",)) as service:
        for process in (everywhere(host)[service.pid], processes_of(run(host, "ss", "--json", "--pid", service.pid))[
                service.pid]):
            assert (process["container"], len(process["streams"])) == ("", 1)
        assert run(host, "set", service.pid, "tcp").returncode == 0
        assert carriers(host, service.pid) == ["tcp"]


def test_a_process_that_shows_a_title_is_found_where_others_of_its_root_are(host):
    with Container(host, "titles", host.runtime, untitled=("ask",)) as container:
        assert b"RINGROAD" not in Path(f"/proc/{container.client_pid}/environ").read_bytes()
        assert everywhere(host)[container.client_pid]["container"] == "titles"


def test_a_directory_that_is_named_is_looked_at_alone(host):
    with Container(host, "in", host.runtime) as container, Container(host, "out"):
        seen = processes_of(run(host, "ss", "--json", "--directory", host.runtime))
        assert seen.keys() == {container.pid, container.client_pid}


def test_a_process_that_shows_a_title_and_has_the_directory_elsewhere_is_known_by_the_file_that_it_maps(host):
    with Container(host, "maps", "/mnt", untitled=("serve", "ask"), shares=host.runtime) as container:
        both = {container.pid, container.client_pid}
        words = ["ss", "--json", "--directory", host.runtime]
        assert processes_of(run(host, *words)).keys() == both
        # By its number, too, which place_of() looks up.
        assert processes_of(run(host, *words, "--pid", container.pid)).keys() == {container.pid}
        file = host.runtime / container.file().name
        shutil.copy(file, host.directory / "copy")
        os.replace(host.directory / "copy", file)
        assert processes_of(run(host, *words)).keys() == {container.client_pid}


def test_a_process_that_has_the_host_s_mounts_is_told_from_the_host_s_process_of_that_number(host):
    with Container(host, "", host.runtime, kinds=("--pid",)) as container:
        process = processes_of(run(host, "ss", "--json", "--directory", host.runtime))[container.pid]
        assert (process["own_pid"], process["pid_namespace"]) == (1, container.namespace)


def test_a_service_that_has_the_directory_elsewhere_is_listed_once(host):
    with Container(host, "beside", host.runtime) as container, \
            Container(host, "", "/mnt", kinds=("--mount",), shares=host.runtime) as service:
        seen = processes_of(run(host, "ss", "--json", "--directory", host.runtime))
        assert seen.keys() == {one for each in (container, service) for one in (each.pid, each.client_pid)}


def test_a_user_that_may_not_look_at_a_process_is_not_told_that_it_has_ended(host):
    for folder in (host.directory, *host.directory.parents[:-2], host.runtime):
        folder.chmod(folder.stat().st_mode | 0o055)
    somebody = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"]
    with Container(host, "hidden", host.runtime) as container:
        seen = processes_of(run(host, "ss", "--json", "--all", "--directory", host.runtime, prefix=somebody))
        assert not any(process["pid_namespace"] == container.namespace for process in seen.values()), seen


def test_a_process_of_a_user_namespace_is_seen_and_obeys_root_of_the_host(host):
    # Somebody else reads the policy there.
    for folder in (host.directory, *host.directory.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    with Container(host, "mapped", user=True) as container:
        assert os.stat(container.file()).st_uid == SOMEBODY
        assert len(everywhere(host)[container.pid]["streams"]) == 1
        done = run(host, "set", container.pid, "tcp")
        assert done.returncode == 0, done
        assert everywhere(host)[container.pid]["operator"] == "tcp"


def test_a_file_as_an_older_library_names_it_is_read(host):
    with Container(host, "older") as container:
        container.file().rename(container.runtime() / "1")
        (container.runtime() / f"1-{container.namespace}.control").rename(container.runtime() / "1.control")
        process = everywhere(host)[container.pid]
        assert (process["alive"], process["own_pid"]) == (True, 1)
        assert run(host, "set", container.pid, "tcp").returncode == 0
        assert processes_of(container.run("ss", "--json"))[1]["operator"] == "tcp"


def test_a_file_as_an_older_library_names_it_is_read_from_a_directory_of_several_containers(host):
    with Container(host, "older", host.runtime) as container:
        own = {pid: everywhere(host)[pid]["own_pid"] for pid in (container.pid, container.client_pid)}
        for number in own.values():
            container.file(number).rename(container.runtime() / str(number))
        seen = processes_of(run(host, "ss", "--json", "--directory", host.runtime))
        assert {pid: process["own_pid"] for pid, process in seen.items()} == own


def test_what_an_older_library_has_left_beside_a_process_file_counts_for_nothing(host):
    with Container(host, "newer") as container:
        shutil.copy(container.file(), container.runtime() / "1")
        assert 1 in processes_of(container.run("ss", "--json"))


def test_a_live_process_of_another_namespace_is_not_ended_and_its_file_not_collected(host):
    with Container(host, "kept", host.runtime) as container:
        files = {container.file(), container.file(everywhere(host)[container.client_pid]["own_pid"])}
        assert all(file.exists() for file in files)
        # Each eighth process of the host looks for what ended ones have left.
        looked = False
        while not looked:
            with support.Talker("serve", "127.0.0.1", 0, preload=container.preload) as talker:
                assert talker.line().startswith("PORT")
                looked = talker.pid % 8 == 0
        assert all(file.exists() for file in files)
        seen = processes_of(run(host, "ss", "--json", "--all", "--directory", host.runtime))
        assert seen[container.pid]["alive"] and seen[container.client_pid]["alive"]
        namespace = container.namespace
    left = processes_of(run(host, "ss", "--json", "--all", "--directory", host.runtime))
    assert [one["alive"] for one in left.values() if one["pid_namespace"] == namespace] in ([], [False], [False] * 2)
    assert not any(one["pid_namespace"] == namespace
                   for one in processes_of(run(host, "ss", "--json", "--directory", host.runtime)).values())


class TestHostile:
    """What stands in a container's directory is the container's to write."""

    @pytest.fixture(name="two")
    def fixture_two(self, host):
        with Container(host, "good") as good, Container(host, "bad") as bad:
            yield good, bad

    def test_no_link_leads_out_of_the_container(self, host, two):
        good, bad = two
        outside = host.directory / "outside"
        shutil.copy(good.file(), outside)
        bad.file().unlink()
        bad.file().symlink_to(outside)
        assert bad.pid not in everywhere(host)
        assert "it is a symbolic link" in run(host, "ss", "--pid", bad.pid).stderr
        # The directory itself, by a path that is one of the host's.
        bad.runtime().rename(bad.runtime().with_name("elsewhere"))
        bad.runtime().symlink_to(f"/proc/{good.pid}/root/dev/shm/ringroad")
        assert bad.pid not in everywhere(host) and good.pid in everywhere(host)

    def test_no_file_speaks_for_a_process_of_another_container(self, host, two):
        good, bad = two
        before = everywhere(host)[good.pid]
        shutil.copy(bad.file(), bad.runtime() / good.file().name)
        shutil.copy(good.file(), bad.runtime() / f"{bad.client_pid}")
        bad.file().unlink()
        shutil.copy(good.file(), bad.file())
        seen = everywhere(host)
        assert bad.pid not in seen
        assert seen[good.pid]["streams"][0]["local"] == before["streams"][0]["local"]
        assert seen[good.pid]["container"] == "good"

    def test_a_file_of_another_user_is_not_believed(self, host, two):
        _, bad = two
        os.chown(bad.file(), 12345, 12345)
        assert bad.pid not in everywhere(host)
        assert "it belongs to user 12345" in run(host, "ss", "--pid", bad.pid).stderr

    def test_an_operator_s_command_goes_to_no_other_process(self, host, two):
        good, bad = two
        socket = bad.runtime() / f"1-{bad.namespace}.control"
        socket.rename(socket.with_suffix(".away"))
        policy = host.directory / "containers.toml"
        preload = host.preload(policy)
        with support.Talker("serve", "127.0.0.1", 0, preload=preload) as server:
            port = int(server.line().split()[1])
            with support.Talker("ask", "127.0.0.1", port, preload=preload) as client:
                assert client.line() == "connected"
                assert client.tell("say a").endswith("a") and client.tell("say b").endswith("b")
                support.wait_for(lambda: host.on_channel(server.pid), "a channel of the host's own")
                socket.symlink_to(host.runtime / f"{server.pid}.control")
                done = run(host, "set", bad.pid, "tcp")
                assert done.returncode == 1 and "is not its socket" in done.stderr, done
                assert host.ss(server.pid)["operator"] == "auto"
        # Another container's socket under this one's name, as containers that share a directory could have it.
        socket.unlink()
        subprocess.run(["nsenter", "--target", str(bad.pid), "--mount", "--", "touch",
                        f"/dev/shm/ringroad/{socket.name}"], check=True)
        done = run(host, "set", bad.pid, "tcp")
        assert done.returncode == 1 and "is not its socket" in done.stderr, done
        assert everywhere(host)[good.pid]["operator"] == "auto"

    def test_a_socket_that_has_another_name_or_owner_too_is_not_asked(self, host):
        with Container(host, "good", host.runtime) as good, Container(host, "bad", host.runtime) as bad:
            names = [host.runtime / f"1-{one.namespace}.control" for one in (good, bad)]
            names[1].unlink()
            os.link(*names)
            for _ in range(2):
                done = run(host, "set", bad.pid, "tcp", "--wait", "0.5")
                assert done.returncode == 1 and "is not its socket" in done.stderr, done
                assert everywhere(host)[good.pid]["operator"] == "auto"
                names[0].unlink(missing_ok=True)
                os.chown(names[1], 12345, 12345)

    def test_a_socket_of_another_process_of_the_directory_does_not_obey(self, host):
        with Container(host, "good", host.runtime) as good, Container(host, "bad", host.runtime) as bad:
            name = "{}/1-{}.control"
            os.unlink(name.format(host.runtime, bad.namespace))
            os.rename(name.format(host.runtime, good.namespace), name.format(host.runtime, bad.namespace))
            done = run(host, "set", bad.pid, "tcp", "--wait", "0.5")
            assert done.returncode == 1 and "does not answer" in done.stderr, done
            assert everywhere(host)[good.pid]["operator"] == "auto"

    def test_a_device_is_not_opened(self, host, two):
        _, bad = two
        bad.file().unlink()
        os.mknod(bad.file(), 0o644 | 0o020000, os.makedev(10, 130))  # a watchdog: to open it is to start it
        assert bad.pid not in everywhere(host)
        assert "it is not a regular file" in run(host, "ss", "--pid", bad.pid).stderr
