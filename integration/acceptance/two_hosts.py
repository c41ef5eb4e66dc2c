"""How two machines of one test tell each other how far they are: files in $SHARE."""

import json
import os
from pathlib import Path

from . import support

SHARE = Path(os.environ.get("SHARE", "/nowhere"))
NODE = os.environ.get("NODE", "")
# The other machine starts a server meanwhile, or runs a load.
OTHER_S = 300


class Meeting:
    """Both machines' test of one name; what fails at one end fails at the other, too."""

    def __init__(self, name):
        self._name = name

    def _path(self, name):
        return SHARE / f"{self._name}-{name}"

    def say(self, name, value=True):
        """Leaves a value for the other machine; it appears whole or not at all."""
        written = self._path(f"{name}.new")
        written.write_text(json.dumps(value))
        written.rename(self._path(name))

    def hear(self, name, limit_s=OTHER_S):
        support.wait_for(lambda: self._path(name).exists() or self._failed(),
                         f"the other machine's {name}", limit_s)
        assert not self._failed(), self._failed()
        return json.loads(self._path(name).read_text())

    def meet(self, name):
        """Returns when both are here."""
        self.say(f"{name}-{NODE}")
        for node in ("1", "2"):
            self.hear(f"{name}-{node}")

    def _failed(self):
        """What went wrong on either machine."""
        return [path.read_text() for path in SHARE.glob(f"{self._name}-problem-?")]

    def __enter__(self):
        return self

    def __exit__(self, _, problem, __):
        if problem is not None:
            self.say(f"problem-{NODE}", f"on node {NODE}: {problem}")
