"""A load whose result depends on nothing but how much of it there was: increments.lua."""


class UntilTold:
    """One that goes on until it is told to stop, and can be repeated exactly."""

    def __init__(self, path):
        self._path = path
        self._counts = path.with_name(f"{path.name}.counts")
        self.go_on = (f"--until={path}",)
        self.repeat = (f"--counts={self._counts}",)

    def stop(self):
        self._path.touch()

    def count(self):
        """How many transactions there were, once it has ended."""
        return sum(int(line.split()[1]) for line in self._counts.read_text().splitlines())
