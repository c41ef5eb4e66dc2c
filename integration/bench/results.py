"""What a bench has measured, kept as it is measured: a run that was ended in its middle goes on.

   OUT/settings.json   what is measured, and with what software
   OUT/cells.jsonl     one line for each cell: {"key": {...}, "figures": {...}} or, where there are
                       none, {"key": {...}, "failed": "the evidence"}

A key names what was measured: the workload, the carrier, the round. A failure may have a shorter
key, {"carrier": "smc"}, and then stands for every cell whose key has these values.
"""

import fcntl
import json
import os
from pathlib import Path

SETTINGS = "settings.json"
CELLS = "cells.jsonl"


class ResultsError(Exception):
    """A folder that this run cannot write to; the message says why and what to do."""


class Results:
    """The cells of one folder; a context, in which no other run may have the folder."""

    def __init__(self, out, settings):
        self.out = Path(out)
        # As it reads once written.
        self.settings = json.loads(json.dumps(settings))
        self.cells = []
        self._file = None

    def __enter__(self):
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self._file = open(self.out / CELLS, "a+", encoding="utf-8")
        except OSError as problem:
            raise ResultsError(f"{problem.filename}: {problem.strerror}: name another folder with "
                               "--out") from None
        try:
            self._lock()
            self._compare_settings()
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_):
        self._file.close()

    def add(self, key, **record):
        """Keeps a cell; once this returns it is on the disk."""
        cell = {"key": key, **record}
        self._file.write(json.dumps(cell) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.cells.append(cell)

    def has(self, key):
        """Whether the cell was measured, or there is a failure that stands for it."""
        return any(cell["key"].items() <= key.items() for cell in self.cells)

    def failed(self, key):
        """Whether there is a failure that stands for the cell."""
        return any("failed" in cell and cell["key"].items() <= key.items() for cell in self.cells)

    def _lock(self):
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(f"{self.out}: another run is writing there") from None

    def _compare_settings(self):
        path = self.out / SETTINGS
        if not path.exists():
            if self._file.tell() > 0:
                raise ResultsError(f"{self.out}: has {CELLS} without {SETTINGS}: name another "
                                   "folder with --out")
            new = path.with_suffix(".new")
            new.write_text(json.dumps(self.settings, indent=1) + "\n", encoding="utf-8")
            new.rename(path)
            return
        there = _settings_in(self.out)
        if there != self.settings:
            differences = [f"{name} is {_words(there.get(name))} there and "
                           f"{_words(self.settings.get(name))} now"
                           for name in sorted({*there, *self.settings})
                           if there.get(name) != self.settings.get(name)]
            raise ResultsError(f"{self.out}: holds a run of other settings ({'; '.join(differences)})"
                               ": name another folder with --out, or remove this one")

    def _read(self):
        self._file.seek(0)
        text = self._file.read()
        # What was being written when a run was killed is no line yet.
        whole, _, rest = text.rpartition("\n")
        if rest:
            self._file.truncate(len(text.encode()) - len(rest.encode()))
            self._file.seek(0, os.SEEK_END)
        self.cells += _cells_in(whole, self.out)


def load(out):
    """The settings and the cells of a folder, which a run may be writing to."""
    out = Path(out)
    try:
        settings = _settings_in(out)
        text = (out / CELLS).read_text(encoding="utf-8")
    except OSError as problem:
        raise ResultsError(f"{problem.filename}: {problem.strerror}") from None
    return settings, _cells_in(text.rpartition("\n")[0], out)


def _settings_in(out):
    try:
        settings = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
    except ValueError as problem:
        line = getattr(problem, "lineno", 1)
        raise ResultsError(f"{out / SETTINGS}:{line}: is no JSON: mend it, or name another folder") from None
    if not isinstance(settings, dict):
        raise ResultsError(f"{out / SETTINGS}:1: holds no settings: name another folder")
    return settings


def _cells_in(whole, out):
    """The cells of whole lines."""
    cells = []
    for number, line in enumerate(filter(None, whole.split("\n")), 1):
        try:
            cells.append(json.loads(line))
        except ValueError:
            raise ResultsError(f"{out / CELLS}:{number}: is no JSON: mend or remove the "
                               "line, or name another folder with --out") from None
    return cells


def _words(value):
    return "absent" if value is None else json.dumps(value)
