"""The build from source in the root of a newer release, with its gcc and glibc."""

import os
from pathlib import Path

from integration.acceptance import support
from integration.lib import roots

from . import builds

RELEASE = "trixie"
BUILD = support.ROOT / "build" / RELEASE
TARGETS = ("ringroad", "ringroad-verbs", "ringroad_cli", "preload_test")


def place():
    """With this user's compiler cache, which is another folder in the root."""
    folder = Path(os.environ.get("CCACHE_DIR") or Path.home() / ".cache" / "ccache")
    folder.mkdir(parents=True, exist_ok=True)
    variables = {name: os.environ[name] for name in ("CCACHE_BASEDIR", "CCACHE_NOHASHDIR", "CCACHE_SLOPPINESS")
                 if name in os.environ}
    return roots.Place(RELEASE, (folder,)), {"CCACHE_DIR": str(folder), **variables}


def build():
    """Unless it is done already."""
    where, environment = place()
    builds.build(BUILD, TARGETS, command=lambda words: where.command(words, environment))
