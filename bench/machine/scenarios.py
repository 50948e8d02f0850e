"""Programs with published times and traffic on real machines, as work for the simulated machine."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from bench.machine.simulated import BLOCK_BYTES, HOST, READ, WRITE, SimulatedMachine, Touch

_MB = 1 << 20

Result = dict[str, float]


def _timed(machine: SimulatedMachine, work: Callable[[], None]) -> Result:
    """Runs the work. Returns milliseconds of virtual time and the changes of the counters."""
    machine.wait()
    machine.reset_counters()
    start = machine.now_ns()
    work()
    machine.wait()
    return {"ms": (machine.now_ns() - start) / 1e6, **machine.counters()}


def fir(machine: SimulatedMachine, room_blocks: int, discards: int) -> Result:
    """Runs the program fir of the UVM Discard artifact: `./fir.x 1048576 1450 65536 DISCARD 0`.

    It filters 5,800 MB window by window (64 MB). While kernels work on a window, the next window of
    the input and of the output is prefetched. The previous window may be discarded.
    """
    block, blocks, window = 4 * _MB, 1450, 16
    machine.set_managed_room(room_blocks)
    source, target = machine.allocate(block * blocks), machine.allocate(block * blocks)
    fetching, computing = machine.stream(), machine.stream()
    machine.prefetch(source, block * blocks, HOST, fetching)

    def fetch(first: int, last: int) -> None:
        for buffer in (source, target):
            machine.prefetch(buffer + first * block, (last - first) * block, 0, fetching)

    def run() -> None:
        current, following = 0, window
        fetch(0, following)
        machine.wait(fetching)
        for index in range(blocks):
            if index == following:
                if discards and current >= window:
                    machine.discard(source + (current - window) * block, window * block, computing)
                current, following = following, min(following + window, blocks)
                fetch(current, following)
                machine.wait(fetching)
                machine.wait(computing)
            ranges = [
                Touch(source + index * block, block, READ),
                Touch(target + index * block, block, WRITE),
            ]
            machine.kernel(ranges, computing)

    return _timed(machine, run)


def stream(machine: SimulatedMachine, size_bytes: int, room_blocks: int) -> Result:
    """Times the third pass of a kernel over two managed arrays, each with half of the bytes. The
    kernel reads one and writes the other, as in `seq_stream` of gpu_ext's microbenchmarks.
    """
    if room_blocks:
        machine.set_managed_room(room_blocks)
    half = size_bytes // 2
    source, target = machine.allocate(half), machine.allocate(half)
    queue = machine.stream()
    machine.prefetch(source, half, HOST, queue)
    machine.prefetch(target, half, HOST, queue)
    ranges = []
    for offset in range(0, half, BLOCK_BYTES):
        size = min(BLOCK_BYTES, half - offset)
        ranges += [Touch(source + offset, size, READ), Touch(target + offset, size, WRITE)]
    for _ in range(2):
        machine.kernel(ranges, queue)
        machine.wait(queue)
    return _timed(machine, lambda: machine.kernel(ranges, queue))


def first_touch(machine: SimulatedMachine, size_bytes: int, prefetches: int) -> Result:
    """Runs the first device touch of two arrays that the host has written: a kernel adds one to the
    other. The time excludes the prefetch before it.
    """
    half = size_bytes // 2
    source, target = machine.allocate(half), machine.allocate(half)
    queue = machine.stream()
    machine.prefetch(source, half, HOST, queue)
    machine.prefetch(target, half, HOST, queue)
    if prefetches:
        machine.prefetch(source, half, 0, queue)
        machine.prefetch(target, half, 0, queue)
    # Both arrays are read, and the second is written too.
    moved = machine.kernel_ns(size_bytes + half)
    ranges = [Touch(source, half, READ), Touch(target, half, READ | WRITE)]
    return _timed(machine, lambda: machine.kernel(ranges, queue, moved))


def bandwidth(machine: SimulatedMachine, size_bytes: int) -> Result:
    """Runs a kernel over resident memory."""
    memory = machine.allocate(size_bytes)
    queue = machine.stream()
    machine.prefetch(memory, size_bytes, 0, queue)
    result = _timed(machine, lambda: machine.kernel([Touch(memory, size_bytes, READ)], queue))
    return {**result, "gb_per_s": size_bytes / (result["ms"] * 1e6)}


def mixed(machine: SimulatedMachine) -> Result:
    """Runs a mix of all operations, with too little device memory if devices have their own
    memory.
    """
    size = 256 * _MB
    memory = machine.allocate(size)
    queue, other = machine.stream(), machine.stream()
    machine.prefetch(memory, size, 0, queue)
    machine.advise(memory, size // 4, 3, 0)

    def run() -> None:
        for step in range(64):
            offset = (step * 37 % 96) * 2 * _MB
            machine.kernel([Touch(memory + offset, 5 * _MB, READ | WRITE)], queue)
            machine.prefetch(memory + (offset * 3) % (192 * _MB), 8 * _MB, step % 2 - 1, other)
            machine.discard(memory + 200 * _MB, 16 * _MB, other)

    return _timed(machine, run)


def cpu_touch(machine: SimulatedMachine, size_bytes: int) -> Result:
    """Measures the real seconds in which the host writes memory that a kernel has used before."""
    memory = machine.allocate(size_bytes)
    ctypes.memset(memory, 1, size_bytes)
    queue = machine.stream()
    machine.kernel([Touch(memory, size_bytes, READ | WRITE)], queue)
    machine.wait(queue)
    machine.reset_counters()
    start = time.perf_counter()
    ctypes.memset(memory, 2, size_bytes)
    return {"seconds": time.perf_counter() - start, **machine.counters()}


def speed(machine: SimulatedMachine) -> Result:
    """Measures the blocks prefetched per second of real time, in both directions."""
    blocks, rounds = 4096, 40
    memory = machine.allocate(blocks * BLOCK_BYTES)
    queue = machine.stream()
    machine.prefetch(memory, blocks * BLOCK_BYTES, 0, queue)
    start = time.process_time()
    for number in range(rounds):
        machine.prefetch(memory, blocks * BLOCK_BYTES, HOST if number % 2 == 0 else 0, queue)
    return {"block_ops_per_s": blocks * rounds / (time.process_time() - start)}


SCENARIOS: dict[str, Callable[..., Result]] = {
    "fir": fir,
    "stream": stream,
    "first_touch": first_touch,
    "bandwidth": bandwidth,
    "mixed": mixed,
    "cpu_touch": cpu_touch,
    "speed": speed,
}
