"""The image of `make image`, and containers that are started from it and from the manifests by runc.

     make_image ──▶ OCI layout ──▶ umoci unpack ──▶ the init container fills the volume
                                                        └──▶ the server's container, by an entry point
                                                             of the shape of those of MySQL and MariaDB
"""

import collections
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.lib import containers, processes

from . import manifests, support

VERSION = (support.ROOT / "VERSION").read_text().strip()
STAND_INS = Path(__file__).parent / "entry_point"
MYSQL = 999  # the user of that image
NEEDED = [name for name in ("umoci", "musl-gcc") if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(NEEDED), reason=f"not installed: {' '.join(NEEDED)}")


def make_image(out):
    subprocess.run([support.ROOT / "packaging/image/make_image", support.BUILD, out], check=True,
                   stdout=subprocess.DEVNULL)
    [layout] = out.glob("*.oci")
    return layout


@pytest.fixture(name="layout", scope="module")
def fixture_layout(tmp_path_factory):
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(name="bundle", scope="module")
def fixture_bundle(layout, tmp_path_factory):
    bundle = tmp_path_factory.mktemp("unpacked") / "bundle"
    rootless = ["--rootless"] if os.geteuid() != 0 else []
    subprocess.run(["umoci", "unpack", *rootless, "--image", f"{layout}:{VERSION}", bundle], check=True,
                   capture_output=True)
    return bundle


def blob(layout, digest):
    return json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())


def configuration(layout):
    [manifest] = json.loads((layout / "index.json").read_text())["manifests"]
    return blob(layout, blob(layout, manifest["digest"])["config"]["digest"])


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_it_holds_the_three_files_their_licences_and_the_copier(bundle):
    root = bundle / "rootfs"
    files = {str(path.relative_to(root)): path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()}
    licences = {name for name in files if name.startswith("opt/ringroad/licences/")}
    assert {name: mode for name, mode in files.items() if name not in licences} == {
        "copier": 0o755, "opt/ringroad/bin/ringroad": 0o755, "opt/ringroad/lib/libringroad.so": 0o644,
        "opt/ringroad/lib/libringroad-verbs.so": 0o644}
    # The terms of each library whose code is in the files, as packaging/debian/copyright names them.
    named = re.search(r"Comment:.*?\n\n", (support.ROOT / "packaging/debian/copyright").read_text(), re.DOTALL)[0]
    wanted = {re.sub(r"\d+", "N", name) for name in re.findall(r"lib[\w+-]+-dev|nlohmann\S+-dev", named)}
    there = {re.sub(r"\d+", "N", name.rpartition("/")[2]) for name in licences}
    assert len(wanted) > 5 and there == wanted | {"musl-dev", "ringroad"}
    assert f"ringroad {VERSION}" in output(root / "opt/ringroad/bin/ringroad", "version")


def test_the_copier_needs_no_loader_which_the_image_lacks(bundle):
    assert "INTERP" not in output("readelf", "-lW", bundle / "rootfs/copier")


def test_its_configuration_starts_the_copier_as_a_user_without_rights(layout):
    config = configuration(layout)
    assert config["config"]["Entrypoint"] == ["/copier", "/opt/ringroad"]
    assert config["config"]["User"] == "65534:65534"
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == VERSION
    assert config["os"] == "linux" and config["architecture"] in ("amd64", "arm64")


def test_the_same_build_gives_the_same_image(layout, tmp_path):
    again = make_image(tmp_path)
    assert (again / "index.json").read_bytes() == (layout / "index.json").read_bytes()


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="not installed: skopeo")
def test_the_archive_is_read_by_another_tool(layout, tmp_path):
    archive = f"{layout}.tar"
    subprocess.run(["skopeo", "copy", "--quiet", f"oci-archive:{archive}:{VERSION}", f"dir:{tmp_path}/copy"],
                   check=True, capture_output=True)
    assert (tmp_path / "copy" / "manifest.json").exists()


def test_a_copy_leaves_those_who_use_the_file_of_before_with_that_file(bundle, tmp_path):
    copier, source, target = bundle / "rootfs/copier", bundle / "rootfs/opt/ringroad", tmp_path / "volume"
    target.mkdir()
    before = target / "lib/libringroad.so"
    before.parent.mkdir()
    before.write_text("of the version before")
    with before.open() as used:
        subprocess.run([copier, source, target], check=True, umask=0o077, capture_output=True)
        assert used.read() == "of the version before"
    assert before.read_bytes() == (source / "lib/libringroad.so").read_bytes()
    names = {path.relative_to(target): path.stat().st_mode for path in target.rglob("*")}
    assert set(names) == {path.relative_to(source) for path in source.rglob("*")}
    assert all(mode & 0o044 == 0o044 for mode in names.values())


