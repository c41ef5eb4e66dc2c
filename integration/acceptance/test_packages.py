"""The Debian packages install on a bare Debian, work there, and leave nothing when they are purged.

     make package ──▶ *.deb ──▶ lintian
                        └─────▶ a chroot of mmdebstrap's: dpkg -i, a pair of programs, dpkg --purge
                                    └──▶ a copy of it that systemd boots: ringroad@, the exporter
"""

import functools
import os
import re
import shutil
import subprocess

import pytest

from integration.lib import locks

from . import support

NAMES = {"libringroad", "libringroad-verbs", "ringroad"}
NEEDED = [name for name in ("mmdebstrap", "dpkg-deb", "systemctl", "ip")
          if shutil.which(name) is None]
# What the packages depend on; the rest of them needs the mirror only through these.
DEPENDENCIES = ("libibverbs1,librdmacm1,ibverbs-providers,perl-base,procps,"
                "systemd,systemd-sysv,dbus")
LIBRARY = "/usr/lib/*/ringroad/libringroad.so"
# Two ends of one connection on 127.0.0.1:7777, which say one word after another for a while.
SERVER = """use Socket; socket(L, PF_INET, SOCK_STREAM, 0); setsockopt(L, SOL_SOCKET, SO_REUSEADDR, 1);
bind(L, sockaddr_in(7777, INADDR_LOOPBACK)) or die; listen(L, 5); print "up\\n"; open STDOUT, ">/dev/null";
accept(C, L); while (sysread(C, $word, 64)) { syswrite(C, $word) }"""
CLIENT = """use Socket; socket(C, PF_INET, SOCK_STREAM, 0); connect(C, sockaddr_in(7777, INADDR_LOOPBACK)) or die;
while (1) { syswrite(C, "word"); sysread(C, $word, 64) or exit; select(undef, undef, undef, 0.01) }"""


@pytest.fixture(name="packages", scope="module")
def fixture_packages():
    if shutil.which("dpkg-deb") is None:
        pytest.skip("not installed: dpkg")
    with locks.held(support.ROOT / "build" / ".package.lock"):
        make_packages()
    found = {path.name.split("_")[0]: path
             for path in (support.ROOT / "build" / "package").glob("*.deb")}
    assert set(found) == NAMES
    return found


@functools.cache
def make_packages():
    """Once in a run of the tests, whichever worker of pytest-xdist comes first."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    made_by = support.ROOT / "build" / "package" / ".made_by"
    if run and made_by.exists() and made_by.read_text() == run:
        return
    # Nothing of the build directory's is in the objects, so that a compiler cache may give others'.
    done = subprocess.run(["make", "--no-print-directory", "package"], cwd=support.ROOT,
                          env={**os.environ, "CCACHE_NOHASHDIR": "1"}, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made_by.write_text(run)


def field(package, name):
    return subprocess.run(["dpkg-deb", "-f", package, name], check=True, capture_output=True,
                          text=True).stdout.strip()


def needs(package):
    return set(re.findall(r"(?:^|, )([\w.+-]+)", field(package, "Depends")))


def test_each_package_depends_on_what_it_uses_and_no_more(packages):
    assert needs(packages["libringroad"]) == {"libc6"}
    assert needs(packages["libringroad-verbs"]) == {
        "libringroad", "libc6", "libibverbs1", "librdmacm1t64", "ibverbs-providers"}
    assert needs(packages["ringroad"]) == {"libringroad", "libc6"}
    assert field(packages["ringroad"], "Recommends").startswith("libringroad-verbs")
    version = (support.ROOT / "VERSION").read_text().strip()
    for package in packages.values():
        assert field(package, "Version") == version


@pytest.mark.skipif(shutil.which("lintian") is None, reason="not installed: lintian")
def test_lintian_finds_no_error(packages):
    done = subprocess.run(["lintian", "--allow-root", "--tag-display-limit", "0",
                           *packages.values()], capture_output=True, text=True, check=False)
    # ringroad@.service is wanted by the service whose name it has.
    known = "systemd-service-file-refers-to-unusual-wantedby-target %i.service"
    tags = [line for line in done.stdout.splitlines() if line[:2] in ("E:", "W:")]
    assert [tag for tag in tags if known not in tag] == [], done.stdout
    assert done.returncode == 0 and done.stderr == ""


class Bare:
    """A bare Debian in a folder, entered with mounts and process numbers of its own."""

    def __init__(self, root):
        self.root = root

    def run(self, script, check=True):
        # What is mounted goes with the namespace.
        inside = ("set -e; ip link set lo up; mount -t proc proc \"$0/proc\"; mount -t tmpfs tmpfs \"$0/dev/shm\"; "
                  "exec chroot \"$0\" /bin/sh -ec \"$1\"")
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "sh", "-c", inside,
             self.root, script],
            capture_output=True, text=True, check=False, timeout=120,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"})
        assert not check or done.returncode == 0, done
        return done

    def files(self):
        """Every path outside of dpkg's own books."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")
                if not re.match(r"(var/(lib/dpkg|log|cache)|proc|dev|tmp)(/|$)",
                                str(path.relative_to(self.root)))}


