"""Files derived from the kernel that cost a second to make and do not change."""

import hashlib
import os
import tempfile
import time

from .errors import HarnessError

KEEP_UNUSED_S = 30 * 24 * 3600


def cache_folder():
  base = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  folder = os.path.join(base, 'ringroad')
  try:
    os.makedirs(folder, exist_ok=True)
    if os.access(folder, os.W_OK):
      return folder
  except OSError:
    pass
  # A home that cannot be written to still deserves a cache: one folder a user.
  folder = os.path.join(tempfile.gettempdir(), f'ringroad-cache-{os.getuid()}')
  os.makedirs(folder, mode=0o700, exist_ok=True)
  if os.stat(folder).st_uid != os.getuid():
    raise HarnessError(f'{folder} belongs to somebody else; set XDG_CACHE_HOME')
  return folder


def file_key(path):
  """What makes a source file the same one as last time."""
  status = os.stat(path)
  return path, status.st_size, status.st_mtime_ns


def cached(name, key, make):
  """The path of the file `name` made for `key`; `make()` gives its bytes if it is not there."""
  folder = cache_folder()
  digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
  path = os.path.join(folder, f'softroce-{name}-{digest}')
  if os.path.exists(path):
    os.utime(path)
    return path
  data = make()
  handle, temporary = tempfile.mkstemp(dir=folder, prefix='softroce-new-')
  try:
    with os.fdopen(handle, 'wb') as out:
      out.write(data)
    os.replace(temporary, path)  # two runs may make it at once; either result will do
  except OSError as error:
    os.unlink(temporary)
    raise HarnessError(f'cannot write {path}: {error.strerror}; free some space there, '
                       'or set XDG_CACHE_HOME') from error
  drop_unused(folder)
  return path


def drop_unused(folder):
  oldest = time.time() - KEEP_UNUSED_S
  with os.scandir(folder) as entries:
    for entry in entries:
      if entry.name.startswith('softroce-') and entry.stat().st_mtime < oldest:
        os.unlink(entry.path)
