"""What is shown of a dead guest's console, from consoles as the kernel writes them; no guest."""

import pytest

from .harness.console import LINES_BEFORE, TAIL_LINES, excerpt


def numbered(what, count):
  return [f'{what} {number}' for number in range(count)]


def shown(lines):
  return excerpt('\r\n'.join(lines) + '\r\n')


def test_a_short_console_is_shown_whole():
  lines = numbered('boot', TAIL_LINES)
  assert shown(lines) == lines


def test_of_a_long_one_the_end_is_shown_and_the_rest_is_counted():
  lines = numbered('boot', TAIL_LINES + 7)
  first, *rest = shown(lines)
  assert first.startswith('... 7 lines left out') and 'kernel.log' in first
  assert rest == lines[7:]


@pytest.mark.parametrize('trace', [TAIL_LINES - 2, TAIL_LINES + 1, 10 * TAIL_LINES])
def test_a_panic_is_shown_with_its_surroundings_however_long_its_trace(trace):
  panic = '[    4.3] Kernel panic - not syncing: sysrq triggered crash'
  before = numbered('before', 20)
  lines = shown(before + [panic] + numbered('trace', trace) + ['[    4.4] Kernel Offset: disabled'])
  at = lines.index(panic)
  assert lines[at - LINES_BEFORE:at] == before[-LINES_BEFORE:]
  assert lines[at + 1:at + 4] == numbered('trace', 3)
  assert lines[-1] == '[    4.4] Kernel Offset: disabled'
  assert len(lines) < 2 * TAIL_LINES


def test_the_cause_is_shown_besides_the_panic_that_comes_of_it():
  cause = 'BUG: kernel NULL pointer dereference, address: 0000000000000008'
  panic = 'Kernel panic - not syncing: Fatal exception'
  lines = shown(numbered('boot', 50) + [cause] + numbered('trace', 100) + [panic] +
                numbered('more', 60))
  assert lines.index(cause) < lines.index(panic)
  assert lines[-1] == 'more 59'
  assert sum('left out' in line for line in lines) == 3


def test_an_empty_console_gives_nothing():
  assert excerpt('') == []