@pytest.fixture(name="bare", scope="module")
def fixture_bare(tmp_path_factory):
    if NEEDED:
        pytest.skip(f"not installed: {' '.join(NEEDED)}")
    if os.geteuid() != 0:
        pytest.skip("needs root, for a chroot")
    root = tmp_path_factory.mktemp("bare") / "root"
    release = re.search(r"^VERSION_CODENAME=(\w+)", open("/etc/os-release", encoding="ascii").read(),
                        re.MULTILINE)[1]
    done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include", DEPENDENCIES,
                           release, root], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        shutil.rmtree(root, ignore_errors=True)
        pytest.skip(f"mmdebstrap cannot reach a mirror of Debian: {done.stderr[-500:]}")
    yield Bare(root)
    shutil.rmtree(root)


@pytest.fixture(name="installed")
def fixture_installed(bare, packages):
    before = bare.files()
    for package in packages.values():
        shutil.copy(package, bare.root / "tmp")
    done = bare.run("dpkg -i /tmp/*.deb")
    assert "warning" not in done.stderr, done.stderr
    yield bare
    bare.run(f"dpkg --purge {' '.join(sorted(NAMES, reverse=True))}")
    left = bare.files() - before
    shutil.rmtree(bare.root / "etc" / "ringroad", ignore_errors=True)
    assert left <= {"etc/ringroad", "etc/ringroad/policy.toml"}
    assert before <= bare.files()


def test_they_come_and_go_without_a_trace(installed):
    assert (installed.root / "usr/bin/ringroad").exists()
    # fixture_installed looks at what is left.


def test_the_installed_command_preloads_the_installed_library(installed):
    (installed.root / "etc/ringroad/policy.toml").write_text(
        (support.ROOT / "packaging/policies/within-one-host.toml").read_text())
    shown = installed.run(f"""
        ringroad version
        test "$(ls {LIBRARY})" = "$(ringroad version | sed -n 's/^library: //p')"
        ringroad policy check
        mkfifo /tmp/up
        ringroad run -- perl -e '{SERVER}' >/tmp/up & server=$!
        read word </tmp/up
        ringroad run -- perl -e '{CLIENT}' & client=$!
        for try in $(seq 200); do
          [ "$(ringroad ss | grep -c ON_CHANNEL)" != 2 ] || break
          sleep 0.05
        done
        ringroad ss
        ringroad exporter --once | grep -c ringroad_process_info{{
        kill $client; wait $server
        rm /tmp/up
        """).stdout
    assert shown.count("ON_CHANNEL") == 2 and "within-the-host" in shown, shown
    assert shown.splitlines()[-1] == "2"


