"""What the sources say of locks: the ranks of rsocket-core/base/lock_ranks.h, and their locks."""

import re
from dataclasses import dataclass
from pathlib import Path

RANKS = "rsocket-core/base/lock_ranks.h"
FOLDERS = ("rsocket-core", "preload", "policy", "cli")


@dataclass
class Lock:
    file: str
    line: int
    name: str
    attributes: str  # what stands between its name and the semicolon

    @property
    def rank(self):
        found = re.search(r"\bRR_RANK\((\w+)\)", self.attributes)
        return found.group(1) if found else None

    def names(self):
        """The locks that it is taken before."""
        found = re.search(r"\bRR_ACQUIRED_BEFORE\(([^)]*)\)", self.attributes)
        return {name.strip() for name in found.group(1).split(",")} if found else set()


def without_comments(text):
    """Blanks for each comment, so that lines keep their numbers."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group()) if match.group().startswith("/") else match.group()

    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def ranks(root):
    """The names of the ranks, outermost first, each with the one that its declaration puts it behind."""
    text = (Path(root) / RANKS).read_text()
    return re.findall(r"^RR_LOCK_RANK\((\w+), (\w+)\)$", text, re.M)


def sources(root):
    """Path and code of each source of the product, without comments."""
    for folder in FOLDERS:
        for path in sorted((Path(root) / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".c"):
                yield path.relative_to(root).as_posix(), without_comments(path.read_text())


def kinds(files):
    """The classes that are locks."""
    return {name for _, code in files for name in re.findall(r'\bRR_CAPABILITY\("mutex"\) (\w+)', code)}


def locks(files):
    """Each variable or member that is a lock."""
    kind = "|".join(sorted(kinds(files)))
    declaration = re.compile(rf"(?<![\w:])(?:ringroad::)?(?:{kind})\s+(\w+)\b(?!\s*(?:\(|:))([^;{{}}]*)[;{{]")
    found = []
    for file, code in files:
        for match in declaration.finditer(code):
            line = code.count("\n", 0, match.start()) + 1
            found.append(Lock(file, line, match.group(1), match.group(2)))
    return found
