"""ARCHITECTURE.md describes every lock, in the order of the ranks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ranks() -> list[str]:
    text = (ROOT / "runtime" / "lock_ranks.def").read_text()
    return re.findall(r"^UVM_LOCK_RANK\((\w+), ", text, re.MULTILINE)


def described() -> list[tuple[str, str]]:
    """Returns each rank in ARCHITECTURE.md, and whether its lock is held across driver calls."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("\n## Locks\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (k[\w, ]+) \|.*\| (yes|no) \|$", section, re.MULTILINE)
    return [(rank, held) for names, held in rows for rank in names.split(", ")]


def test_the_table_of_locks_has_every_rank_in_its_order() -> None:
    assert ["kNone", *(rank for rank, _ in described())] == ranks()


def test_locks_are_held_across_driver_calls_up_to_the_arenas_alone() -> None:
    held = dict(described())
    across = ranks()[1 : ranks().index("kArena")]
    assert [rank for rank in held if held[rank] == "yes"] == across