def test_enabling_a_service_preloads_it_and_purging_takes_that_back(installed):
    subprocess.run(["systemctl", "--root", installed.root, "enable", "ringroad@mariadb",
                    "ringroad@mysql@1", "ringroad-exporter"], check=True, capture_output=True)
    generator = "/usr/lib/systemd/system-generators/ringroad-generator"
    generate = f"rm -rf /tmp/out; mkdir /tmp/out; {generator} /tmp/out /tmp/x /tmp/y; find /tmp/out -type f"
    made = installed.run(generate).stdout.split()
    assert sorted(made) == ["/tmp/out/mariadb.service.d/50-ringroad.conf",
                            "/tmp/out/mysql@1.service.d/50-ringroad.conf"]
    drop_in = (installed.root / sorted(made)[0].lstrip("/")).read_text()
    library = re.search(r"^Environment=LD_PRELOAD=(.+)$", drop_in, re.MULTILINE)[1]
    assert (installed.root / library.lstrip("/")).is_file()
    assert "\nEnvironmentFile=-/run/ringroad/mariadb.env\n" in drop_in
    subprocess.run(["systemctl", "--root", installed.root, "disable", "ringroad@mysql@1"],
                   check=True, capture_output=True)
    assert len(installed.run(generate).stdout.split()) == 1
    installed.run("dpkg --remove ringroad")
    assert (installed.root / "etc/systemd/system/mariadb.service.wants").is_dir()
    # fixture_installed purges, and finds none of these.


def test_a_policy_of_the_administrator_outlives_the_packages(installed):
    policy = installed.root / "etc/ringroad/policy.toml"
    policy.write_text("version = 1\n")
    installed.run("dpkg --purge ringroad")
    assert policy.read_text() == "version = 1\n"


BOOTED = r"""#!/bin/bash
# The last thing that starts: tries the switch, and the machine is off again.
exec >/result/said 2>&1
of() { tr '\0' '\n' <"/proc/$(systemctl show -P MainPID "$1")/environ" | grep ^LD_PRELOAD=; }
preload() { echo "$1: $(of sleeper)"; }
preload boot
echo "beside: $(of beside)"
echo "stranger: $(systemctl is-active stranger) $(of stranger)"
echo "told: $(journalctl -q -o cat -u ringroad@stranger | grep -m1 'without the library')"
cp --remove-destination /bin/sleep /opt/stranger; systemctl restart stranger
echo "mended: $(of stranger)"
echo "limits: $(systemctl show -P LimitMEMLOCK sleeper) $(systemctl show -P PrivateDevices sleeper)"
echo "folder: $(stat -c '%U %a' /dev/shm/ringroad)"
echo "check: $(systemctl show -P Result ringroad@sleeper)"
systemctl -q disable ringroad@sleeper ringroad@beside ringroad@stranger; systemctl restart sleeper; preload disabled
systemctl -q enable ringroad@sleeper; systemctl restart sleeper; preload enabled
systemctl -q enable --now ringroad-exporter
for try in {1..100}; do exec 3<>/dev/tcp/127.0.0.1/9071 && break; sleep 0.1; done 2>/dev/null
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
echo "exporter: $(head -1 <&3 | tr -d '\r')"
dpkg --purge ringroad libringroad-verbs libringroad >/dev/null
systemctl restart sleeper; preload purged
echo "left: $(systemctl list-units --no-legend --plain 'ringroad*') $(find /etc/systemd /run/systemd/generator -name '*ringroad*')"
systemctl poweroff
"""
# Of type exec, for systemctl to return when the process is the program: before that its variables are systemd's.
UNITS = {"sleeper.service": "[Service]\nType=exec\nExecStart=/bin/sleep 1000\nPrivateDevices=yes\n",
         "beside.service": "[Service]\nType=exec\nEnvironment=LD_PRELOAD=libm.so.6\nExecStart=/bin/sleep 1000\n",
         # Its loader has musl's name.
         "stranger.service": "[Service]\nType=exec\nExecStart=/opt/stranger 1000\n",
         "tries.service": "[Unit]\nAfter=multi-user.target\n[Service]\nExecStart=/bin/bash /result/tries\n"}


