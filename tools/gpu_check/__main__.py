"""Runs the command of this folder: `python tools/gpu_check`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "pytorch" / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_check.command import main

sys.exit(main())
