"""docs/systems.md names tests that there are, and a policy that is accepted."""

import re

from integration.acceptance import support

PAGE = (support.ROOT / "docs" / "systems.md").read_text()
ROWS = re.findall(r"^\| (?!system|---|port|\d)(.+) \|$", PAGE.partition("\n## ")[0], re.MULTILINE)


def test_every_system_has_a_test():
    assert len(ROWS) >= 15
    for row in ROWS:
        tests = re.findall(r"`((?:acceptance|systems|releases)/\w+\.py)`", row)
        assert tests or row.startswith("Lustre"), row
        for test in tests:
            assert (support.ROOT / "integration" / test).is_file(), test
    named = set(re.findall(r"systems/test_\w+\.py", PAGE))
    there = {f"systems/{path.name}" for path in (support.ROOT / "integration" / "systems").glob("test_*.py")
             if path.name != "test_systems_page.py"}
    assert there == named


def test_its_policy_is_accepted(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    support.Host(tmp_path).tool.check_policy(policy)