@pytest.mark.skipif(shutil.which("systemd-nspawn") is None, reason="not installed: systemd-container")
def test_a_real_systemd_preloads_what_is_enabled_and_nothing_after_a_purge(installed, tmp_path):
    (tmp_path / "tries").write_text(BOOTED)
    units = installed.root / "etc/systemd/system"
    (installed.root / "etc/ringroad/policy.toml").write_text(
        (support.ROOT / "packaging/policies/mariadb-server.toml").read_text())
    wants = units / "multi-user.target.wants"
    made = [units / name for name in UNITS] + [wants / name for name in UNITS]
    program, loader = installed.root / "opt/stranger", installed.root / "opt/ld-musl.so.1"
    made += [program, loader]
    try:
        shutil.copy(installed.root / "bin/sleep", program)
        bytes_ = program.read_bytes()
        asked = re.search(rb"/lib[\w/-]*/ld-linux[\w.-]+\0", bytes_)[0]
        shutil.copy(installed.root / asked[1:-1].decode(), loader)
        program.write_bytes(bytes_.replace(asked, b"/opt/ld-musl.so.1".ljust(len(asked), b"\0")))
        for name, text in UNITS.items():
            (units / name).write_text(text)
            (wants / name).symlink_to(f"/etc/systemd/system/{name}")
        subprocess.run(["systemctl", "--root", installed.root, "enable", "ringroad@sleeper",
                        "ringroad@beside", "ringroad@stranger"],
                       check=True, capture_output=True)
        # A copy is booted, which goes with the machine.
        done = subprocess.run(
            ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--ephemeral", "--boot",
             "--private-network", f"--bind={tmp_path}:/result", f"--directory={installed.root}"],
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=170)
    finally:
        for path in made:
            path.unlink(missing_ok=True)
    if not (tmp_path / "said").exists():
        pytest.skip(f"systemd-nspawn cannot boot here: {(done.stderr + done.stdout)[-500:]}")
    said = dict(line.split(": ", 1) for line in (tmp_path / "said").read_text().splitlines())
    preloaded = r"LD_PRELOAD=/usr/lib/[\w-]+/ringroad/libringroad\.so"
    assert re.fullmatch(preloaded, said["boot"]) and re.fullmatch(preloaded, said["enabled"]), said
    assert re.fullmatch(preloaded.replace("=", "=libm.so.6:", 1), said["beside"]), said
    assert said["stranger"] == "active LD_PRELOAD=", said
    assert "stranger is started without the library" in said["told"], said
    assert re.fullmatch(preloaded, said["mended"]), said
    assert said["folder"] == "root 1777", said
    assert said["limits"] == "infinity no" and said["check"] == "success", said
    assert said["disabled"] == said["purged"] == "", said
    assert said["exporter"] == "HTTP/1.0 200 OK", said
    assert said["left"].strip() == "", said


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="not installed: systemd")
@pytest.mark.parametrize("unit", ["ringroad-exporter.service", "ringroad@mariadb.service"])
def test_systemd_understands_the_units(installed, unit):
    done = subprocess.run(["systemd-analyze", "verify", f"--root={installed.root}", "--man=no", unit],
                          capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "ringroad" in line]
    assert ours == [], done.stderr


@pytest.mark.parametrize("example", sorted((support.ROOT / "packaging/policies").glob("*.toml")),
                         ids=lambda path: path.name)
def test_each_example_of_a_policy_is_accepted_without_a_warning(example):
    done = subprocess.run([support.BUILD / "bin" / "ringroad", "policy", "check", example],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
