"""Roots of other Debian releases, and programs that run inside one on this machine's kernel.

A root is a folder that mmdebstrap fills once from the machine's own mirror. A program inside it has
the root's files, but this machine's processes, networks, /dev (with /dev/shm) and /proc, so that
`ringroad ss` out here sees it. What it writes goes to memory and vanishes with it, except below the
project's tree and the `writable` folders: these are at their own paths. Its mounts are its own and
end with it.

`python3 -m integration.lib.roots [NAME...]`, in the project's folder, makes these roots, or all.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from . import locks, processes

PROJECT = Path(__file__).resolve().parents[2]
PROBE_S = 60
MAKE_S = 900
REMOVE_TRIES = 5
STAMP = ".ringroad-root"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOG_LINES = 12
SERVICES_OFF = r'''printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"
chmod 755 "$1/usr/sbin/policy-rc.d"'''
RELEASES = ("oldoldstable", "oldstable", "stable", "testing", "unstable", "sid")

LIBRARIES = ("libibverbs-dev librdmacm-dev libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libboost-dev "
             "libspdlog-dev libgtest-dev libgmock-dev libbenchmark-dev")
BUILD = f"g++ cmake ninja-build pkg-config ccache {LIBRARIES}"
TALK = "python3 procps iproute2 mount ibverbs-providers"


@dataclass(frozen=True)
class Root:
    release: str
    packages: str
    why: str
    # A root of another architecture is only unpacked: it is compiled against, nothing in it is run.
    architecture: str = ""

    def key(self):
        """Another key, another root."""
        words = [self.release, self.architecture, SERVICES_OFF, *sorted(self.packages.split())]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()


ROOTS = {
    "bullseye": Root("bullseye", f"{TALK} librdmacm1 mariadb-server mariadb-client sysbench redis-server "
                     "redis-tools", "glibc 2.31, older than what the products are built on"),
    "trixie": Root("trixie", f"{TALK} {BUILD} mariadb-server mariadb-client galera-4 sysbench",
                   "glibc 2.41, gcc 14, clang 19, CMake 3.31: builds from source"),
    # MySQL and MariaDB conflict, and sysbench needs MariaDB's library.
    "sid": Root("sid", f"{TALK} librdmacm1t64 rdma-core mysql-server mysql-client mysql-router valkey-server "
                "valkey-tools redis-tools perl openssl", "the newest MySQL, Valkey and glibc"),
    "sid-mariadb": Root("sid", f"{TALK} librdmacm1t64 mariadb-server mariadb-client galera-4 sysbench rsync "
                        "socat", "the newest MariaDB and Galera"),
    "bookworm-arm64": Root("bookworm", f"libc6-dev libstdc++-12-dev {LIBRARIES}",
                           "what the products for aarch64 are compiled against", "arm64"),
}

# What it starts and mounts ends with it, whatever ends it.
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
              "--mount-proc")

# $1 the root, $2 the working folder, then folders to have at their own paths up to `--`, then the
# program's variables and words. The last exec leaves the program in the process that was started.
ENTER = """
set -e
cd "$1"
directory=$2
shift 2
mount -t tmpfs tmpfs mnt
mkdir mnt/upper mnt/work mnt/root
mount -t overlay overlay -o lowerdir=.,upperdir=mnt/upper,workdir=mnt/work mnt/root
for same in /proc /sys /dev; do mount --rbind "$same" "mnt/root$same"; done
while [ "$1" != -- ]; do
  mkdir -p "mnt/root$1"
  mount --bind "$1" "mnt/root$1"
  shift
done
shift
exec chroot mnt/root env -i -C "$directory" "$@"
"""


class Unavailable(Exception):
    """The machine cannot make or enter a root: a reason to skip, not a fault."""


def directory():
    return Path(os.environ.get("RINGROAD_ROOTS") or PROJECT / "build" / "roots")


def mirror(targets, codename):
    """The address of Debian's own packages, out of what apt calls its index targets.

    `targets` has lines of address, release and component.
    """
    for line in targets.splitlines():
        address, release, component = line.split()
        if release in (codename, *RELEASES) and component == "main":
            return address
    raise Unavailable("no mirror of Debian in the machine's apt sources")


def machines_mirror():
    try:
        done = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
             "Created-By: Packages"], capture_output=True, text=True, check=False)
        codename = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(),
                             re.MULTILINE)
    except FileNotFoundError:
        raise Unavailable("no Debian system: no apt-get") from None
    return mirror(done.stdout, codename[1] if codename else "")


def check_can_make(release):
    """The mirror's address; Unavailable when it, or a tool, is not there."""
    check_can_enter()
    if shutil.which("mmdebstrap") is None:
        raise Unavailable("not installed: mmdebstrap")
    address = machines_mirror()
    index = f"{address.rstrip('/')}/dists/{release}/InRelease"
    try:
        with tempfile.TemporaryDirectory() as work:
            done = subprocess.run(["/usr/lib/apt/apt-helper", "-o", "Acquire::Retries=1",
                                   "download-file", index, f"{work}/index"], capture_output=True,
                                  text=True, check=False, timeout=PROBE_S)
        if done.returncode == 0:
            return address
        said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
    except subprocess.TimeoutExpired:
        said = [f"silent for {PROBE_S} s"]
    raise Unavailable(f"the mirror does not give {release}: {said[0]}")


