"""The library and the command of the release before this one, built once from the history in build/previous."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.lib import locks

ROOT = Path(__file__).resolve().parents[2]
COMMIT = (Path(__file__).parent / "previous").read_text().split()[0]
FOLDER = ROOT / "build" / "previous"
TARGETS = ("ringroad", "ringroad-verbs", "ringroad_cli")


def is_built():
    done = FOLDER / "built"
    return done.exists() and done.read_text() == COMMIT


def why_not():
    """Why it can be neither found nor made here, or an empty string."""
    if is_built():
        return ""
    if shutil.which("git") is None:
        return "not installed: git"
    done = subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{COMMIT}^{{commit}}"],
                          capture_output=True, text=True, check=False)
    return f"no commit {COMMIT} in this history: {done.stderr.strip()}" if done.returncode else ""


def environment():
    result = dict(os.environ)
    # Its sources do not compile with gcc 13 and later.
    if shutil.which("g++-12"):
        result |= {"CC": "gcc-12", "CXX": "g++-12"}
    if shutil.which("ccache"):
        # Most files are those of today; the folder that they stand in is no part of them.
        result |= {"CMAKE_C_COMPILER_LAUNCHER": "ccache", "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
                   "CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(FOLDER / "source")}
    return result


def run(*command, **more):
    done = subprocess.run(list(map(str, command)), cwd=FOLDER / "source", env=environment(),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **more)
    assert done.returncode == 0, done.stdout.decode(errors="replace")


def build():
    """Its build folder, with lib/ and bin/; skips the test where the history does not hold it."""
    if problem := why_not():
        pytest.skip(problem)
    with locks.held(FOLDER / "lock"):
        if not is_built():
            shutil.rmtree(FOLDER / "source", ignore_errors=True)
            (FOLDER / "source").mkdir()
            archive = subprocess.run(["git", "-C", ROOT, "archive", COMMIT], capture_output=True,
                                     check=True)
            run("tar", "-x", input=archive.stdout)
            # CLI11 2.4 ends a command at whose start it is given such a name; it stands in the help alone.
            run("sed", "-i", 's/add_option("PROCESS... MODE"/add_option("PROCESS"/', "cli/set_cmd.cc")
            run("cmake", "--preset", "release", "--log-level=WARNING")
            run("cmake", "--build", "--preset", "release", "--parallel", os.cpu_count(),
                "--target", *TARGETS)
            (FOLDER / "built").write_text(COMMIT)
    return FOLDER / "source" / "build"
