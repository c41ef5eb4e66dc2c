"""Passing on what a guest writes while it writes it."""

import os


class Follower:
  """Copies a growing file to a descriptor of ours, from where it left off.

  With a prefix only whole lines are passed on, each with the prefix before it, so that two
  guests' lines do not mix; `drain(last=True)` gives up the rest, with the missing newline.
  """

  def __init__(self, path, out, prefix=b''):
    self.path_ = path
    self.out_ = out
    self.prefix_ = prefix
    self.source_ = None
    self.rest_ = b''

  def drain(self, last=False):
    """Passes on what is there by now."""
    if self.source_ is None:
      try:
        self.source_ = open(self.path_, 'rb', buffering=0)
      except FileNotFoundError:
        return
    while data := self.source_.read(1 << 20):
      write_all(self.out_, self._prefixed(data) if self.prefix_ else data)
    if last:
      if self.rest_:
        write_all(self.out_, self._prefixed(b'\n'))
      self.source_.close()

  def _prefixed(self, data):
    *lines, self.rest_ = (self.rest_ + data).split(b'\n')
    return b''.join(self.prefix_ + line + b'\n' for line in lines)


def write_all(descriptor, data):
  view = memoryview(data)
  while view:
    view = view[os.write(descriptor, view):]
