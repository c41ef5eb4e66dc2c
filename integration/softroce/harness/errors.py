"""The harness's own failures, as opposed to the command's."""


class HarnessError(Exception):
  """Something outside the command went wrong; the message names it and the remedy."""


class WrongClock(HarnessError):
  """The guest's time goes by at another speed than this machine's, from its boot on."""
