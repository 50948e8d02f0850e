"""The questions, the allocators that get them, and the keys of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.allocators.engines import DRIVEN, JEMALLOC, OURS

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
MOVE_SIZES = ("64 KiB", "2 MiB", "20 MiB", "256 MiB")
MOST_JEMALLOC_BYTES = 4 * KIB  # jemalloc is not made for larger blocks
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
TIGHT_PERCENT = 102  # budget of the tight replays, in percent of the peak of live bytes
MOST_TIGHT_PERCENT = 110  # or the smallest budget that suffices, up to this percentage
ORDERS = ("lifo", "fifo", "random")
# Measured with and without a trace. Case -> trace events per timed unit (pair or operation).
TRACED_PAIR, TRACED_SIZES, TRACED_CHURN = "64 KiB", "random64", "churn, 2,000 live"
TRACE_EVENTS = {TRACED_PAIR: 2, TRACED_SIZES: 2, TRACED_CHURN: 1}
TRACED, UNTRACED = "traced", "not traced"
# Keys of counts that must be 0; otherwise the times of a replay are meaningless.
REPLAY_FAILURES = "replay_failures"
REPLAY_OVERLAPS = "replay_overlaps"


@dataclass(frozen=True)
class LargeChurn:
    """A churn with so many live blocks that only small ones fit. It is slow, so it runs once."""

    live: int
    most_bytes: int  # a limit on sizes, so that the blocks fit
    warm: int  # replacements before the timed ones
    replacements: int
    left_out: Mapping[str, str]  # allocators that are left out, and why

    @property
    def case(self) -> str:
        return f"{self.live:,} live, up to {self.most_bytes // MIB} MiB"


_RMM_SEARCHES = "it searches a list of all free blocks: this would take it minutes to hours"
LARGE_CHURNS = (
    LargeChurn(100_000, 4 * MIB, 100_000, 20_000, {"rmm": _RMM_SEARCHES}),
    LargeChurn(
        1_000_000, MIB, 200_000, 20_000,
        {
            "rmm": _RMM_SEARCHES,
            "cub": "it asks the driver for every block, and the stand-in has no address space for "
            "so many below 2 MiB",
        },
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Level:
    """The extent of the measurements."""

    name: str
    rounds: int
    milliseconds: int  # of a sample
    samples: int
    sizes: tuple[str, ...]
    few_live: int
    many_live: int
    churn_live: tuple[int, ...]
    most_churn_live: int  # of the large churns
    replacements: int  # of a churn
    grid_allocations: tuple[int, ...]
    grid_most: tuple[str, ...]
    replay_runs: int
    more_steps: int  # added to a long replay
    beginnings: int  # random beginnings of a replay
    metadata_divisor: int = 1


FULL = Level(
    "full", 5, 20, 5, tuple(SIZES), 1000, 1_000_000, (1000, 10_000),
    1_000_000, 50_000, (1000, 10_000), ("1 MiB", "20 MiB", "256 MiB"), 5, 1000, 60,
)  # fmt: skip
QUICK = Level(
    "quick", 2, 5, 3, tuple(SIZES), 1000, 1_000_000, (1000, 10_000),
    100_000, 20_000, (1000,), ("1 MiB", "256 MiB"), 3, 1000, 30,
)  # fmt: skip
SMOKE = Level(
    "smoke", 1, 1, 1, ("512 B", "2 MiB"), 100, 10_000, (100,),
    0, 1000, (100,), ("1 MiB",), 1, 10, 2, metadata_divisor=100,
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """The value `field` of an answer, which becomes results[key][allocator][case]."""

    key: str
    case: str
    field: str


@dataclass(frozen=True)
class Question:
    request: str
    figures: tuple[Figure, ...]
    allocators: tuple[str, ...] = DRIVEN  # the measured allocators
    # Needs its own process: earlier questions change the answer, or this one changes later answers.
    # Umpire, for example, takes 50 % longer for a churn if its process has done other work.
    alone: bool = False
    once: bool = False  # only in the first round, because the answer is a count that does not vary
    environment: Mapping[str, str] | None = None  # of its own process
    timeout_seconds: float = 60
    left_out: Mapping[str, str] = field(default_factory=dict)  # allocator -> reason


def questions(level: Level, traces: Mapping[str, Path], scratch: Path) -> list[Question]:
    """Returns all questions of a run, in order. `traces` are uncompressed files by name."""
    timing = f"milliseconds={level.milliseconds} samples={level.samples}"
    asked = [
        Question(
            f"pair size={SIZES[size]} {timing}",
            (Figure("pair_ns", size, "ns"),),
            (*DRIVEN, JEMALLOC) if SIZES[size] <= MOST_JEMALLOC_BYTES else DRIVEN,
        )
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
            alone=True,
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
                alone=True,
            )
        )
    asked += [_large_churn(level, churn) for churn in LARGE_CHURNS]
    asked += [
        Question(
            f"grid allocations={count} most={SIZES[most]} samples={level.samples} seed={SEED}",
            (Figure("random_grid_ns", f"{count:,} up to {most}", "ns"),),
            alone=True,
        )
        for count in level.grid_allocations
        for most in level.grid_most
    ]
    for name, trace in traces.items():
        asked += _replays(level, name, trace)
    return asked + _ours(level, timing, scratch)


def _large_churn(level: Level, churn: LargeChurn) -> Question:
    left_out = churn.left_out
    if churn.live > level.most_churn_live:
        left_out = dict.fromkeys(DRIVEN, f"left out of --level {level.name}")
    return Question(
        f"churn live={churn.live} most={churn.most_bytes} warm={churn.warm} "
        f"replacements={churn.replacements} seed={SEED}",
        (
            Figure("churn_ns", churn.case, "ns"),
            Figure("touched_over_live", f"churn, {churn.case}", "reserved_over_live"),
        ),
        tuple(name for name in DRIVEN if name not in left_out),
        alone=True,
        once=True,
        timeout_seconds=180,
        left_out=left_out,
    )


def _check(case: str, request: str, allocators: tuple[str, ...] = DRIVEN) -> Question:
    """Returns the question that checks a replay's allocations, in a pass before the timed ones."""
    return Question(
        f"check {request}",
        (
            Figure(REPLAY_FAILURES, case, "failed_requests"),
            Figure(REPLAY_OVERLAPS, case, "overlapping_blocks"),
        ),
        allocators,
        once=True,
        timeout_seconds=120,
    )


