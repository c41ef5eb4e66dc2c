"""Programs of other Debian releases, each in a root of its own (lib/roots.py)."""
