"""Values that options and variables accept."""

from __future__ import annotations

# scripts/lists.py writes these four.
POLICIES = ("auto", "planned", "lru", "driver", "off")
MOVES = ("cow", "alias", "copy")
LOG_LEVELS = ("off", "error", "warning", "info", "debug")
DRIVER_VERSIONS = ("12.2", "12.8", "13.0", "13.5")

# The simulator accepts the same.
HINTS = ("none", "recorded")  # that a replay of a trace sends
PROFILES = ("discrete", "integrated", "hmm", "coherent")
LEAST_SIZE_BYTES = 2 << 20  # of a capacity or a budget: one page of unified memory
MOST_SIZE_BYTES = 64 << 40  # the simulator has addresses for no more
MOST_DEVICES = 32
