"""The RPM packages and the archive of `make package` have what works where it is put."""

import os
import shutil
import subprocess

import pytest

from . import support
from .test_packages import NAMES, fixture_packages  # pylint: disable=unused-import

VERSION = (support.ROOT / "VERSION").read_text(encoding="ascii").strip()
NO_RPM = pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="not installed: rpm")
PACKAGES = support.ROOT / "build" / "package"


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.fixture(name="rpms")
def fixture_rpms(packages):
    assert packages
    found = {output("rpm", "-qp", "--qf", "%{NAME}", path): path for path in PACKAGES.glob("*.rpm")}
    assert set(found) == NAMES
    return found


def needs(package):
    return {line for line in output("rpm", "-qpR", package).splitlines()
            if not line.startswith(("rpmlib(", "/bin/sh"))}


@NO_RPM
def test_each_rpm_depends_on_what_it_uses_and_no_more(rpms):
    libc, same = "libc.so.6(GLIBC_2.17)(64bit)", f"libringroad = {VERSION}"
    assert needs(rpms["libringroad"]) == {libc}
    assert needs(rpms["ringroad"]) == {libc, same}
    assert needs(rpms["libringroad-verbs"]) == {
        libc, same, "libibverbs.so.1(IBVERBS_1.1)(64bit)", "librdmacm.so.1(RDMACM_1.0)(64bit)"}


@NO_RPM
def test_the_rpms_install_in_an_empty_folder_and_leave_no_file(rpms, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    rpm = ["rpm", "--root", root, "--dbpath", "/books"]
    subprocess.run([*rpm, "--initdb"], check=True, capture_output=True)
    # The folder has neither glibc nor a shell.
    subprocess.run([*rpm, "-i", "--nodeps", "--noscripts", *rpms.values()], check=True,
                   capture_output=True)
    shown = output(root / "usr/bin/ringroad", "version")
    assert f"ringroad {VERSION}" in shown
    assert f"library: {root}/usr/lib64/ringroad/libringroad.so" in shown
    assert (root / "etc/ringroad/policy.d").is_dir()
    generator = (root / "usr/lib/systemd/system-generators/ringroad-generator").read_text()
    assert "LD_PRELOAD=/usr/lib64/ringroad/libringroad.so" in generator
    rules = (root / "usr/share/ringroad/apparmor/ringroad").read_text()
    assert "/usr/lib64/ringroad/libringroad{,-verbs}.so mr," in rules
    assert os.access(root / "usr/share/ringroad/selinux/ringroad-selinux", os.X_OK)
    subprocess.run([*rpm, "-e", "--noscripts", *NAMES], check=True, capture_output=True)
    assert [path for path in root.rglob("*")
            if path.is_file() and "books" not in path.parts] == []


def test_the_archive_works_where_it_is_unpacked(packages, tmp_path):
    assert packages
    [archive] = PACKAGES.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path], check=True)
    [top] = tmp_path.iterdir()
    assert f"{top.name}.tar.gz" == archive.name and top.name.startswith(f"ringroad-{VERSION}-")
    shown = output(top / "bin/ringroad", "version")
    assert f"library: {top}/lib/libringroad.so" in shown
    assert (top / "lib/libringroad-verbs.so").is_file()
    run = output(top / "bin/ringroad", "run", "--", "sh", "-c", "echo $LD_PRELOAD")
    assert run.strip() == f"{top}/lib/libringroad.so"
    for unit in (top / "lib/systemd/system").iterdir():
        assert "ExecStart=/opt/ringroad/bin/ringroad " in unit.read_text(), unit
    assert "/opt/ringroad" in (top / "README").read_text()
    rules = (top / "share/ringroad/apparmor/ringroad").read_text()
    assert 'include "/opt/ringroad/share/ringroad/apparmor/ringroad"' in rules
