"""No include goes against the arrows between rooms and between folders of the allocator."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("check_layers", ROOT / "scripts/check_layers.py")
assert _SPEC is not None and _SPEC.loader is not None
check_layers = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check_layers)


def _plant(root: Path, file: str, include: str) -> list[str]:
    path = root / file
    path.parent.mkdir(parents=True)
    path.write_text(f"#pragma once\n\n#include <uvmalloc/{include}>\n")
    return check_layers.violations(root)


def test_the_tree_has_no_violation() -> None:
    assert check_layers.violations(ROOT) == []


def test_a_folder_that_includes_one_above_it_is_named(tmp_path: Path) -> None:
    assert _plant(tmp_path, "allocator/heap/a.hpp", "allocator/engine/engine.hpp") == [
        "allocator/heap/a.hpp includes allocator/engine/"
    ]


def test_a_room_that_includes_one_above_it_is_named(tmp_path: Path) -> None:
    assert _plant(tmp_path, "storage/a.hpp", "allocator/heap/block.hpp") == [
        "storage/a.hpp includes allocator/"
    ]


def test_a_folder_may_include_what_is_below_it(tmp_path: Path) -> None:
    assert _plant(tmp_path, "allocator/engine/a.cpp", "allocator/heap/block.hpp") == []
