"""What `make install` puts in place works from there."""

import os
import shutil
import subprocess

import pytest

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
