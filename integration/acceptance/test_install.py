"""What `make install` puts in place works from there."""

import os
import re
import shutil
import subprocess

import pytest

from integration.bench import net_ends

from . import support


@pytest.mark.skipif(not (support.BUILD / "cmake_install.cmake").exists(),
                    reason=f"{support.BUILD} was not made by cmake")
def test_the_installed_files_find_each_other(tmp_path):
    subprocess.run(["cmake", "--install", support.BUILD, "--prefix", tmp_path], check=True,
                   stdout=subprocess.DEVNULL, env={**os.environ, "DESTDIR": ""})
    libraries = {path.name: path for path in tmp_path.rglob("libringroad*.so")}
    assert set(libraries) == {"libringroad.so", "libringroad-verbs.so"}
    assert libraries["libringroad.so"].parent == libraries["libringroad-verbs.so"].parent
    command = shutil.which("ringroad", path=tmp_path / "bin")
    shown = subprocess.run([command, "version"], check=True, capture_output=True, text=True).stdout
    assert str(libraries["libringroad.so"]) in shown
    refused = subprocess.run([command, "bench", "oltp", "--threads", "0", "--out", tmp_path / "out"],
                             capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "0 is not positive" in refused.stderr, refused
    programs = {path.name for path in (tmp_path / "share" / "ringroad").rglob("*")}
    assert {"agent.py", "gated.lua", "smc_socket.c", "mariadb.py"} <= programs
    assert {"ringroad.te", "ringroad.fc", "ringroad-selinux", "ringroad", "sample"} <= programs
    assert not [name for name in programs if name.startswith(("test", "__pycache__"))]
    load = net_ends.program(command)
    assert load.startswith(str(tmp_path)) and os.access(load, os.X_OK)
    measured = subprocess.run([command, "bench", "net", "--measures", "rate", "--carriers", "tcp,shm",
                               "--rounds", "1", "--out", tmp_path / "out"], capture_output=True,
                              text=True, check=False)
    assert measured.returncode == 0, measured.stdout + measured.stderr


def test_units_and_examples_name_the_folders_that_they_are_installed_in(tmp_path):
    """As `make install PREFIX=...` does, without the products' build: in a folder of its own."""
    build, prefix = tmp_path / "build", tmp_path / "where"
    subprocess.run(["cmake", "-S", support.ROOT, "-B", build, "-G", "Ninja",
                    f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DBUILD_TESTING=OFF"], check=True,
                   stdout=subprocess.DEVNULL)
    share = build / "packaging" / "share"
    named = {path.name: path.read_text() for path in share.rglob("*") if path.is_file()}
    for unit in ("ringroad@.service", "ringroad-exporter.service"):
        assert f"{prefix}/bin/ringroad " in named[unit], unit
    for profile in ("ringroad", "sample"):
        assert f'include "{prefix}/share/ringroad/apparmor/ringroad"' in named[profile], profile
    library = re.compile(rf"{re.escape(str(prefix))}/lib[\w/-]*/libringroad(\{{,-verbs\}})?\.so")
    for text in ("ringroad-generator", "mariadb.conf", "tikv.conf", "ringroad"):
        assert library.search(named[text]), text
    for name, text in named.items():
        assert "@CMAKE_" not in text and "@RINGROAD_" not in text, name
