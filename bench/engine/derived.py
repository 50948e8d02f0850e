"""Values that follow from measured ones."""

from __future__ import annotations

from bench.engine.measure import Absent, Results
from bench.engine.plan import LIVE_SIZES, Level


def add_derived(results: Results, gaps: list[Absent], level: Level) -> None:
    """Ratios under keys of their own: `live_scaling` and `trace_cost`. One whose parts are missing
    is None, with the part's reason in `gaps`.
    """
    for allocator in list(results.get("live_pair_ns", {})):
        for size in (size for size in level.sizes if size in LIVE_SIZES):
            parts = [f"{size}, {live:,} live" for live in (level.many_live, level.few_live)]
            _add_ratio(results, gaps, ("live_scaling", size), ("live_pair_ns", allocator), parts)
    for allocator in list(results.get("trace_pair_ns", {})):
        source = ("trace_pair_ns", allocator)
        _add_ratio(results, gaps, ("trace_cost", "64 KiB"), source, ["with", "without"])


def _add_ratio(
    results: Results,
    gaps: list[Absent],
    target: tuple[str, str],
    source: tuple[str, str],
    parts: list[str],
) -> None:
    (key, case), (from_key, allocator) = target, source
    above, below = (results[from_key][allocator].get(part) for part in parts)
    value = above / below if above is not None and below is not None else None
    results.setdefault(key, {}).setdefault(allocator, {})[case] = value
    if value is None:
        reasons = [gap.reason for gap in gaps if (gap.key, gap.allocator) == (from_key, allocator)]
        gaps.append(Absent(key, allocator, case, reasons[0] if reasons else "not measured"))