def test_the_copier_says_what_it_could_not_do(bundle, tmp_path):
    (tmp_path / "lib").write_text("where a folder has to be")
    done = subprocess.run([bundle / "rootfs/copier", bundle / "rootfs/opt/ringroad", tmp_path], check=False,
                          capture_output=True, text=True)
    assert done.returncode == 1 and f"{tmp_path}/lib" in done.stderr, done
    assert subprocess.run([bundle / "rootfs/copier", "one"], check=False, capture_output=True).returncode == 2


class Application:
    """A StatefulSet of the manifests, with this machine's programs and stand-ins for the database's."""

    def __init__(self, name, directory, bundle, user=0):
        resources = manifests.resources(name)
        spec = manifests.pod_of(resources["StatefulSet"])
        self.init, self.server, self.exporter = *spec["initContainers"], *spec["containers"]
        maps = {resources["ConfigMap"]["metadata"]["name"]: resources["ConfigMap"]["data"]}
        self.volumes = containers.volumes_of(resources["StatefulSet"], directory / "volumes", maps)
        programs = {path.name: path.read_text() for path in STAND_INS.iterdir()}
        root, mounts = containers.machine_root(directory / "root", programs, {"mysql": MYSQL})
        self.image = containers.Image(root, mounts, user=user)
        config = json.loads((bundle / "config.json").read_text())
        assert config["process"]["args"][:2] == ["/copier", "/opt/ringroad"]
        self.copier = containers.Image(bundle / "rootfs", entry_point=("/copier", "/opt/ringroad"),
                                       user=config["process"]["user"]["uid"])


@pytest.fixture(name="start", scope="module")
def fixture_start(bundle, tmp_path_factory):
    """Starts a pod whose volume the init container has filled; all of them end with the module."""
    pods = []

    def start(name, user=0, fields=()):
        directory = tmp_path_factory.mktemp(name)
        application = Application(name, directory, bundle, user)
        try:
            pod = containers.Pod(directory, application.volumes, fields).__enter__()
        except containers.Unavailable as reason:
            pytest.skip(str(reason))
        pods.append(pod)
        status, said = pod.run(application.init, application.copier)
        if "copier" not in said:
            pytest.skip(f"runc cannot start a container here: {said[-500:]}")
        assert status == 0, said
        return pod, application

    yield start
    for pod in pods:
        pod.__exit__()


def variables(pid):
    return dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line)


def is_server(pid):
    """The container's first process has become the server: until then it is a shell."""
    return "/usr/local/bin/mysqld" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def wait_for_server(pid, log):
    try:
        support.wait_for(lambda: "ready" in log.read_text() and is_server(pid), "a server that is ready")
    except processes.ProcessError as problem:
        raise processes.ProcessError(f"{problem}: {log.read_text()}") from None


@pytest.fixture(name="mysql", scope="module")
def fixture_mysql(start):
    """The pod of MySQL's manifest, whose image preloads something itself."""
    pod, application = start("mysql")
    application.image.environment["LD_PRELOAD"] = "libm.so.6"
    pid, log = pod.start(application.server, application.image)
    wait_for_server(pid, log)
    pod.start(application.exporter, application.image)
    return pod, application, pid


def test_the_preload_survives_the_entry_point_and_is_added_to_that_of_the_image(mysql):
    _, _, pid = mysql
    assert variables(pid)["LD_PRELOAD"] == "/ringroad/lib/libringroad.so:libm.so.6"
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "/ringroad/lib/libringroad.so" in mapped and "/libm.so.6" in mapped


