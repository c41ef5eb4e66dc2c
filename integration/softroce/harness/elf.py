"""The little of ELF64 that the harness asks about."""

import struct

PT_INTERP = 3
PT_NOTE = 4
XEN_PHYS32_ENTRY = 18  # the PVH entry point's note (xen/include/public/elfnote.h)


def segments(elf, wanted):
  """(offset, size) in the file of each program header of the type `wanted`."""
  if elf[:5] != b'\x7fELF\x02':
    return
  table, = struct.unpack_from('<Q', elf, 32)
  entry_size, entries = struct.unpack_from('<HH', elf, 54)
  for index in range(entries):
    kind, _, offset, _, _, size = struct.unpack_from('<IIQQQQ', elf, table + index * entry_size)
    if kind == wanted:
      yield offset, size


def is_dynamic(elf):
  return any(True for _ in segments(elf, PT_INTERP))


def has_pvh_entry(elf):
  for offset, size in segments(elf, PT_NOTE):
    end = offset + size
    while offset + 12 <= end:
      name_size, value_size, note = struct.unpack_from('<III', elf, offset)
      if note == XEN_PHYS32_ENTRY and elf[offset + 12:offset + 15] == b'Xen':
        return True
      offset += 12 + (name_size + 3 & ~3) + (value_size + 3 & ~3)
  return False
