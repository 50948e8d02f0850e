"""The least time of a recorded step on a device with less memory than it needs.

The bound of bytes (bound.py) lets copies run at any time of the step. But a block can leave only
after a use, and must be back at the next one. Memory is short only in parts of the step, so copies
in one direction often fall into one half of the step. This bound takes that into account: it is a
linear program over time slots, each with some kernels and a variable wait. In each slot a lane
copies at most at its rate. At the kernel of each slot that needs most memory, enough blocks are
away. Blocks may be away in parts, and a copy may use the whole slot in which it begins or ends, so
no schedule takes less time. Kernels take their time with all memory resident; the driver takes
none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bench.oversubscription.bound import Bound, Gap, Level, levels_of
from bench.oversubscription.linear_program import LinearProgram

_SLOTS = 48


@dataclass(frozen=True)
class Link:
    to_device_bytes_per_ns: float
    to_host_bytes_per_ns: float


def slots_of(kernel_ns: Sequence[float], count: int = _SLOTS) -> list[int]:
    """Returns the slot of each kernel. Slots take about equal time."""
    total = sum(kernel_ns) or 1.0
    slots, so_far = [], 0.0
    for duration in kernel_ns:
        slots.append(min(count - 1, int((so_far + duration / 2) * count / total)))
        so_far += duration
    numbers = {slot: number for number, slot in enumerate(sorted(set(slots)))}
    return [numbers[slot] for slot in slots]


class TimedBound:
    def __init__(self, bound: Bound, kernel_ns: Sequence[float], link: Link) -> None:
        self._bound = bound
        self._link = link
        self._slot = slots_of(kernel_ns)
        self._slots = max(self._slot) + 1
        self._slot_ns = [0.0] * self._slots
        for slot, duration in zip(self._slot, kernel_ns, strict=True):
            self._slot_ns[slot] += duration

    def least_ns(self, chunks: int) -> float:
        program = LinearProgram()
        waits = [program.variable(cost=1e-3) for _ in range(self._slots)]
        to_device: list[list[tuple[int, float]]] = [[] for _ in range(self._slots)]
        to_host: list[list[tuple[int, float]]] = [[] for _ in range(self._slots)]
        checked = self._checked_kernels()
        away: dict[int, list[tuple[int, float]]] = defaultdict(list)  # by kernel
        leaving: dict[int, list[tuple[int, int]]] = {}  # by gap: slot and variable
        for number, gap in enumerate(self._bound.gaps):
            path = self._path(gap)
            outs = [program.variable() for _ in path]
            ins = [program.variable() for _ in path]
            leaving[number] = list(zip(path, outs, strict=True))
            program.at_most([(out, 1.0) for out in outs], 1)
            program.at_most([(v, 1.0) for v in outs] + [(v, -1.0) for v in ins], 0)
            for place in range(len(path)):
                program.at_most(
                    [(v, 1.0) for v in ins[: place + 1]] + [(v, -1.0) for v in outs[: place + 1]], 0
                )
            for slot, arrival in zip(path, ins, strict=True):
                to_device[slot].append((arrival, gap.live_bytes * gap.count))
            self._count_away(gap, path, outs, ins, checked, away)
        for level in levels_of(self._bound.gaps):
            self._copy_back(program, level, leaving, to_host)
        for slot in range(self._slots):
            for entries, rate in (
                (to_device[slot], self._link.to_device_bytes_per_ns),
                (to_host[slot], self._link.to_host_bytes_per_ns),
            ):
                # In microseconds, so that the numbers are near 1.
                scaled = [(v, size / rate / 1e3) for v, size in entries if size]
                if scaled:
                    program.at_most([*scaled, (waits[slot], -1e-3)], self._slot_ns[slot] / 1e3)
        for kernel in checked:
            others = sum(gap.count for gap in self._bound.gaps if gap.spans(kernel))
            needed = min(others, others + len(self._bound.kernels[kernel].pages) - chunks)
            if needed > 0:
                program.at_most([(v, -count) for v, count in away[kernel]], -needed)
        return sum(self._slot_ns) + program.least("of time") * 1e3

    def _path(self, gap: Gap) -> list[int]:
        """Returns the slots from one use to the next, in the order of time."""
        first, last = self._slot[gap.use], self._slot[gap.next_use]
        if gap.use < gap.next_use:
            return list(range(first, last + 1))
        return [*range(first, self._slots), *range(last + 1)]

    def _checked_kernels(self) -> list[int]:
        """Returns, for each slot, the kernel at which most blocks are needed or wait for a use."""
        change = [0] * (len(self._slot) + 1)
        for gap in self._bound.gaps:
            if gap.use < gap.next_use:
                spans = [(gap.use + 1, gap.next_use)]
            else:
                spans = [(gap.use + 1, len(self._slot)), (0, gap.next_use)]
            for first, last in spans:
                change[first] += gap.count
                change[max(first, last)] -= gap.count
        best: dict[int, tuple[int, int]] = {}
        waiting = 0
        for kernel, slot in enumerate(self._slot):
            waiting += change[kernel]
            pressure = waiting + len(self._bound.kernels[kernel].pages)
            best[slot] = max(best.get(slot, (-1, 0)), (pressure, kernel))
        return [kernel for _, kernel in best.values()]

    def _count_away(
        self, gap: Gap, path: list[int], outs: list[int], ins: list[int], checked: list[int],
        away: dict[int, list[tuple[int, float]]],
    ) -> None:  # fmt: skip
        for kernel in checked:
            if not gap.spans(kernel):
                continue
            # Only a gap of a whole round meets a slot twice: before the use, and after it.
            place = path.index(self._slot[kernel])
            if kernel < gap.use and path.count(self._slot[kernel]) > 1:
                place = len(path) - 1
            away[kernel] += [(v, float(gap.count)) for v in outs[: place + 1]]
            away[kernel] += [(v, -float(gap.count)) for v in ins[:place]]

    def _copy_back(
        self, program: LinearProgram, level: Level, leaving: dict[int, list[tuple[int, int]]],
        to_host: list[list[tuple[int, float]]],
    ) -> None:  # fmt: skip
        """Requires that parts away in a gap were copied to the host by the time they left."""
        gaps = [self._bound.gaps[number] for number in level.gaps]
        copies: list[tuple[int, int]] = []  # slot and variable, in the order of time
        ends: list[int] = []  # by gap, how many of `copies` come before its end
        for gap in gaps:
            path = self._path(gap)
            if copies and copies[-1][0] == path[0]:
                path = path[1:]
            for slot in path:
                variable = program.variable()
                copies.append((slot, variable))
                to_host[slot].append((variable, level.bytes * gap.count))
            ends.append(len(copies))
        for number, end in zip(level.gaps, ends, strict=True):
            path = leaving[number]
            for place in range(len(path)):
                earlier = end - (len(path) - 1 - place)
                program.at_most(
                    [(v, 1.0) for _, v in path[: place + 1]]
                    + [(v, -1.0) for _, v in copies[: max(earlier, 0)]],
                    0,
                )
