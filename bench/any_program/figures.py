"""Writes build/any_program.json: figures of several measurements of programs without PyTorch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / "build" / "any_program.json"


def write_figures(figures: Mapping[str, Any], file: Path = FILE) -> None:
    """Writes the figures into the file atomically. Keeps the file's other keys."""
    file.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(file.read_text()) if file.is_file() else {}
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    partial.write_text(json.dumps({**known, **figures}, indent=1) + "\n")
    partial.rename(file)
