"""Makes what the tests of other releases need, once: the roots, the build in one, and that for aarch64.

usage: python3 -m integration.releases.prepare [ROOT...]

A root that this machine cannot make is told, and no failure: its tests are skipped.
"""

import sys

from integration.lib import roots
from integration.releases import arm, source

# What the Soft-RoCE machine takes MySQL from is the first.
ROOTS = ("sid", "trixie", "bullseye", "sid-mariadb", arm.ROOT)

if __name__ == "__main__":
    made = roots.main(sys.argv[1:] or ROOTS)
    if made == 0 and roots.is_made(source.RELEASE):
        print(f"building in {source.RELEASE}", flush=True)
        source.build()
    if made == 0 and roots.is_made(arm.ROOT) and not arm.missing():
        print("building for aarch64", flush=True)
        arm.build()
    sys.exit(made)
