"""docs/internals: notes and invariants name existing tests, and the code cites each of them."""

from __future__ import annotations

import re
import subprocess

from tests.scripts.named_tests import ROOT, named_tests

NOTES = (ROOT / "docs/internals/notes.md").read_text()
INVARIANTS = (ROOT / "docs/internals/invariants.md").read_text()


def code() -> str:
    """Returns all sources of the product, with each comment on one line."""
    files = subprocess.run(
        ["git", "ls-files", "*.cpp", "*.hpp"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    text = "\n".join((ROOT / file).read_text() for file in files if not file.startswith("sim/"))
    return re.sub(r"\n *// ", " ", text)


def test_the_evidence_of_each_note_exists() -> None:
    notes = NOTES.split("\n## ")[1:]
    assert len(notes) == 10
    names = named_tests()
    for note in notes:
        evidence = note.partition("**Evidence.**")[2].partition("**Limits.**")[0]
        quoted = re.findall(r"`([^`]+)`", evidence)
        assert quoted, note
        missing = [name for name in quoted if name not in names and not (ROOT / name).is_file()]
        assert missing == [], note


def test_the_code_cites_each_note_by_its_name() -> None:
    titles = set(re.findall(r"^## (.+)$", NOTES, re.M))
    assert set(re.findall(r'\(Note "([^"]+)"', code())) == titles


def test_the_code_cites_each_invariant_by_its_number() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", INVARIANTS, re.M)]
    assert numbers == list(range(1, len(numbers) + 1))
    cited = re.findall(r"\b[Ii]nvariant (\d+)\b", code())
    assert {int(number) for number in cited} == set(numbers)
