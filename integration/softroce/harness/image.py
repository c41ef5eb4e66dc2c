"""What QEMU starts: the kernel, unpacked beforehand, and an initramfs.

A packed kernel would unpack itself under emulation, which takes longer than all the rest of the
boot. QEMU can enter an unpacked one directly (PVH), so it is unpacked here, once.
"""

import os
import struct

from . import elf
from .archive import Archive
from .cache import cached, file_key
from .compression import unpacked
from .errors import HarnessError
from .kernel import module_name

FORMAT = 1  # raise it when the same sources would now make a different file
# What /init needs before the root file system is there.
BOOT_MODULES = ['virtio_pci', '9pnet_virtio', '9p', 'overlay']
BUSYBOX_PATHS = ['/bin/busybox', '/usr/bin/busybox']


def boot_image(kernel):
  """The path to give QEMU as -kernel: the unpacked kernel, or the image if it has no PVH entry."""
  path = cached(f'vmlinux-{kernel.version}', (FORMAT, file_key(kernel.image)),
                lambda: inner_elf(kernel.image) or b'')
  return path if os.path.getsize(path) else kernel.image


def inner_elf(image):
  """The ELF file in a bzImage (Documentation/arch/x86/boot.rst), if QEMU can enter it."""
  with open(image, 'rb') as source:
    data = source.read()
  if data[0x202:0x206] != b'HdrS':
    return None
  setup_sectors = data[0x1f1] or 4
  offset, length = struct.unpack_from('<II', data, 0x248)  # payload_offset, payload_length
  start = (setup_sectors + 1) * 512 + offset
  inner = unpacked(data[start:start + length])
  return inner if inner and elf.has_pvh_entry(inner) else None


def initramfs(kernel, init_path, modules):
  """The path of an initramfs: busybox, `init_path` as /init, and in /modules those that it needs
  itself, named in order in /modules/boot, with `modules` and what those depend on."""
  with open(init_path, 'rb') as source:
    init = source.read()
  busybox = find_busybox()
  key = (FORMAT, file_key(busybox), file_key(os.path.join(kernel.modules, 'modules.dep')), init,
         modules)

  def make():
    archive = Archive()
    for folder in ('bin', 'modules', 'proc', 'sys', 'dev', 'run', 'lower', 'upper', 'new'):
      archive.add_folder(folder)
    with open(busybox, 'rb') as source:
      archive.add_file('bin/busybox', source.read(), executable=True)
    archive.add_file('init', init, executable=True)
    boot = kernel.insertion_order(BOOT_MODULES)
    archive.add_file('modules/boot', ' '.join(module_name(path) for path in boot).encode())
    for path in boot + layout_modules(kernel, modules):
      with open(os.path.join(kernel.modules, path), 'rb') as source:
        data = source.read()
      archive.add_file(f'modules/{module_name(path)}.ko', unpacked(data) or data)
    return archive.bytes()

  return cached(f'initramfs-{kernel.version}', key, make)


def layout_modules(kernel, modules):
  """The paths of `modules` and their dependencies, in order, without what /init has by then."""
  boot = kernel.insertion_order(BOOT_MODULES)
  return [path for path in kernel.insertion_order(modules) if path not in boot]


def find_busybox():
  for path in BUSYBOX_PATHS:
    if os.path.exists(path):
      with open(path, 'rb') as source:
        if not elf.is_dynamic(source.read()):
          return path
  raise HarnessError('no statically linked busybox: install the package busybox-static')
