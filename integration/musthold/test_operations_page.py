"""The operator's guide names what there is."""

import re

import pytest

from . import support

PAGE = (support.ROOT / "docs" / "operations.md").read_text()
REASONS = re.findall(r'^  X\(k\w+, +"(\w+)"',
                     (support.ROOT / "rsocket-core" / "reason.h").read_text(), re.MULTILINE)


def test_every_reason_is_explained_once_and_no_other():
    section = PAGE.partition("## Reasons, and what to do")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", section, re.MULTILINE)
    assert len(REASONS) > 30
    assert sorted(rows) == sorted(REASONS)


def test_its_policies_are_accepted(tmp_path):
    host = support.Host(tmp_path)
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        host.tool.check_policy(path)


@pytest.mark.parametrize("source", ["preload/runtime.cc"])
def test_it_names_every_environment_variable(source):
    names = set(re.findall(r'getenv\("(RINGROAD_\w+)"', (support.ROOT / source).read_text()))
    assert len(names) >= 5
    table = PAGE.partition("## Environment variables")[2].partition("\n## ")[0]
    assert names <= set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


def test_its_links_lead_somewhere():
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
               for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}
    linked = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert len(anchors) > 8 and linked == anchors & linked, linked - anchors
