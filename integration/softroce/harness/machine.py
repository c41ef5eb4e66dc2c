"""One virtual machine: its folder of control files, its QEMU process, how it ended."""

import os
import shlex
import shutil
import signal
import subprocess

from .console import excerpt
from .errors import HarnessError, WrongClock
from .image import layout_modules
from .kernel import module_name
from .output import Follower

QEMU = 'qemu-system-x86_64'
GUEST_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'guest')
# Emulated fast-string and carry-less-multiply instructions are slower than what the guest's
# memcpy and CRC-32 (rxe's packets carry one) do without them.
CPU = 'max,-erms,-pclmulqdq'
# maxcpus=1: QEMU 7.2 can keep a stale translation of an instruction that one processor patches
# while another runs it, and then loops in it for ever. The kernel patches itself much while it
# boots (2 boots of 80 hung on a busy machine), so guest/main starts the others afterwards.
KERNEL_ARGUMENTS = ('console=ttyS0 quiet panic=-1 mitigations=off nokaslr no5lvl tsc=reliable '
                    'clocksource=tsc no_timer_check random.trust_cpu=on cryptomgr.notests '
                    'rcupdate.rcu_expedited=1 maxcpus=1 noreplace-smp')


class Machine:
  """Thread rule: one thread. `close()` ends QEMU and may be called at any time, repeatedly."""

  def __init__(self, folder, settings, node=1):
    """`settings` is the parsed command line (see `run`), `folder` a new one of its own."""
    self.node = node
    self.settings_ = settings
    self.process_ = None
    self.control_ = os.path.join(folder, 'control')
    self.console_ = os.path.join(folder, 'console')
    self.qemu_log_ = os.path.join(folder, 'qemu')
    os.mkdir(folder)
    os.mkdir(self.control_)
    shutil.copytree(GUEST_FOLDER, os.path.join(self.control_, 'guest'))
    prefix = b'[%d] ' % node if settings.hosts > 1 else b''
    self.followers_ = [Follower(os.path.join(self.control_, name), out, prefix)
                       for name, out in (('stdout', 1), ('stderr', 2))]

  def write_job(self, out, share, environment, kernel):
    """Leaves the command and what the guest is to set up where guest/main looks for them."""
    layout = self.settings_.layout
    self._write_control('variables', assignments({
        'LAYOUT': layout.name,
        'HOST_NAME': f'node{self.node}' if self.settings_.hosts > 1 else 'ringroad',
        'NODE': str(self.node),
        'NODES': str(self.settings_.hosts),
        'OUT': out,
        'SHARE': share,
        'MODULES': ' '.join(module_name(path) for path in layout_modules(kernel, layout.modules)),
        'KERNEL_MODULES': os.path.abspath(kernel.modules),
        'CLIENT_ADDR': layout.client_address,
        'SERVER_ADDR': layout.server_address,
        'RDMA_ADDRS': ' '.join(layout.addresses),
    }))
    self._write_control('job', 'cd -- ' + shlex.quote(os.getcwd()) + ' || exit 125\n' +
                        ''.join(f'export {line}\n' for line in
                                assignments(environment).splitlines()) +
                        'exec -- ' + shlex.join(self.settings_.command) + '\n')

  def start(self, image, initrd, out, share, sockets):
    """Starts QEMU. `sockets` is the folder for the Ethernet's ends; used with two hosts only."""
    settings = self.settings_
    if settings.icount:
      accelerator = ['-accel', 'tcg,thread=single', '-icount', 'shift=0,sleep=off']
    else:
      accelerator = ['-accel', 'tcg,thread=multi,tb-size=512']
    arguments = [QEMU, '-nodefaults', '-no-user-config', '-no-reboot', '-display', 'none',
                 '-M', 'q35', *accelerator, '-cpu', CPU, '-smp', str(settings.cpus),
                 '-m', settings.memory, '-serial', f'file:{self.console_}',
                 '-device', 'virtio-rng-pci',
                 *shared_folder('root', '/', 'readonly=on,multidevs=remap'),
                 *shared_folder('control', self.control_),
                 *shared_folder('out', out)]
    if share:
      arguments += shared_folder('share', share)
    if settings.hosts > 1:
      mine, other = (os.path.join(sockets, str(node)) for node in (self.node, 3 - self.node))
      arguments += ['-netdev', 'dgram,id=net,local.type=unix,local.path=' + escaped(mine) +
                    ',remote.type=unix,remote.path=' + escaped(other),
                    '-device',
                    f'virtio-net-pci,netdev=net,romfile=,mac=52:54:00:00:07:0{self.node}']
    arguments += ['-kernel', image, '-initrd', initrd, '-append', KERNEL_ARGUMENTS]
    # The kernel ends QEMU should we be killed without a chance to; a terminal's ^C is for us.
    with open(self.qemu_log_, 'wb') as log:
      self.process_ = subprocess.Popen(
          ['setpriv', '--pdeathsig', 'KILL', '--', *arguments], stdin=subprocess.DEVNULL,
          stdout=log, stderr=log, start_new_session=True)

  def close(self):
    if self.process_ and self.process_.poll() is None:
      self.process_.send_signal(signal.SIGKILL)
      self.process_.wait()

  def poll(self):
    """Passes on new output; the command's exit status, or None while it runs.

    Raises HarnessError when the guest failed or is gone without having said how it went.
    """
    gone = self.process_.poll() is not None
    status = self._control('status')  # read before the output: all of it was there by then
    for follower in self.followers_:
      follower.drain(last=gone or status is not None)
    if status is not None:
      return int(status)
    problem = self._control('problem')
    if problem is not None and self._control('wrong-clock') is not None:
      raise WrongClock(problem)
    if problem is not None or gone:
      raise HarnessError(problem or 'the virtual machine ended without reporting a status')
    return None

  def finish_output(self):
    for follower in self.followers_:
      follower.drain(last=True)

  def started_at(self):
    """The guest's uptime in seconds when the command began, or None when it has not."""
    return self._control('started')

  def notice(self):
    return self._control('notice')

  def kernel_log(self):
    """The guest kernel's log if the guest got to saving it, else its console's text."""
    return self._control('dmesg') or read_text(self.console_) or ''

  def describe(self):
    """What was heard last of QEMU and the guest, and the guest's panic, for a failure's message."""
    text = read_text(self.qemu_log_) or ''
    lines = [f'qemu| {line}' for line in text.splitlines()]
    console = excerpt(read_text(self.console_) or '')
    return '\n'.join(lines + [f'console| {line}' for line in console])

  def _write_control(self, name, text):
    with open(os.path.join(self.control_, name), 'wb') as out:
      out.write(os.fsencode(text))

  def _control(self, name):
    text = read_text(os.path.join(self.control_, name))
    return None if text is None else text.strip()


def read_text(path):
  try:
    with open(path, encoding='utf-8', errors='replace') as source:
      return source.read()
  except FileNotFoundError:
    return None


def assignments(variables):
  return ''.join(f'{name}={shlex.quote(value)}\n' for name, value in variables.items())


def escaped(path):
  return path.replace(',', ',,')  # in QEMU's options a comma is doubled


def shared_folder(tag, path, more=''):
  return ['-fsdev', f'local,id={tag},path={escaped(path)},security_model=none' +
          (',' + more if more else ''),
          '-device', f'virtio-9p-pci,fsdev={tag},mount_tag={tag}']
