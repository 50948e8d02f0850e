"""docs/internals/security.md names a test for each rule."""

from __future__ import annotations

import re

from tests.scripts.named_tests import ROOT, named_tests


def test_every_rule_names_a_test_that_is_there() -> None:
    rows = re.findall(
        r"^\| (.*) \| (.*) \|$", (ROOT / "docs/internals/security.md").read_text(), re.M
    )
    rules = {rule: test.strip("`") for rule, test in rows if rule != "rule"}
    assert len(rules) > 20
    names = named_tests()
    assert {rule: test for rule, test in rules.items() if test not in names} == {}
