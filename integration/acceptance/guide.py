"""The steps of the pages that a test follows: what their prompts give, what stands below them, the files that they write.

   ```console            db1#, db2#, both#: a command, and what it must say, line by line. Digits stand
   db1# command          for any digits where a number may differ: not in addresses, and not for a
   what it says          single 0. `...` stands for any lines, or for the rest of one.
   ```
   On both, `/a/file`:   the block that follows is written there.
"""

import re
from dataclasses import dataclass, field

from . import support

# In the order in which a reader follows them: each begins with what the one before has left.
PAGES = [support.ROOT / "docs" / name for name in ("getting-started.md", "runbook.md", "operations.md")]
# A block of a step that has no prompt belongs to a paragraph with one of these.
LEFT_OUT = ("**[card]**", "**[switch]**", "**[systemd]**")
HOSTS = {"db1": ("db1",), "db2": ("db2",), "both": ("db1", "db2"), "build": ("build",)}
PROMPT = re.compile(r"(db1|db2|both|build)[#$] (.+)")
PLACE = re.compile(r"\bOn (db1|db2|both),(?: a file)? `(/[^`]+)`:$")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
NUMBER = re.compile(r"\d+(?:\.\d+)*")
# 5.6K may be 12 at another time.
SIZED, SIZE = re.compile(r"[KMG]\b"), "[KMG]?"
# Ports that the kernel chooses are numbers like others.
EPHEMERAL = 32768


@dataclass
class Step:
    page: str
    line: int                 # of the page
    section: str
    hosts: tuple
    command: str = ""
    expected: list = field(default_factory=list)
    file: str = ""            # instead of a command, with `content`
    content: str = ""

    @property
    def background(self):
        return self.command.endswith("&")


@dataclass
class Block:
    line: int
    language: str
    text: str
    before: str               # the paragraph that leads to it
    section: str


def blocks(page):
    found = []
    for match in BLOCK.finditer(page):
        above = page[:match.start()]
        sections = re.findall(r"^## (.+)$", above, re.MULTILINE)
        found.append(Block(above.count("\n") + 1, match[1], match[2],
                           above.rstrip().rpartition("\n\n")[2], sections[-1] if sections else ""))
    return found


def all_steps():
    """Of all pages, in their order."""
    return [step for page in PAGES for step in steps(page.read_text(), page.name)]


def steps(page, name):
    """In the order of the page."""
    found = []
    for block in blocks(page):
        place = PLACE.search(block.before.replace("\n", " "))
        if place and block.language != "console":
            found.append(Step(name, block.line, block.section, HOSTS[place[1]], file=place[2],
                              content=block.text))
        if block.language != "console":
            continue
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            prompt = PROMPT.fullmatch(line)
            if prompt:
                found.append(Step(name, number, block.section, HOSTS[prompt[1]], command=prompt[2]))
            else:
                found[-1].expected.append(line)
    return found


def pattern(line):
    """The regular expression of one line that is printed in the page."""
    if line.endswith("..."):
        return pattern(line[:-3].rstrip()) + ".*"
    result, end = "", 0
    for match in re.finditer(rf"{ADDRESS.pattern}|{NUMBER.pattern}|\s+", line):
        result += re.escape(line[end:match.start()])
        end = match.end()
        text = match[0]
        previous = line[match.start() - 1] if match.start() else " "
        port = previous == ":" and text.isdigit() and int(text) < EPHEMERAL
        if text.isspace():
            result += r"\s+"
        elif ADDRESS.fullmatch(text) or text == "0" or port or previous.isalpha():
            result += re.escape(text)
        else:
            result += r"\d+(?:\.\d+)*" + (SIZE if SIZED.match(line, end) else "")
        if SIZED.match(line, end):
            end += 1
    return result + re.escape(line[end:])


def says(output, expected):
    """Whether the output is what the page prints; lines follow each other where no `...` stands."""
    lines = [line.rstrip() for line in output.splitlines()]
    position, anywhere = 0, False
    for line in expected:
        if line == "...":
            anywhere = True
            continue
        matching = re.compile(pattern(line.rstrip()))
        if anywhere:
            while position < len(lines) and not matching.fullmatch(lines[position]):
                position += 1
        if position >= len(lines) or not matching.fullmatch(lines[position]):
            return False
        position, anywhere = position + 1, False
    return anywhere or position == len(lines)
