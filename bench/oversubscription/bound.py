"""The fewest bytes that a recorded step can move on a device with less memory than it needs.

The model repeats the step for ever, with 2 MiB blocks. A kernel's blocks are on the device
together. Each other block is either on the device too, or away until its next use. An absent block
costs its live bytes on the way back. It also costs them on the way out, but only once between two
kernels that write it, because the host's copy stays valid. A page that is freed or allocated again
before its next use is dead and costs nothing. The minimum of this linear program is a lower bound
for every order of evictions. The code is independent of the planner.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from uvmalloc._trace.reader import ALLOCATE, FREE, KERNEL, MARK, Trace

from bench.oversubscription.linear_program import LinearProgram

_TOUCH = 12
_PAGE, _BLOCK = 4096, 2 << 20
_PAGES_PER_BLOCK = _BLOCK // _PAGE
_COPIES = range(252, 255)  # details of copies and fills, which use memory in place
_WRITES = 2


def _pieces(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yields the blocks of pages [first, last), each with a bit for each of its pages."""
    while first < last:
        block, offset = divmod(first, _PAGES_PER_BLOCK)
        count = min(_PAGES_PER_BLOCK - offset, last - first)
        yield block, ((1 << count) - 1) << offset
        first += count


@dataclass
class Kernel:
    pages: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # bits, by block
    written: set[int] = field(default_factory=set)  # blocks
    number: int = 0  # index among the kernels and copies of the step


@dataclass
class End:
    """The beginning or end of an allocation: from here on, its pages have no contents."""

    pages: dict[int, int]


@dataclass(frozen=True)
class Gap:
    """The gap from one use of a block to the next, possibly in the next round. Blocks with equal
    uses share a gap.
    """

    block: int
    use: int  # a kernel
    next_use: int  # a kernel; at most `use` if it is in the next round
    live_bytes: int
    epoch: int  # equal for gaps without a write between them
    count: int = 1  # of blocks

    def spans(self, kernel: int) -> bool:
        if self.use < self.next_use:
            return self.use < kernel < self.next_use
        return kernel > self.use or kernel < self.next_use


