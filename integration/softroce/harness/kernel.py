"""The guest's kernel: the newest one on this machine that can do Soft-RoCE."""

import os
import re

from .errors import HarnessError

RXE_MODULE = 'rdma_rxe'
PACKAGES = ('qemu-system-x86 linux-image-amd64 busybox-static zstd iproute2 kmod rdma-core '
            'ibverbs-providers')


class Kernel:
  """One installed (or unpacked) kernel: `version`, `image` and its `modules` folder."""

  def __init__(self, version, image, modules):
    self.version = version
    self.image = image
    self.modules = modules
    self.paths_ = {}
    self.needs_ = {}
    with open(os.path.join(modules, 'modules.dep'), encoding='utf-8') as listing:
      for line in listing:
        path, needs = line.split(':', 1)
        self.paths_[module_name(path)] = path
        self.needs_[path] = needs.split()
    with open(os.path.join(modules, 'modules.builtin'), encoding='utf-8') as listing:
      self.builtin_ = {module_name(line.strip()) for line in listing}

  def has(self, name):
    return name in self.paths_ or name in self.builtin_

  def insertion_order(self, names):
    """Paths of the modules to insert, dependencies first; built-in ones are left out."""
    order = []
    for name in names:
      if name in self.builtin_:
        continue
      if name not in self.paths_:
        raise HarnessError(f'kernel {self.version} has no module {name}; '
                           'install Debian\'s linux-image-amd64')
      path = self.paths_[name]
      # modules.dep lists the nearest dependency first.
      for needed in list(reversed(self.needs_[path])) + [path]:
        if needed not in order:
          order.append(needed)
    return order


def module_name(path):
  return os.path.basename(path).split('.ko')[0].replace('-', '_')


def version_key(version):
  return [(int(part) if part.isdigit() else -1, part) for part in re.findall(r'\d+|\D+', version)]


def find_kernel(root):
  """The newest kernel with rdma_rxe below `root` ('/' or a folder made with `dpkg-deb -x`)."""
  installed = {}
  for folder in (os.path.join(root, 'usr/lib/modules'), os.path.join(root, 'lib/modules')):
    for version in os.listdir(folder) if os.path.isdir(folder) else []:
      installed[version] = os.path.join(folder, version)
  rejected = []
  for version in sorted(installed, key=version_key, reverse=True):
    modules = installed[version]
    image = os.path.join(root, 'boot', f'vmlinuz-{version}')
    if not os.path.exists(image) and os.path.exists(os.path.join(modules, 'vmlinuz')):
      image = os.path.join(modules, 'vmlinuz')  # Debian's packages since 2026
    if not os.path.exists(image):
      rejected.append(f'{version}: no {image}')
    elif not os.access(image, os.R_OK):
      rejected.append(f'{version}: cannot read it; run chmod a+r {image}')
    elif not os.path.exists(os.path.join(modules, 'modules.dep')):
      rejected.append(f'{version}: no modules.dep; run depmod -b {root} {version}')
    else:
      kernel = Kernel(version, image, modules)
      if kernel.has(RXE_MODULE):
        return kernel
      rejected.append(f'{version}: has no {RXE_MODULE} (a cloud kernel?)')
  why = ''.join(f'\n  {reason}' for reason in rejected) or f'\n  nothing in {root}/lib/modules'
  raise HarnessError(f'no kernel with Soft-RoCE found:{why}\n'
                     f'install the packages: {PACKAGES}\n'
                     'or name a folder with an unpacked kernel in RINGROAD_KERNEL_DIR')
