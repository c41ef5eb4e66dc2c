"""The harness's own failures, as opposed to the command's."""


class HarnessError(Exception):
  """Something outside the command went wrong; the message names it and the remedy."""
