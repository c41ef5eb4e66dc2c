"""The Soft-RoCE harness itself: what `integration/softroce/run` promises in its --help.

Three virtual machines are booted to their command (one per layout); test_in_guest.sh does most of
the asking in the first. What needs no guest is tested with runs that end before theirs is up.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .harness.errors import HarnessError
from .harness.kernel import PACKAGES, find_kernel

HERE = Path(__file__).resolve().parent
RUN = HERE / 'run'

pytestmark = pytest.mark.softroce


def missing():
  if not shutil.which('qemu-system-x86_64'):
    return f'no qemu-system-x86_64; install {PACKAGES}'
  try:
    find_kernel(os.environ.get('RINGROAD_KERNEL_DIR') or '/')
  except HarnessError as error:
    return str(error)
  return None


@pytest.fixture(scope='module', autouse=True)
def needs_the_virtual_machine():
  if reason := missing():
    pytest.skip(reason)


def environment(folder, **more):
  """Of a run whose QEMU can be told from others' by its files, all below `folder`."""
  kept = {name: value for name, value in os.environ.items() if not name.startswith('RINGROAD_')}
  if 'RINGROAD_KERNEL_DIR' in os.environ:
    kept['RINGROAD_KERNEL_DIR'] = os.environ['RINGROAD_KERNEL_DIR']
  return dict(kept, TMPDIR=str(folder), **more)


def machines_below(folder):
  """The ids of QEMU processes with files below `folder`."""
  found = []
  for entry in Path('/proc').iterdir():
    if entry.name.isdigit():
      try:
        words = (entry / 'cmdline').read_bytes()
      except OSError:  # it has just ended
        continue
      if b'-fsdev' in words and str(folder).encode() in words:
        found.append(int(entry.name))
  return found


def runs_its_guest(process):
  """Whether a QEMU process is through with its preparations, in which it may end by itself."""
  ticks = int(Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[11])  # utime
  return ticks > os.sysconf('SC_CLK_TCK')


def poll_until(condition, seconds):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, 'gave up waiting'
    time.sleep(0.05)


# A QEMU whose machine says that its clock is wrong, as often as WRONG is; then the command has status 7.
QEMU_OF_WRONG_CLOCKS = """#!/bin/bash
[[ $* =~ id=control,path=([^,]*), ]]
control=${BASH_REMATCH[1]}
echo boot >>"$TMPDIR/boots"
if (($(wc -l <"$TMPDIR/boots") <= WRONG)); then
  echo yes >"$control/wrong-clock"
  echo "the clock is wrong" >"$control/problem"
else
  echo 7 >"$control/status"
fi
sleep 60
"""


@pytest.mark.parametrize('wrong, status, boots', [(0, 7, 1), (2, 7, 3), (3, 125, 3)])
def test_a_machine_whose_clock_is_wrong_is_booted_again(tmp_path, wrong, status, boots):
  programs = tmp_path / 'bin'
  programs.mkdir()
  qemu = programs / 'qemu-system-x86_64'
  qemu.write_text(QEMU_OF_WRONG_CLOCKS)
  qemu.chmod(0o755)
  done = subprocess.run([RUN, '--', 'true'], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
                        env=environment(tmp_path, PATH=f"{programs}:{os.environ['PATH']}", WRONG=str(wrong)))
  assert done.returncode == status, done.stderr
  assert (tmp_path / 'boots').read_text().count('boot') == boots
  assert done.stderr.count('booting again') == min(wrong, boots - 1)


