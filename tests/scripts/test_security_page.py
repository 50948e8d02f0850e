"""docs/security.md names a test for each rule."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_rule_names_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| (.*) \| (.*) \|$", (ROOT / "docs/security.md").read_text(), re.M)
    rules = {rule: test.strip("`") for rule, test in rows if rule != "rule"}
    assert len(rules) > 20
    found = subprocess.run(
        ["git", "grep", "-hE", r"^TEST|^ *def test_", "--", "tests"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    tests = set(re.findall(r"^TEST\w*\(\w+, (\w+)\)|^ *def (test_\w+)\(", found, re.M))
    names = {name for pair in tests for name in pair if name}
    assert {rule: test for rule, test in rules.items() if test not in names} == {}
