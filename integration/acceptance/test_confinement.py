"""What is installed for SELinux and AppArmor compiles, and gives what the library asks for.

     packaging/selinux  ── checkmodule ── semodule, on a copy of Debian's policy ── its rules are read
     packaging/apparmor ── apparmor_parser, in profiles that begin as those of the servers do

No kernel here has either: that one enforces these rules as they are meant is not tested.
"""

import fnmatch
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from . import support

MODULE = support.ROOT / "packaging" / "selinux"
PROFILES = support.ROOT / "packaging" / "apparmor"
DOCTOR = support.ROOT / "cli" / "doctor" / "selinux_checks.cc"
DEBIANS = Path("/etc/selinux/default/policy")
DOMAINS = ("mysqld_t", "postgresql_t", "redis_t")


def need(*programs):
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {' '.join(missing)}")


@pytest.fixture(name="module")
def fixture_module(tmp_path):
    need("checkmodule", "semodule_package")
    subprocess.run([MODULE / "ringroad-selinux", "build", tmp_path], check=True)
    return tmp_path / "ringroad.pp"


def test_the_module_compiles_and_is_packaged_with_its_labels(module):
    assert b"/dev/shm/ringroad(/.*)?" in module.read_bytes()


def needed_rules():
    """The rules that `ringroad doctor` asks for: source, target, class, permissions."""
    table = DOCTOR.read_text().replace("kRuntimeType,", '"ringroad_runtime_t",')
    found = re.findall(r'\{Needs::\w+, "(\w+)", "(\w+)", "(\w+)",\s+"([a-z_ ]+)"\}', table)
    assert len(found) == table.count("{Needs::"), "a row that this does not understand"
    return [(*row[:3], set(row[3].split())) for row in found]


class Policy:
    """What a binary policy allows whatever its booleans say."""

    def __init__(self, path, setools):
        policy = setools.SELinuxPolicy(str(path))
        self.names = {str(kind): {str(kind), *map(str, kind.attributes())} for kind in policy.types()}
        self.rules = [rule for rule in policy.terules() if rule.ruletype == setools.TERuletype.allow and
                      not self.is_conditional(rule, setools)]
        self.memory = {str(rule.source): str(rule.default) for rule in policy.terules()
                       if rule.ruletype == setools.TERuletype.type_transition and
                       str(rule.target) == "tmpfs_t" and str(rule.tclass) == "file"}
        self.classes = {str(one): set(map(str, one.perms)) | self.inherited(one)
                        for one in policy.classes()}

    @staticmethod
    def is_conditional(rule, setools):
        try:
            return bool(rule.conditional)
        except setools.exception.RuleNotConditional:
            return False

    @staticmethod
    def inherited(one):
        try:
            return set(map(str, one.common.perms))
        except Exception:  # setools has a class of its own for a class without a common
            return set()

    def lacks(self, domain):
        """The permissions of each needed rule that it does not have."""
        named = {"domain": domain, "init": "init_t", "memfd": self.memory.get(domain, "tmpfs_t")}
        wanted = {}
        for source, target, kind, permissions in needed_rules():
            key = (named.get(source, source), named.get(target, target), kind)
            # `map` and `watch` are younger than some policies.
            wanted[key] = permissions & self.classes.get(kind, set())
        for rule in self.rules:
            for (source, target, kind), left in wanted.items():
                if left and str(rule.tclass) == kind and str(rule.source) in self.names.get(source, ()) and (
                        str(rule.target) in self.names.get(target, ()) or
                        (str(rule.target) == "self" and source == target)):
                    left -= set(map(str, rule.perms))
        return {key: left for key, left in wanted.items() if left}


def test_the_module_gives_the_servers_what_debians_policy_does_not(module, tmp_path):
    need("semodule")
    setools = pytest.importorskip("setools", reason="not installed: python3-setools")
    if not DEBIANS.is_dir() or os.geteuid() != 0:
        pytest.skip("not installed: selinux-policy-default; or not root, who may read its modules")
    for folder in ("etc/selinux", "var/lib/selinux"):
        shutil.copytree(Path("/") / folder, tmp_path / folder, symlinks=True)
    subprocess.run(["semodule", "-p", tmp_path, "-s", "default", "-n", "-i", module], check=True,
                   capture_output=True)
    before = Policy(max(DEBIANS.glob("policy.*")), setools)
    after = Policy(max((tmp_path / "etc/selinux/default/policy").glob("policy.*")), setools)
    labels = tmp_path / "etc/selinux/default/contexts/files/file_contexts"
    assert "/dev/shm/ringroad(/.*)?\tsystem_u:object_r:ringroad_runtime_t:s0\n" in labels.read_text()
    for domain in DOMAINS:
        assert after.lacks(domain) == {}, domain
        missing = before.lacks(domain)
        assert "watch" in missing[domain, "etc_t", "file"]
        assert "nlmsg_read" in missing[domain, domain, "netlink_tcpdiag_socket"]
        assert "open" in missing[domain, "infiniband_device_t", "chr_file"]
        assert (domain, "ringroad_runtime_t", "file") in missing


