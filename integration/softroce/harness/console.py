"""What to show of the console of a guest that died."""

import re

TAIL_LINES = 40
# Around the lines that say what went wrong: a trace longer than the tail may follow each of them.
LINES_BEFORE = 5
LINES_AFTER = 10
PANIC = re.compile(r'Kernel panic')
# How the kernel's reports begin. The first is the one that matters: others come of it.
REPORT = re.compile(r'Kernel panic|BUG: |Oops|WARNING: CPU|general protection fault|'
                    r'blocked for more than|detected stall')


def excerpt(text):
  """The end of `text`, the kernel's first report and its panic, each with the lines around it.

  A list of lines in their order; where some were left out, a line says how many.
  """
  lines = [line.rstrip() for line in text.splitlines()]
  shown = set(range(max(0, len(lines) - TAIL_LINES), len(lines)))
  for pattern in (REPORT, PANIC):
    found = next((index for index, line in enumerate(lines) if pattern.search(line)), None)
    if found is not None:
      shown.update(range(max(0, found - LINES_BEFORE),
                         min(len(lines), found + LINES_AFTER + 1)))
  result = []
  previous = -1
  for index in sorted(shown):
    left_out = index - previous - 1
    if left_out:
      result.append(f'... {left_out} line{"s" if left_out > 1 else ""} left out '
                    '(with --out DIR all are in kernel.log)')
    result.append(lines[index])
    previous = index
  return result
