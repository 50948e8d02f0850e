"""Values that options and variables accept."""

from __future__ import annotations

# scripts/lists.py writes these four lines.
POLICIES = ("auto", "planned", "lru", "driver", "off")
MOVES = ("cow", "alias", "copy")
LOG_LEVELS = ("off", "error", "warning", "info", "debug")
DRIVER_VERSIONS = ("12.2", "12.8", "13.0", "13.5")

# Same values as in the simulator.
HINTS = ("none", "recorded")  # hints that a replay of a trace can send
PROFILES = ("discrete", "integrated", "hmm", "coherent")
LEAST_SIZE_BYTES = 2 << 20  # smallest capacity or budget: one page of unified memory
MOST_SIZE_BYTES = 64 << 40  # the simulator has no addresses beyond that
MOST_DEVICES = 32
