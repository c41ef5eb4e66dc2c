"""A newc cpio archive, the format in which Linux takes an initramfs."""

import io
import os
import stat


class Archive:
  """Files in the order they are added; `bytes()` is the finished archive."""

  def __init__(self):
    self.out_ = io.BytesIO()
    self.inode_ = 0

  def add_folder(self, path):
    self._entry(path, stat.S_IFDIR | 0o755, b'')

  def add_file(self, path, data, executable=False):
    self._entry(path, stat.S_IFREG | (0o755 if executable else 0o644), data)

  def bytes(self):
    self._entry('TRAILER!!!', 0, b'')
    return self.out_.getvalue()

  def _entry(self, path, mode, data):
    name = os.fsencode(path) + b'\0'
    self.inode_ += 1
    fields = [self.inode_, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
    self.out_.write(b'070701' + b''.join(b'%08X' % field for field in fields) + name)
    self._pad()
    self.out_.write(data)
    self._pad()

  def _pad(self):
    self.out_.write(b'\0' * (-self.out_.tell() % 4))
