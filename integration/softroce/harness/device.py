"""RINGROAD_TEST_DEVICE: the same commands on this machine's own RDMA devices, without a VM."""

import os
import resource
import signal
import subprocess

from .errors import HarnessError

SYSFS = '/sys/class/infiniband'


def interface_of(device):
  """The network interface of an RDMA device's first GID that has one."""
  folder = os.path.join(SYSFS, device, 'ports/1/gid_attrs/ndevs')
  if not os.path.isdir(os.path.join(SYSFS, device)):
    there = ', '.join(sorted(os.listdir(SYSFS))) if os.path.isdir(SYSFS) else 'none'
    raise HarnessError(f'RINGROAD_TEST_DEVICE: no RDMA device {device} here; there are: {there}')
  for index in sorted(os.listdir(folder), key=int):
    try:
      with open(os.path.join(folder, index), encoding='utf-8') as source:
        return source.read().strip()
    except OSError:  # an empty slot of the table
      continue
  raise HarnessError(f'RINGROAD_TEST_DEVICE: {device} has no network interface')


def addresses_of(interface):
  listing = subprocess.run(['ip', '-4', '-o', 'addr', 'show', 'dev', interface],
                           stdout=subprocess.PIPE, text=True, check=True).stdout
  return [line.split()[3].split('/')[0] for line in listing.splitlines()]


def device_variables(names, environment):
  """The variables of a layout, for "CLIENT" or "CLIENT,SERVER"; those set already are kept."""
  devices = names.split(',')
  ends = []
  every = []
  for device in devices[:2]:
    addresses = addresses_of(interface_of(device))
    if not addresses:
      raise HarnessError(f'RINGROAD_TEST_DEVICE: {interface_of(device)} ({device}) has no IPv4 '
                         'address; give it one with ip addr add')
    ends.append((device, addresses[0]))
    every += addresses
  client, server = ends[0], ends[-1]
  found = {
      'RINGROAD_CLIENT_ADDR': client[1],
      'RINGROAD_CLIENT_DEVICE': client[0],
      'RINGROAD_SERVER_ADDR': server[1],
      'RINGROAD_SERVER_DEVICE': server[0],
      'RINGROAD_RDMA_ADDRS': ' '.join(every),
  }
  return {name: environment.get(name, value) for name, value in found.items()}


def run_on_devices(settings, out):
  """Runs the command here; its exit status, or 124."""
  environment = dict(os.environ, OUT=out, RINGROAD_SOFTROCE='0', NODE='1', NODES='1',
                     **settings.extra_environment)
  environment.update(device_variables(os.environ['RINGROAD_TEST_DEVICE'], os.environ))
  hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
  resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
  try:
    # setpriv: as with QEMU, the command does not survive us.
    process = subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', '--', *settings.command],
                               env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
  except FileNotFoundError as error:
    raise HarnessError('setpriv is needed: install the package util-linux') from error
  try:
    status = process.wait(settings.timeout)
    return status if status >= 0 else 128 - status
  except subprocess.TimeoutExpired:
    return 124
  finally:
    # Its own session, so this reaches whatever it left running.
    try:
      os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
      pass
    process.wait()