def _replays(level: Level, name: str, trace: Path) -> Iterator[Question]:
    yield _check(name, f"trace={trace}")
    yield Question(
        f"replay trace={trace} runs={level.replay_runs}",
        (
            Figure("replay_ns", name, "ns"),
            Figure("touched_over_live", name, "reserved_over_live"),
            Figure("steady_driver_calls", name, "driver_calls_per_step"),
            Figure("steady_prefetch_calls", name, "prefetch_calls_per_step"),
        ),
    )
    yield Question(
        f"beginnings trace={trace} beginnings={level.beginnings}",
        (
            Figure("touched_over_live_mean", name, "mean"),
            Figure("touched_over_live_most", name, "most"),
        ),
        once=True,
        timeout_seconds=120,
    )
    on = f"{name}, {level.more_steps:,} steps more"
    # A check of this many steps takes a while. For other allocators, the short check shows as much.
    yield _check(on, f"trace={trace} more_steps={level.more_steps}", (OURS,))
    yield Question(
        f"replay trace={trace} more_steps={level.more_steps}",
        (
            Figure("replay_ns", on, "ns"),
            Figure("touched_over_live", on, "reserved_over_live"),
            Figure("steady_driver_calls", on, "driver_calls_per_step"),
        ),
    )
    yield Question(
        f"least_budgets trace={trace} beginnings={level.beginnings}",
        (
            Figure("least_budget_mean", name, "mean"),
            Figure("least_budget_most", name, "most"),
        ),
        allocators=(OURS,),
        once=True,
        timeout_seconds=120,
    )
    tight = f"trace={trace} budget_percent={TIGHT_PERCENT} most_percent={MOST_TIGHT_PERCENT}"
    yield _check(f"{name}, tight", tight, (OURS,))
    yield Question(
        f"replay {tight}",
        (
            Figure("touched_over_live_discard", name, "reserved_over_live"),
            Figure("budget_percent", name, "budget_percent"),
            Figure("discard_calls", name, "discard_calls"),
        ),
        allocators=(OURS,),
        once=True,
    )


def _ours(level: Level, timing: str, scratch: Path) -> list[Question]:
    asked = [
        Question(
            f"calls {timing}",
            tuple(Figure("stand_in_call_ns", call, call) for call in STAND_IN_CALLS),
            allocators=(OURS,),
        )
    ]
    asked += [
        Question(
            f"metadata size={size} live={blocks // level.metadata_divisor} runtime=reserving",
            (
                Figure("metadata_bytes", case, "bytes_per_block"),
                Figure("metadata_percent", case, "percent_of_live"),
            ),
            allocators=(OURS,),
            alone=True,
            once=True,
        )
        for (case, size), blocks in METADATA_BLOCKS.items()
    ]
    moved = [(size, f"size={SIZES[size]} blocks=8") for size in level.sizes if size in MOVE_SIZES]
    asked += [
        Question(
            f"moves {blocks} seed={SEED}",
            (
                Figure("prefetches_per_move", f"{case}, to the device", "to_device"),
                Figure("prefetches_per_move", f"{case}, to the host", "to_host"),
            ),
            allocators=(OURS,),
            once=True,
        )
        for case, blocks in (*moved, ("64 sizes", "blocks=64"))
    ]
    return asked + _traced(level, timing, scratch)


def _traced(level: Level, timing: str, scratch: Path) -> list[Question]:
    requests = {
        TRACED_PAIR: f"pair size={64 * KIB} {timing}",
        TRACED_SIZES: f"order free=random blocks=64 seed={SEED} {timing}",
        TRACED_CHURN: f"churn live=2000 most={64 * MIB} replacements={level.replacements} "
        f"seed={SEED}",
    }
    return [
        Question(
            requests[case],
            (Figure("trace_ns", f"{case}, {how}", "ns"),),
            allocators=(OURS,),
            alone=True,
            environment={"UVMALLOC_TRACE": str(scratch / "trace")} if how == TRACED else None,
        )
        for case in TRACE_EVENTS
        for how in (UNTRACED, TRACED)
    ]
