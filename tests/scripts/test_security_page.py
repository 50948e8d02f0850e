"""docs/internals/security.md names a test in each line of its tables."""

from __future__ import annotations

import re

from tests.scripts.named_tests import ROOT, named_tests

PAGE = (ROOT / "docs/internals/security.md").read_text()


def lines_of_tables() -> list[list[str]]:
    """Returns the cells of each line of the page's tables, without their heads."""
    rows = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("|")]
    heads = {at - 1 for at, row in enumerate(rows) if re.fullmatch(r"[-|]+", "|".join(row))}
    return [row for at, row in enumerate(rows) if at not in heads and at - 1 not in heads]


def test_every_line_names_a_test_that_is_there() -> None:
    lines = lines_of_tables()
    assert len(lines) > 35
    tests = {row[0].strip(): row[-1].strip() for row in lines}
    names = named_tests()
    wrong = {
        rule: test
        for rule, test in tests.items()
        if not re.fullmatch(r"`\w+`", test) or test.strip("`") not in names
    }
    assert wrong == {}


def test_every_table_ends_with_its_tests() -> None:
    heads = re.findall(r"^\|(.*)\|\n\|[-|]+\|$", PAGE, re.MULTILINE)
    assert len(heads) > 4
    assert [head for head in heads if head.split(" | ")[-1].strip() != "test"] == []