def step_of(trace: Trace, mark: str) -> list[Kernel | End]:
    """Returns the kernels of the step and the ends of allocations, in order. An empty mark selects
    the last whole step.
    """
    events = trace.events
    marks = [i for i in range(len(events)) if events["kind"][i] == MARK]
    texts = [trace.text(MARK, int(events["extra"][i])) for i in marks]
    steps = [n for n in range(len(marks) - 1) if not mark or texts[n] == mark]
    if not steps:
        raise SystemExit(f"no whole step begins at the mark '{mark}'")
    first, last = marks[steps[-1]], marks[steps[-1] + 1]
    sizes: dict[int, int] = {}  # of live allocations, by address
    made: dict[int, int] = {}  # of live allocations, by address: the allocating event
    of_the_step_before: list[tuple[int, int, End]] = []  # frees: allocating event, and size
    addresses: list[int] = []
    open_kernels: dict[int, Kernel | None] = {}  # by thread
    result: list[Kernel | End] = []
    kernels = 0
    rows = zip(events[:last].tolist(), trace.threads[:last].tolist(), strict=True)
    names = events.dtype.names
    at = {name: names.index(name) for name in ("address", "size_bytes", "kind", "detail")}
    for index, (event, thread) in enumerate(rows):
        address, size, kind, detail = (
            event[at[name]] for name in ("address", "size_bytes", "kind", "detail")
        )
        if kind in (ALLOCATE, FREE):
            if kind == ALLOCATE and size:
                if address not in sizes:
                    bisect.insort(addresses, address)
                sizes[address], made[address] = size, index
            elif kind == FREE and address in sizes:
                size = sizes.pop(address)
                addresses.remove(address)
            end_of_block = End(_own_pages(address, size))
            if index > first:
                result.append(end_of_block)
                if kind == FREE and made.get(address, index) < first:
                    of_the_step_before.append((made[address], size, end_of_block))
        elif kind == KERNEL:
            open_kernels[thread] = None if detail in _COPIES else Kernel(number=kernels)
            kernel = open_kernels[thread]
            if index > first:
                kernels += 1
                if kernel is not None:
                    result.append(kernel)
        elif kind == _TOUCH and size:
            kernel = open_kernels.get(thread)
            place = bisect.bisect_right(addresses, address) - 1
            if kernel is None or place < 0:
                continue
            end = addresses[place] + sizes[addresses[place]]
            if address >= end:
                continue
            last_page = -(-min(address + size, end) // _PAGE)
            for block, pages in _pieces(address // _PAGE, last_page):
                kernel.pages[block] |= pages
                if detail & _WRITES:
                    kernel.written.add(block)
    left = [
        (event, sizes[address], address)
        for address, event in made.items()
        if address in sizes and event > first
    ]
    free_what_the_step_leaves(of_the_step_before, left)
    return [each for each in result if isinstance(each, End) or each.pages]


def _own_pages(address: int, size: int) -> dict[int, int]:
    return dict(_pieces(-(-address // _PAGE), (address + size) // _PAGE))


def free_what_the_step_leaves(
    frees: list[tuple[int, int, End]], left: list[tuple[int, int, int]]
) -> None:
    """Makes a repeated step free the blocks that its previous round left, instead of those that the
    step before it left. Matches them by size, in the order of their allocation.
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    for _, size, address in sorted(left):
        by_size[size].append(address)
    for _, size, end in sorted(frees, key=lambda free: free[0]):
        if by_size[size]:
            end.pages = _own_pages(by_size[size].pop(0), size)


def live_pages(step: list[Kernel | End]) -> list[dict[int, int]]:
    """Returns, for each kernel and block, bits of the pages that are live before the kernel. Looks
    at two rounds, because each round finds the pages that the one before left.
    """
    held: dict[int, int] = defaultdict(int)
    before: list[dict[int, int]] = []
    for each in step * 2:
        if isinstance(each, End):
            for block, pages in each.pages.items():
                held[block] &= ~pages
        else:
            before.append({block: held[block] for block in each.pages})
            for block, pages in each.pages.items():
                held[block] |= pages
    needed: dict[int, int] = defaultdict(int)
    after: list[dict[int, int]] = []
    for each in reversed(step * 2):
        if isinstance(each, End):
            for block, pages in each.pages.items():
                needed[block] &= ~pages
        else:
            for block, pages in each.pages.items():
                needed[block] |= pages
            after.append({block: needed[block] for block in each.pages})
    after.reverse()
    kernels = len(before) // 2
    return [
        {block: held_pages & after[i][block] for block, held_pages in before[kernels + i].items()}
        for i in range(kernels)
    ]


def gaps_of(kernels: list[Kernel], live: list[dict[int, int]]) -> list[Gap]:
    uses: dict[int, list[int]] = defaultdict(list)
    for number, kernel in enumerate(kernels):
        for block in kernel.pages:
            uses[block].append(number)
    gaps = []
    epochs = 0
    alike: dict[tuple[tuple[int, bool, int], ...], list[int]] = defaultdict(list)
    for block, at in uses.items():
        key = tuple((u, block in kernels[u].written, live[u].get(block, 0).bit_count()) for u in at)
        alike[key].append(block)
    for blocks in alike.values():
        block, at = blocks[0], uses[blocks[0]]
        writes = [block in kernels[use].written for use in at]
        # The gaps before the first write continue the last gaps of the previous round.
        epoch = first_epoch = epochs
        own = []
        for place, use in enumerate(at):
            if writes[place]:
                epoch += 1
            next_use = at[(place + 1) % len(at)]
            own.append((use, next_use, live[next_use].get(block, 0).bit_count() * _PAGE, epoch))
        if any(writes):
            own = [(u, n, b, epoch if e == first_epoch else e) for u, n, b, e in own]
            # Rotate, so that the gaps between two writes are adjacent.
            first_write = writes.index(True)
            own = own[first_write:] + own[:first_write]
        else:
            own = [(u, n, b, -1) for u, n, b, _ in own]  # the host's copy is always valid
        gaps += [Gap(block, *each, count=len(blocks)) for each in own]
        epochs = epoch + 1
    return gaps


@dataclass(frozen=True)
class Level:
    """Bytes copied to the host if a block is away in any of these gaps."""

    bytes: int
    gaps: list[int]  # by index


def levels_of(gaps: Sequence[Gap]) -> list[Level]:
    """Returns the levels. Between two writes a block is copied to the host once, with the bytes of
    the largest gap in which it is away.
    """
    epochs: dict[int, list[int]] = defaultdict(list)
    for i, gap in enumerate(gaps):
        if gap.epoch >= 0:
            epochs[gap.epoch].append(i)
    levels = []
    for own in epochs.values():
        lower = 0
        for size in sorted({gaps[i].live_bytes for i in own} - {0}):
            levels.append(Level(size - lower, [i for i in own if gaps[i].live_bytes >= size]))
            lower = size
    return levels


class Bound:
    def __init__(self, step: list[Kernel | End]) -> None:
        self.kernels = [each for each in step if isinstance(each, Kernel)]
        self.gaps = gaps_of(self.kernels, live_pages(step))
        self.blocks = sum({gap.block: gap.count for gap in self.gaps}.values())
        self.largest_kernel_blocks = max(len(kernel.pages) for kernel in self.kernels)

    def fewest_bytes(self, chunks: int, to_device: bool, to_host: bool) -> float:
        program = LinearProgram()
        # In blocks, so that the numbers are near 1.
        away_at = [
            program.variable(gap.live_bytes * gap.count / _BLOCK if to_device else 0)
            for gap in self.gaps
        ]
        for number, kernel in enumerate(self.kernels):
            others = [
                (i, -gap.count)
                for i, gap in zip(away_at, self.gaps, strict=True)
                if gap.spans(number)
            ]
            count = -sum(value for _, value in others)
            away = min(count, count + len(kernel.pages) - chunks)
            if away > 0:
                program.at_most(others, -away)
        for level in levels_of(self.gaps):
            count = self.gaps[level.gaps[0]].count
            copied = program.variable(level.bytes * count / _BLOCK if to_host else 0)
            for gap in level.gaps:
                program.at_most([(away_at[gap], 1.0), (copied, -1.0)], 0)
        return program.least(f"for {chunks} blocks", largest=1) * _BLOCK
