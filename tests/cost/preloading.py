"""The environment of a program that runs under the library, by a policy of its own, and nothing of the caller's."""

import os
from pathlib import Path

RULE = """version = 1
max_channels = 65536
[[rule]]
name = "counted"
subnet = ["127.0.0.0/8"]
via = "shm"
"""
# Both ends on a channel before the first message, so that each takes the same way.
AT_ONCE = """promote_after = { messages = 0 }
wait = "60s"
"""


def environment(library: str | None, directory: Path, more: str = "") -> dict[str, str]:
    """`more`: further lines of the rule."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RINGROAD_")}
    if not library:
        return kept
    policy = directory / "policy.toml"
    policy.write_text(RULE + more)
    return kept | {"LD_PRELOAD": library, "RINGROAD_POLICY": str(policy),
                   "RINGROAD_RUNTIME_DIR": str(directory / "run")}
