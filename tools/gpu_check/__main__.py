"""Runs the command of this folder: `python tools/gpu_check`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_check.command import main

sys.exit(main())
