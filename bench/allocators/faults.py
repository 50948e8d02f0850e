"""Wrong allocations. If a replay has one, its times are meaningless."""

from __future__ import annotations

from collections.abc import Iterator

from bench.allocators.measure import Results
from bench.allocators.plan import REPLAY_FAILURES, REPLAY_OVERLAPS

_SAID = {
    REPLAY_FAILURES: "{count:.0f} requests fail",
    REPLAY_OVERLAPS: "{count:.0f} blocks lie over others that are live",
}


def faults(results: Results) -> list[str]:
    """Returns a line for each allocator and replay with a wrong allocation, or without a check."""
    return list(_lines(results))


def _lines(results: Results) -> Iterator[str]:
    for key, said in _SAID.items():
        for allocator, cases in results.get(key, {}).items():
            for case, count in cases.items():
                if count is None and key == REPLAY_FAILURES:
                    yield f"{allocator}, replay of {case}: not checked"
                elif count:
                    yield f"{allocator}, replay of {case}: {said.format(count=count)}"