@pytest.mark.skipif(not containers.can_raise_limits(), reason="root lacks CAP_SYS_RESOURCE here")
def test_the_limit_of_locked_memory_is_lifted_and_stays_when_root_is_left(mysql):
    _, _, pid = mysql
    assert os.stat(f"/proc/{pid}").st_uid == MYSQL
    limits = re.search(r"^Max locked memory +(\S+) +(\S+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    assert limits.groups() == ("unlimited", "unlimited")


def test_a_program_that_kubectl_executes_is_not_preloaded(mysql):
    pod, application, _ = mysql
    shown = pod.execute(application.server["name"], "bash", "-c", "echo $LD_PRELOAD; grep -c ringroad /proc/$$/maps")
    assert shown.stdout.split() == ["libm.so.6", "0"], shown


def test_a_client_in_the_pod_uses_shared_memory_and_the_sidecar_tells_of_it(mysql):
    pod, application, _ = mysql
    command = pod.command(application.server["name"], "/ringroad/bin/ringroad", "run", "--", "mysql")

    def streams():
        shown = pod.execute(application.exporter["name"], "/ringroad/bin/ringroad", "ss", "--json")
        assert shown.returncode == 0, shown
        return [stream for process in json.loads(shown.stdout)["processes"] for stream in process["streams"]]

    def on_channel():
        return [stream["carrier"] for stream in streams() if stream["state"] == "ON_CHANNEL"] == ["shm", "shm"]

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as client:
        support.wait_for(on_channel, f"both ends on shared memory, not {streams()}")
        metrics = pod.execute(application.server["name"], "python3", "-c",
                              "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9071/metrics').read().decode())")
        assert metrics.stdout.count("\nringroad_process_info{") == 2, metrics
        # What an edited ConfigMap does.
        policy = manifests.resources("mysql")["ConfigMap"]["data"]["policy.toml"].replace('"shm"', '"tcp"')
        containers.configure(application.volumes["policy"], {"policy.toml": policy})
        support.wait_for(lambda: [stream["reason"] for stream in streams()] == ["policy", "policy"],
                         "both ends on TCP, as the edited policy says")
        client.stdin.close()


def test_where_the_limit_cannot_be_lifted_the_server_starts_all_the_same(start):
    pod, application = start("mysql")
    del application.server["securityContext"]
    pid, log = pod.start(application.server, application.image)
    wait_for_server(pid, log)
    assert f"no more than {containers.MEMLOCK >> 10} KiB" in log.read_text()
    assert "/ringroad/lib/libringroad.so" in Path(f"/proc/{pid}/maps").read_text()


def test_the_first_member_of_a_cluster_begins_it_and_another_joins_it(start):
    pod, application = start("percona-xtradb-cluster", fields={"metadata.name": "pxc-0"})
    (application.image.root / "etc/hosts").write_text("127.0.0.1 pxc-0.pxc\n")
    first, log = pod.start(application.server, application.image)
    wait_for_server(first, log)
    assert variables(first)["CLUSTER_JOIN"] == ""
    environment = [item for item in application.server["env"] if item["name"] != "POD_NAME"]
    other = {**application.server, "name": "other", "env": [*environment, {"name": "POD_NAME", "value": "pxc-1"}]}
    second, log = pod.start(other, application.image)
    wait_for_server(second, log)
    assert variables(second)["CLUSTER_JOIN"] == "pxc-0.pxc"
    for pid in (first, second):
        assert variables(pid)["LD_PRELOAD"] == "/ringroad/lib/libringroad.so"
        assert os.stat(f"/proc/{pid}").st_uid == 1001


def test_a_member_that_finds_no_other_waits_unless_it_is_the_first(start):
    pod, application = start("percona-xtradb-cluster", fields={"metadata.name": "pxc-1"})
    (application.image.root / "etc/hosts").write_text("127.0.0.1 pxc-0.pxc\n")
    _, log = pod.start(application.server, application.image)
    # It sleeps between two looks: then it has looked.
    support.wait_for(lambda: pod.execute("pxc", "pgrep", "-x", "sleep").stdout.strip(), "a member that waits")
    assert log.read_text() == ""


def calls(directory, library, words):
    """How often a program asks the kernel for what."""
    trace = directory / "trace"
    preload = [f"--env=LD_PRELOAD={library}"] if library else []
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(["strace", "-o", trace, *preload, *words], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, env=environment)
    counted = collections.Counter(re.findall(r"^(\w+)\(", trace.read_text(), re.MULTILINE))
    # Where the heap ends, and how long /proc/self/maps is, which gawk reads, are of chance.
    for name in ("brk", "read"):
        del counted[name]
    return counted


@pytest.mark.skipif(shutil.which("strace") is None, reason="not installed: strace")
@pytest.mark.parametrize("words", [
    ("awk", "BEGIN { for (i = 0; i < %d; i++) { print i; fflush() } }"),
    ("bash", "-c", "for ((i = 0; i < %d; i++)); do echo $i >/dev/null; done"),
    ("sed", "-nu", ":again; $q; p; %d q; n; b again", "/etc/services")], ids=lambda words: words[0])
def test_what_an_entry_point_calls_asks_no_more_of_the_kernel(words, tmp_path):
    """The loader maps the library once. The rest is the program's own, however much it does, but for dup2."""
    def cost(library):
        short, long = (calls(tmp_path, library, [word.replace("%d", str(count)) for word in words])
                       for count in (10, 100))
        return long - short, set(short)

    (plain, asked), (preloaded, asked_preloaded) = map(cost, (None, support.BUILD / "lib" / "libringroad.so"))
    assert sum(plain.values()) >= 90
    plain["getpid"] += plain["dup2"]  # it looks whether the process is a child of vfork
    assert preloaded <= plain
    assert asked_preloaded <= asked
