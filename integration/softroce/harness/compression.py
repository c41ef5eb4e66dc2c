"""Unpacking what kernels and their modules are packed with."""

import lzma
import subprocess
import zlib

from .errors import HarnessError


def unpacked(data):
  """`data` without its compression, known by the first bytes; None for an unknown one."""
  try:
    if data.startswith(b'\xfd7zXZ'):
      return lzma.LZMADecompressor().decompress(data)
    if data.startswith(b'\x1f\x8b'):
      return zlib.decompressobj(wbits=31).decompress(data)
  except (lzma.LZMAError, zlib.error) as error:
    raise HarnessError(f'a compressed kernel file is damaged: {error}') from error
  if data.startswith(b'\x28\xb5\x2f\xfd'):
    try:
      # Its status is not asked: a kernel's payload has four bytes more than zstd expects.
      done = subprocess.run(['zstd', '-dcq'], input=data, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
      raise HarnessError('zstd is needed to unpack this kernel: install the package zstd') \
        from None
    return done.stdout
  return None
