"""What several processes need and one of them makes, while the others wait."""

import fcntl
import os
from contextlib import contextmanager


@contextmanager
def held(path):
    """Has the lock of a folder, or of a file that is made, until the end of the block or of the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
