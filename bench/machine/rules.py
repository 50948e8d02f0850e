"""Counts the rules in docs/reference/simulator.md that have an existing test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", re.MULTILINE)
_ROW = re.compile(r"^\| (?P<rule>[^|]+) \| (?P<tests>`[^|]*`|none[^|]*) \|$", re.MULTILINE)
_SECTION = re.compile(r"^## Rules$(.*?)^## ", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Rule:
    text: str
    tests: tuple[str, ...]


def rules_of(document: str) -> list[Rule]:
    """Returns the rows of the table under the heading Rules. The tests are names in backquotes."""
    section = _SECTION.search(document)
    if section is None:
        raise ValueError("docs/reference/simulator.md has no section 'Rules'")
    return [
        Rule(row["rule"].strip(), tuple(re.findall(r"`([^`]+)`", row["tests"])))
        for row in _ROW.finditer(section.group(1))
    ]


def tests_of(folder: Path) -> Iterator[str]:
    """Yields the tests of the C++ sources in the folder, as GROUP.NAME."""
    for source in sorted(folder.rglob("*.cpp")):
        for group, name in _TEST.findall(source.read_text()):
            yield f"{group}.{name}"


def count_rules(root: Path) -> dict[str, object]:
    """Returns tested rules, all rules, untested rules, and named tests that do not exist."""
    known = set(tests_of(root / "tests" / "sim"))
    rules = rules_of((root / "docs" / "reference" / "simulator.md").read_text())
    missing = sorted({test for rule in rules for test in rule.tests if test not in known})
    tested = [rule for rule in rules if rule.tests and not set(rule.tests) & set(missing)]
    return {
        "rules": len(rules),
        "tested": len(tested),
        "untested": [rule.text for rule in rules if rule not in tested],
        "unknown_tests": missing,
    }
