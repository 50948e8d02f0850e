"""Types of results and of words, for programs with annotations.

docs/reference/report.md explains the keys.

Importing this module imports neither torch nor a native library.
"""

from __future__ import annotations

from typing import Literal, TypedDict

MemoryKind = Literal["host", "pinned", "device"]
RegionPolicy = Literal["auto", "driver", "off"]


class Counted(TypedDict):
    count: int
    bytes: int


class KindFigures(TypedDict):
    """Figures of a memory kind. Sizes are in bytes."""

    allocations: int
    allocated_bytes: int  # in all, freed ones too
    live_bytes: int
    cached_bytes: int
    peak_bytes: int
    cache_hits: int


class Facades(TypedDict):
    host: KindFigures
    pinned: KindFigures
    device: KindFigures


class _Device(TypedDict):
    name: str
    total_bytes: int
    believed_bytes: int  # of uvmalloc's memory, as hints and moves have left it


class Device(_Device, total=False):
    real_bytes: int  # as the driver reports it


class SharedDevice(TypedDict):
    programs: int
    held_bytes: int
    turns: int
    waited_ns: int


class LivePlan(TypedDict):
    kernels: int
    brought_pages: int
    evicted_pages: int
    pages_to_peers: int
    discarded_pages: int
    missing_pages: int
    in_place_pages: int
    checked_pages: int
    wrong_pages: int


class GroupEntry(TypedDict):
    name: str
    state: Literal["awake", "asleep", "discarded", "in a file"]
    blocks: int
    bytes: int
    page_bytes: int
    device_bytes: int
    host_bytes: int
    spill_bytes: int
    file_bytes: int
    sleeps: int
    wakes: int
    kept_bytes: int
    left_bytes: int
    idle_sleeps: int


class Allocations(TypedDict):
    allocations: int
    allocated_bytes: int


class Moves(TypedDict):
    total: int
    host_to_device: int
    device_to_host: int
    device_to_device: int
    bytes: int


class Copies(Counted):
    bytes_at_or_above_threshold: int


class CopiesByMoves(Copies):
    by_reason: dict[str, Copies]


class Materializations(TypedDict):
    copies: int
    bytes: int
    steals: int


class Forks(TypedDict):
    count: int
    copied_bytes: int
    shared_bytes: int
    without_copy: int
    seconds: float


class Hints(TypedDict):
    sent: int
    bytes: int
    skipped: dict[str, int]
    failed: int


class Compared(TypedDict):
    believed_bytes: int
    real_bytes: int


class NativeAllocations(TypedDict):
    device: int
    pinned: int
    host: int


class CallCounts(TypedDict):
    served: int
    excluded: int
    no_memory: int
    left: int
    beyond_limit: int


class Stats(TypedDict, total=False):
    """The report on a process. Without uvmalloc, all keys are absent."""

    version: str
    program: str
    pid: int
    parent: int
    rank: str | None
    start_time: float  # seconds since 1970
    start_ticks: int
    active: bool
    reason: str  # why it is not active
    framework: bool
    policy: Literal["auto", "planned", "lru", "driver", "off"]
    threshold_bytes: int
    host_memory: Literal["managed", "ordinary"]
    budget_bytes: int
    live_plan: LivePlan
    shared_devices: list[SharedDevice]
    devices: list[Device]
    groups: list[GroupEntry]
    wall_seconds: float
    peak_bytes: int
    peak_touched_bytes: int
    peak_span_bytes: int
    cached_bytes: int
    facades: Facades
    host_unmanaged: Allocations
    moves: Moves
    copies_by_moves: CopiesByMoves
    conversions: Counted
    materializations: Materializations
    forks: Forks
    prefetches: Hints
    advice: Hints
    fences: int
    recalls: int
    compared: Compared  # once the driver was asked
    pressure_rounds: int
    out_of_memory: int
    driver_calls: dict[str, int]
    threads_left_out: int
    native_allocations: NativeAllocations | None
    cuda_calls: dict[str, CallCounts]  # in a preloaded process
    static_cuda_runtimes: list[str]