def start(folder, *arguments, **more):
  return subprocess.Popen([RUN, *arguments], cwd=folder, env=environment(folder, **more),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(folder, *arguments, **more):
  process = start(folder, *arguments, **more)
  out, err = process.communicate(timeout=170)
  return process.returncode, out.decode(), err.decode()


# --- one boot of the default layout -------------------------------------------------------------

class Pair:
  """What came of test_in_guest.sh."""

  def __init__(self, folder):
    self.folder = folder
    self.out = folder / 'out'
    (folder / 'removed-in-guest').write_text('still here\n')
    self.out.mkdir()
    (self.out / '.ringroad-softroce').touch()
    (self.out / 'stale').write_text('of an earlier run\n')
    (self.out / 'stale-folder').mkdir()
    process = start(folder, '--out', 'out', '--timeout', '160', '--env', 'GIVEN=a b',
                    '--env', 'TAKEN', '--', HERE / 'test_in_guest.sh', HERE,
                    RINGROAD_TEST_WORD="it's here", TAKEN='from outside', NOT_TAKEN='1')
    self.first_line = process.stdout.readline()
    self.ended_at_first_line = process.poll() is not None
    (self.out / 'go').touch()  # the guest waits for this: its line came while it ran
    out, self.err = process.communicate(timeout=170)
    self.out_text = self.first_line + out
    self.status = process.returncode

  def log(self, name):
    return (self.out / f'{name}.log').read_text()

  def passed(self, name):
    assert (self.out / f'{name}.status').read_text().strip() == '0', self.log(name)
    return self.log(name)


@pytest.fixture(scope='module')
def pair(tmp_path_factory):
  return Pair(tmp_path_factory.mktemp('pair'))


def test_passes_the_exit_status_back(pair):
  assert pair.status == 37, pair.err.decode()[-3000:]


def test_passes_output_on_while_the_command_runs(pair):
  assert pair.first_line == b'ready\n' and not pair.ended_at_first_line


def test_passes_all_of_both_streams_on_and_keeps_them_apart(pair):
  numbers = ''.join(f'{number}\n' for number in range(1, 100001)).encode()
  assert hashlib.sha256(pair.out_text).digest() == \
    hashlib.sha256(b'ready\n' + numbers * 10 + b'end').digest()
  assert pair.err == numbers + b'end'


def test_leaves_no_virtual_machine(pair):
  assert not machines_below(pair.folder)
  assert not list(pair.folder.glob('ringroad-softroce-*'))


def test_clears_what_an_earlier_run_left(pair):
  assert (pair.out / 'links.log').exists()
  assert not (pair.out / 'stale').exists() and not (pair.out / 'stale-folder').exists()


def test_keeps_the_guest_kernels_log(pair):
  assert 'rdma_rxe: loaded' in (pair.out / 'kernel.log').read_text()


def test_changes_nothing_outside_the_output_folder(pair):
  assert pair.passed('overlay') == 'changed\n'
  assert (pair.folder / 'removed-in-guest').exists()
  assert not (pair.folder / 'left-in-guest').exists()


def test_runs_in_the_callers_folder(pair):
  assert pair.passed('folder').strip() == str(pair.folder)


def test_sets_the_commands_environment(pair):
  lines = pair.passed('environment').splitlines()
  for line in (f'OUT={pair.out}', 'NODE=1', 'NODES=1', 'RINGROAD_SOFTROCE=1',
               'RINGROAD_SERVER_ADDR=10.9.1.1', 'RINGROAD_SERVER_DEVICE=rxe1',
               'RINGROAD_CLIENT_ADDR=10.9.0.1', 'RINGROAD_CLIENT_DEVICE=rxe0',
               'RINGROAD_RDMA_ADDRS=10.9.0.1 10.9.1.1', "RINGROAD_TEST_WORD=it's here",
               'GIVEN=a b', 'TAKEN=from outside'):
    assert line in lines
  assert not [line for line in lines if line.startswith('NOT_TAKEN')]


def test_lifts_the_limits_and_opens_the_devices_to_all_users(pair):
  assert pair.passed('limits').split() == ['unlimited', '65536', '666', '666']


def test_both_devices_are_active(pair):
  links = pair.passed('links')
  for link in ('rxe0/1 state ACTIVE', 'rxe1/1 state ACTIVE'):
    assert link in links


def test_rdma_connections_cross_the_cable(pair):
  assert 'rdma-ping-19' in pair.passed('rping')


def test_rdma_clients_reach_a_server_that_listens_everywhere(pair):
  assert 'rdma-ping-4' in pair.passed('rping_any')


@pytest.mark.parametrize('check, source', [('tcp_bound', '10.9.0.1'), ('tcp_any', '10.9.0.1'),
                                           ('tcp_back', '10.9.1.1')])
def test_tcp_clients_that_do_not_bind_cross_the_cable(pair, check, source):
  assert f'client {source} server sees {source}' in pair.passed(check)


def test_tcp_of_an_end_to_itself_stays_local(pair):
  assert 'client 10.9.1.1 server sees 10.9.1.1' in pair.passed('tcp_own')


@pytest.mark.parametrize('check', ['write_lat', 'write_bw'])
def test_perftest_crosses_the_cable_with_large_packets(pair, check):
  if not (pair.out / f'{check}.log').exists():
    pytest.skip('perftest is not installed')
  log = pair.passed(check)
  assert '4096[B]' in log
  print(log)


def test_runs_on_this_machines_devices_when_named(pair):
  assert (pair.out / 'on_devices.status').read_text().strip() == '9', pair.log('on_devices')
  lines = pair.log('on_devices').splitlines()
  for line in ('RINGROAD_CLIENT_ADDR=10.9.0.1', 'RINGROAD_CLIENT_DEVICE=rxe0',
               'RINGROAD_SERVER_ADDR=10.9.1.1', 'RINGROAD_SERVER_DEVICE=rxe1',
               'RINGROAD_SOFTROCE=0'):
    assert line in lines
  assert (pair.out / 'direct' / 'file').read_text() == 'made\n'


def test_ends_everything_on_this_machines_devices_when_time_is_up(pair):
  assert (pair.out / 'on_devices_late.status').read_text().strip() == '124', \
    pair.log('on_devices_late')


# --- the other layouts --------------------------------------------------------------------------

def test_one_device_talks_to_itself(tmp_path):
  status, out, err = run(tmp_path, '--layout', 'self', '--timeout', '120', '--', 'bash', '-c', '''
      rping -s -a 10.9.0.3 -C 5 & server=$!
      for ((i = 0; i < 200; i++)); do rdma res show cm_id | grep -q LISTEN && break; sleep 0.1; done
      rping -c -v -a 10.9.0.3 -C 5 && wait $server && echo $RINGROAD_RDMA_ADDRS''')
  assert status == 0, err
  assert 'rdma-ping-4' in out
  assert out.splitlines()[-1] == '10.9.0.1 10.9.0.2 10.9.0.3'


def test_two_hosts_share_an_ethernet_and_a_folder(tmp_path):
  status, out, err = run(tmp_path, '--hosts', '2', '--out', 'out', '--timeout', '160', '--',
                         'bash', '-c', '''
      echo "$NODE of $NODES on $HOSTNAME" | tee "$OUT/who"
      listens() { rdma res show cm_id | grep -q LISTEN; }
      until_true() { for ((i = 0; i < 300; i++)); do "$@" && return; sleep 0.1; done; return 1; }
      if ((NODE == 1)); then
        rping -s -a "$RINGROAD_SERVER_ADDR" -C 5 & server=$!
        until_true listens && touch "$SHARE/listens"
        wait $server || exit 3
        until_true test -e "$SHARE/done"
      else
        until_true test -e "$SHARE/listens" &&
          rping -c -v -a "$RINGROAD_SERVER_ADDR" -C 5 || exit 4
        touch "$SHARE/done"
        exit 5
      fi''')
  assert status == 5, out + err
  lines = out.splitlines()
  assert '[1] 1 of 2 on node1' in lines and '[2] 2 of 2 on node2' in lines
  assert any(line.startswith('[2] ping data: rdma-ping-4') for line in lines)
  assert not [line for line in lines if not line.startswith(('[1] ', '[2] '))]
  for node in (1, 2):
    assert (tmp_path / 'out' / f'node{node}' / 'who').read_text() == f'{node} of 2 on node{node}\n'
  assert not machines_below(tmp_path)


# --- runs that end before a command begins ------------------------------------------------------

def test_time_is_up_with_124_and_leaves_nothing(tmp_path):
  status, _, err = run(tmp_path, '--timeout', '0.5', '--', 'true')
  assert status == 124
  assert 'not finished after 0.5 s' in err
  assert not machines_below(tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('number, status', [(signal.SIGTERM, 143), (signal.SIGINT, 130),
                                            (signal.SIGKILL, -signal.SIGKILL)])
def test_no_virtual_machine_survives_a_signal(tmp_path, number, status):
  process = start(tmp_path, '--', 'sleep', '1000')
  try:
    poll_until(lambda: any(map(runs_its_guest, machines_below(tmp_path))), 60)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == status
    # Sooner than a guest could have ended by itself. Killed, we rely on the kernel to pass it on.
    poll_until(lambda: not machines_below(tmp_path), 2 if number == signal.SIGKILL else 0.1)
  finally:
    process.kill()
    process.communicate()


def test_a_guest_that_dies_gives_125_and_its_last_words(tmp_path):
  status, out, err = run(tmp_path, '--timeout', '120', '--', 'bash', '-c',
                         'echo "last word"; '
                         'until [[ -s /run/softroce/stdout ]]; do sleep 0.1; done; '
                         'echo c >/proc/sysrq-trigger')
  assert status == 125 and out == 'last word\n'
  assert 'console| ' in err and 'Kernel panic' in err


def test_an_unknown_device_gives_125_and_names_it(tmp_path):
  status, _, err = run(tmp_path, '--', 'true', RINGROAD_TEST_DEVICE='mlx5_77')
  assert status == 125
  assert 'no RDMA device mlx5_77' in err


def test_no_kernel_gives_125_and_the_packages(tmp_path):
  status, _, err = run(tmp_path, '--', 'true', RINGROAD_KERNEL_DIR=str(tmp_path))
  assert status == 125
  assert 'linux-image-amd64' in err


def test_a_folder_with_other_things_in_it_is_not_cleared(tmp_path):
  (tmp_path / 'precious').write_text('not from a run\n')
  status, _, err = run(tmp_path, '--out', str(tmp_path), '--', 'true')
  assert status == 125
  assert 'holds files that no run of this script left' in err
  assert (tmp_path / 'precious').exists()


@pytest.mark.parametrize('arguments', [['--memory', 'much', '--', 'true'], ['--timeout', '-1', 'x'],
                                       ['--hosts', '3', 'x'], ['--env', '1x=', 'x'], []])
def test_bad_arguments_are_refused(tmp_path, arguments):
  status, _, err = run(tmp_path, *arguments)
  assert status == 2
  assert 'error: ' in err
