"""What is asked, of whom, and under which keys the answers are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
SEED = 1

SIZES = {
    "512 B": 512,
    "4 KiB": 4 * KIB,
    "64 KiB": 64 * KIB,
    "1 MiB": MIB,
    "2 MiB": 2 * MIB,
    "20 MiB": 20 * MIB,
    "256 MiB": 256 * MIB,
}
THREAD_SIZES = ("512 B", "64 KiB", "2 MiB", "20 MiB")
LIVE_SIZES = ("512 B", "4 KiB")
METADATA_BLOCKS = {
    ("512 B", 512): 1_000_000,
    ("4 KiB", 4 * KIB): 200_000,
    ("16 KiB", 16 * KIB): 100_000,
    ("64 KiB", 64 * KIB): 20_000,
    ("1 MiB", MIB): 10_000,
    ("2 MiB", 2 * MIB): 10_000,
}
STAND_IN_CALLS = ("cudaGetDevice", "cudaEventRecord", "cudaEventQuery", "cudaMalloc and cudaFree")
ORDERS = ("lifo", "fifo", "random")


@dataclass(frozen=True)
class Level:
    """How much is measured."""

    name: str
    rounds: int
    milliseconds: int  # of a sample
    samples: int
    sizes: tuple[str, ...]
    few_live: int
    many_live: int
    churn_live: tuple[int, ...]
    replacements: int  # of a churn
    grid_allocations: tuple[int, ...]
    grid_most: tuple[str, ...]
    replay_steps: int
    metadata_divisor: int = 1


FULL = Level(
    "full", 5, 20, 5, tuple(SIZES), 1000, 1_000_000, (1000, 10_000), 50_000,
    (1000, 10_000), ("1 MiB", "20 MiB", "256 MiB"), 30,
)  # fmt: skip
QUICK = Level(
    "quick", 2, 5, 3, tuple(SIZES), 1000, 1_000_000, (1000, 10_000), 20_000,
    (1000,), ("1 MiB", "256 MiB"), 12,
)  # fmt: skip
SMOKE = Level(
    "smoke", 1, 1, 1, ("512 B", "2 MiB"), 100, 10_000, (100,), 1000,
    (100,), ("1 MiB",), 4, metadata_divisor=100,
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """Where one value of an answer goes: results[key][allocator][case]."""

    key: str
    case: str
    field: str


@dataclass(frozen=True)
class Question:
    request: str
    figures: tuple[Figure, ...]
    ours_only: bool = False
    alone: bool = False  # of a process of its own: the answer depends on what it did before
    once: bool = False  # in the first round only: it is a count, which does not vary
    environment: Mapping[str, str] | None = None  # of a process of its own
    timeout_seconds: float = 60


def questions(level: Level, replays: Mapping[str, Path], scratch: Path) -> list[Question]:
    """All of a run, in order. `replays` are files of operations by name."""
    timing = f"milliseconds={level.milliseconds} samples={level.samples}"
    asked = [
        Question(f"pair size={SIZES[size]} {timing}", (Figure("pair_ns", size, "ns"),))
        for size in level.sizes
    ]
    asked += [
        Question(
            f"order free={order} blocks=64 seed={SEED} {timing}",
            (Figure("pair_ns", f"{order}64", "ns"),),
        )
        for order in ORDERS
    ]
    asked += [
        Question(
            f"threads size={SIZES[size]} threads=2 {timing}",
            (
                Figure("two_thread_scaling", size, "ratio"),
                Figure("two_thread_delayed_percent", size, "delayed_percent"),
            ),
        )
        for size in level.sizes
        if size in THREAD_SIZES
    ]
    asked += [
        Question(
            f"live size={SIZES[size]} live={live} {timing}",
            (Figure("live_pair_ns", f"{size}, {live:,} live", "ns"),),
        )
        for size in level.sizes
        if size in LIVE_SIZES
        for live in (level.few_live, level.many_live)
    ]
    for live in level.churn_live:
        case = f"{live:,} live"
        asked.append(
            Question(
                f"churn live={live} most={64 * MIB} replacements={level.replacements} seed={SEED}",
                (
                    Figure("churn_ns", case, "ns"),
                    Figure("touched_over_live", f"churn, {case}", "reserved_over_live"),
                ),
            )
        )
    asked += [
        Question(
            f"grid allocations={count} most={SIZES[most]} samples={level.samples} seed={SEED}",
            (Figure("random_grid_ns", f"{count:,} up to {most}", "ns"),),
        )
        for count in level.grid_allocations
        for most in level.grid_most
    ]
    asked += _replays(level, replays)
    return asked + _ours(level, timing, scratch)


def _replays(level: Level, replays: Mapping[str, Path]) -> list[Question]:
    sources = {
        kind: f"sequence={kind} steps={level.replay_steps} seed={SEED}"
        for kind in ("repeating", "varying")
    }
    sources |= {name: f"file={file} passes=5" for name, file in replays.items()}
    return [
        Question(
            f"replay {source}",
            (
                Figure("replay_ns", name, "ns"),
                Figure("touched_over_live", name, "reserved_over_live"),
                Figure("steady_driver_calls", name, "driver_calls_per_step"),
                Figure("steady_prefetch_calls", name, "prefetch_calls_per_step"),
            ),
        )
        for name, source in sources.items()
    ]


def _ours(level: Level, timing: str, scratch: Path) -> list[Question]:
    asked = [
        Question(
            f"calls {timing}",
            tuple(Figure("stand_in_call_ns", call, call) for call in STAND_IN_CALLS),
            ours_only=True,
        )
    ]
    asked += [
        Question(
            f"metadata size={size} live={blocks // level.metadata_divisor} runtime=reserving",
            (
                Figure("metadata_bytes", case, "bytes_per_block"),
                Figure("metadata_percent", case, "percent_of_live"),
            ),
            ours_only=True,
            alone=True,
            once=True,
        )
        for (case, size), blocks in METADATA_BLOCKS.items()
    ]
    for case, trace in (("without", None), ("with", scratch / "trace")):
        asked.append(
            Question(
                f"pair size={64 * KIB} {timing}",
                (Figure("trace_pair_ns", case, "ns"),),
                ours_only=True,
                alone=True,
                environment={"UVMALLOC_TRACE": str(trace)} if trace else None,
            )
        )
    return asked
