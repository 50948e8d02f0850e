"""The targets of uvmalloc, and whether they are met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bench.allocators.engines import DRIVEN, EARLIER, JEMALLOC, OURS, TORCH
from bench.allocators.measure import Results
from bench.allocators.plan import (
    LARGE_CHURNS,
    METADATA_BLOCKS,
    MOST_JEMALLOC_BYTES,
    SIZES,
    TIGHT_PERCENT,
)
from bench.verdict import Target

_LEAST_PERCENT_BYTES = 16 << 10
_VARYING = "varying"
_OTHERS = tuple(name for name in DRIVEN if name not in (OURS, EARLIER))
_DEVICE_PEERS = tuple(name for name in _OTHERS if name != TORCH)


def targets(results: Results) -> list[Target]:
    """Returns all targets, in a fixed order."""
    return [
        *_at_most(results, "pair_ns", "pair, ns", 25),
        *_times(results, "pair_ns", "pair, native PyTorch over uvmalloc", 10, [TORCH]),
        *_times(
            results, "pair_ns", "pair, best of cub, rmm, umpire over uvmalloc", 3, _DEVICE_PEERS
        ),
        *_over_jemalloc(results),
        *_at_least(results, "two_thread_scaling", "throughput of two threads over one", 1.8),
        *_at_most(results, "live_scaling", "pair, many live blocks over few", 2),
        *_at_most(results, "churn_ns", "churn, ns per operation", 100, _not_large),
        *_times(results, "churn_ns", "churn, best other over uvmalloc", 3, _OTHERS, _not_large),
        *_at_most(results, "replay_ns", "replay, ns per operation", 40),
        *_times(results, "replay_ns", "replay, native PyTorch over uvmalloc", 5, [TORCH]),
        *_times(results, "replay_ns", "replay, rmm over uvmalloc", 1, ["rmm"]),
        *_memory(results),
        *_at_most(
            results, "touched_over_live_discard", "touched over live, tight", TIGHT_PERCENT / 100
        ),
        *_at_most(results, "steady_driver_calls", "driver calls per steady step", 0, _not_varying),
        *_at_most(results, "prefetches_per_move", "prefetches per move", 1, _in_one_piece),
        *_at_most(results, "metadata_bytes", "metadata, bytes per block", 128),
        *_at_most(results, "metadata_percent", "metadata, % of live bytes", 1, _from_16_kib),
        *_at_most(results, "trace_cost", "traced over not", 3),
        *_at_most(results, "trace_event_ns", "an event of a trace, ns", 100),
    ]


def _ours(results: Results, key: str) -> dict[str, float | None]:
    return results.get(key, {}).get(OURS, {})


def _not_varying(case: str) -> bool:
    return not case.startswith(_VARYING)


def _not_large(case: str) -> bool:
    return case not in {churn.case for churn in LARGE_CHURNS}


def _in_one_piece(case: str) -> bool:
    """Whether the copy is sent in one piece; it is not from 64 MiB on (hints/hint_sender.hpp)."""
    return not case.startswith("256 MiB")


def _from_16_kib(case: str) -> bool:
    return any(case == name and size >= _LEAST_PERCENT_BYTES for name, size in METADATA_BLOCKS)


def _at_most(
    results: Results,
    key: str,
    name: str,
    bound: float,
    wanted: Callable[[str], bool] = lambda case: True,
) -> Iterator[Target]:
    for case, value in _ours(results, key).items():
        if wanted(case):
            yield Target(name, case, value, bound, at_most=True)


def _at_least(results: Results, key: str, name: str, bound: float) -> Iterator[Target]:
    for case, value in _ours(results, key).items():
        yield Target(name, case, value, bound, at_most=False)


def _times(
    results: Results,
    key: str,
    name: str,
    bound: float,
    others: Sequence[str],
    wanted: Callable[[str], bool] = lambda case: True,
) -> Iterator[Target]:
    """Yields the ratio of the best value of `others` to ours, for each case."""
    for case, ours in _ours(results, key).items():
        if not wanted(case):
            continue
        values = [results[key].get(other, {}).get(case) for other in others]
        best = min((value for value in values if value is not None), default=None)
        value = best / ours if best is not None and ours is not None else None
        yield Target(name, case, value, bound, at_most=False)


def _over_jemalloc(results: Results) -> Iterator[Target]:
    """Yields our small pairs over jemalloc's."""
    alone = results.get("pair_ns", {}).get(JEMALLOC, {})
    for case, ours in _ours(results, "pair_ns").items():
        if SIZES.get(case, MOST_JEMALLOC_BYTES + 1) > MOST_JEMALLOC_BYTES:
            continue
        other = alone.get(case)
        value = ours / other if ours is not None and other is not None else None
        yield Target("pair, uvmalloc over jemalloc alone", case, value, 1.5, at_most=True)


def _memory(results: Results) -> Iterator[Target]:
    for case, value in _ours(results, "touched_over_live").items():
        if not case.startswith("churn"):
            bound = 1.10 if case.startswith(_VARYING) else 1.03
            yield Target("touched over live", case, value, bound, at_most=True)