def abstraction(folder):
    """The abstraction as it is installed, in `folder`; its path."""
    path = folder / "apparmor" / "ringroad"
    path.parent.mkdir(exist_ok=True)
    for name in ("ringroad", "sample"):
        text = (PROFILES / f"{name}.in").read_text()
        text = text.replace("@RINGROAD_APPARMOR@", str(path))
        text = text.replace("@RINGROAD_FULL_LIBRARY_DIR@", "/usr/lib/x86_64-linux-gnu/ringroad")
        (path.parent / name).write_text(text)
    return path


def parsed(profile, *options):
    """The profile with all that it includes, as the parser has compiled it without a kernel."""
    need("apparmor_parser")
    words = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", *options, profile]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([*words, "--preprocess"], check=True, capture_output=True, text=True).stdout


def test_the_sample_profile_is_parsed_with_the_abstraction(tmp_path):
    path = abstraction(tmp_path)
    assert '"@ringroad/**"' in parsed(path.parent / "sample")


# How the profiles of Ubuntu's MySQL and of Debian's MariaDB begin and end.
@pytest.mark.parametrize("name, head, local", [
    ("usr.sbin.mysqld", "/usr/sbin/mysqld", "#include <local/usr.sbin.mysqld>"),
    ("mariadbd", "profile mariadbd /usr/sbin/mariadbd flags=(attach_disconnected)",
     "include if exists <local/mariadbd>")])
def test_the_line_goes_into_the_local_file_of_a_servers_profile(tmp_path, name, head, local):
    path = abstraction(tmp_path)
    profile = tmp_path / name
    profile.write_text(f"include <tunables/global>\n{head} {{\n  include <abstractions/base>\n"
                       f"  include <abstractions/mysql>\n  network tcp,\n  {local}\n}}\n")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / name).write_text("")
    include = ("--Include", str(tmp_path))
    assert "ringroad" not in parsed(profile, *include)
    (tmp_path / "local" / name).write_text(f'include "{path}"\n')
    assert "/dev/infiniband/{rdma_cm,uverbs[0-9]*} rw," in parsed(profile, *include)


def without_braces(pattern):
    """Each pattern that one with {a,b} stands for."""
    inner = re.search(r"\{([^{}]*)\}", pattern)
    if inner is None:
        return [pattern]
    return [whole for part in inner[1].split(",")
            for whole in without_braces(pattern[:inner.start()] + part + pattern[inner.end():])]


# What the library only asks stat(2), readlink(2) or access(2) about, which AppArmor lets pass; what
# abstractions/base has; and what an error about a policy says.
NOT_OPENED = ("/proc/1/ns/*", "/proc/1/exe", "/proc/1/fd/1", "/dev/log", "/sys/fs/cgroup/")


def test_each_path_that_the_library_opens_has_a_rule():
    text = (PROFILES / "ringroad.in").read_text().replace("@{PROC}", "/proc").replace("@{sys}", "/sys")
    text = text.replace("@{pid}", "1").replace("@{tid}", "1")
    rules = [glob for line in text.splitlines() if line.startswith("/")
             for glob in without_braces(line.split()[0])]
    sources = [path for folder in ("preload", "rsocket-core", "policy")
               for pattern in ("*.cc", "*.h") for path in (support.ROOT / folder).rglob(pattern)]
    opened = {path for source in sources
              for path in re.findall(r'"(/(?:proc|sys|dev|etc)/[^" ]+)"', source.read_text())}
    assert len(opened) > 10
    lacking = set()
    for path in opened:
        name = re.sub("^/proc/(thread-)?self", "/proc/1", path).replace("%d", "1").replace("%ld", "1")
        if not any(fnmatch.fnmatch(name, glob) or fnmatch.fnmatch(name + "/", glob)
                   for glob in [*rules, *NOT_OPENED]):
            lacking.add(path)
    assert lacking == set()