def check_can_enter():
    if os.geteuid() != 0:
        raise Unavailable("needs root, for mounts and chroot")
    if shutil.which("unshare") is None:
        raise Unavailable("not installed: unshare")


def is_made(name):
    """Whether the root is there as ROOTS describes it."""
    place = directory() / name
    if not place.exists():
        return False
    stamp = place / STAMP
    if stamp.exists():
        return stamp.read_text() == ROOTS[name].key()
    if os.environ.get("RINGROAD_ROOTS"):
        return True  # made by hand
    raise RuntimeError(f"{place} was not made by this program: remove it, or set RINGROAD_ROOTS")


def ensure(name):
    """The root's folder, made first when it is not there as ROOTS describes it."""
    check_can_enter()
    directory().mkdir(parents=True, exist_ok=True)
    with locks.held(directory() / f".{name}.lock"):
        if not is_made(name):
            make(name, check_can_make(ROOTS[name].release))
    return (directory() / name).resolve()


def make(name, address):
    root = ROOTS[name]
    place, building, log = (directory() / f"{name}{end}" for end in ("", ".building", ".log"))
    remove(building)
    began = time.monotonic()
    print(f"root {name}: {root.release} with mmdebstrap, {root.why}", flush=True)
    command = [*OWN_MOUNTS, "mmdebstrap", "--mode=root", "--aptopt=Acquire::Check-Valid-Until \"false\"",
               "--aptopt=APT::Install-Recommends \"false\"", f"--include={','.join(root.packages.split())}"]
    if root.architecture:
        command += ["--variant=extract", f"--architectures={root.architecture}"]
    else:
        command += ["--variant=apt", f"--customize-hook={SERVICES_OFF}"]
    try:
        with open(log, "wb") as said:
            done = subprocess.run([*command, root.release, str(building), address], stdout=said,
                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
                                  timeout=processes.patient(MAKE_S))
        if done.returncode != 0:
            last = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise RuntimeError(f"mmdebstrap made no {name} (status {done.returncode}):\n"
                               + "\n".join(last))
        (building / STAMP).write_text(root.key())
        remove(place)
        building.rename(place)
    finally:
        remove(building)
    print(f"root {name}: made in {time.monotonic() - began:.0f} s", flush=True)


def remove(place):
    """Also what is mounted in there goes: rm crosses no file system."""
    for tries_left in reversed(range(REMOVE_TRIES)):
        unmount_below(place)
        done = subprocess.run(["rm", "-rf", "--one-file-system", str(place)], check=not tries_left)
        if done.returncode == 0:
            return
        time.sleep(1)  # a process that is being killed has written there


def unmount_below(place):
    for mounted in mounts_below(place, Path("/proc/self/mountinfo").read_text()):
        subprocess.run(["umount", "--lazy", mounted], check=False)


def mounts_below(place, mountinfo):
    """Where something is mounted at `place` or below it, the latest first."""
    place = os.path.realpath(place)
    points = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4])
              for line in mountinfo.splitlines()]
    return [point for point in reversed(points) if f"{point}/".startswith(f"{place}/")]


def inside(name, argv, env=None, cwd=None, writable=()):
    """The command line that runs `argv` in the root, as the very process that is started.

    The program's variables are `env` and nothing of this process's; its folder is `cwd`, or the
    project. Each `writable` folder exists and is at its own path inside.
    """
    root = (directory() / name).resolve()
    same = [str(Path(folder).resolve()) for folder in (PROJECT, *writable)]
    variables = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **(env or {})}
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", str(root),
            str(cwd or PROJECT), *same, "--",
            *(f"{variable}={value}" for variable, value in variables.items()), *map(str, argv)]


@dataclass(frozen=True)
class Place:
    """Where programs run: in a root, with the `writable` folders at their own paths."""
    root: str
    writable: tuple = ()

    def command(self, argv, env=None):
        return inside(self.root, argv, env, writable=self.writable)


def main(names):
    """A root that this machine cannot make is told, and no failure: its tests are skipped."""
    unknown = set(names) - set(ROOTS)
    if unknown:
        print(f"no root {', '.join(sorted(unknown))}; there are {', '.join(ROOTS)}", file=sys.stderr)
        return 2
    for name in names or ROOTS:
        try:
            print(f"root {name}: {ensure(name)}", flush=True)
        except Unavailable as reason:
            print(f"root {name}: unavailable: {reason}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
