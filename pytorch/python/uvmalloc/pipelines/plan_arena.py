"""The memory of a plan's storages, as torch tensors.

Runs take turns, across threads and across the streams of a device: a run starts on the device only
after the previous run has ended there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from uvmalloc.forks import ForkedLock
from uvmalloc.memory import enabled
from uvmalloc.pipelines.caller_state import is_per_thread

if TYPE_CHECKING:
    import torch

    from uvmalloc.pipelines.calls import Plan


class PlanArena:
    """Memory on a device, from the first use on. Its tensors are valid during one turn.

    If sizes vary, only the addresses of the arena are reserved, and the parts that runs have used
    so far take memory. Without uvmalloc, or for fixed sizes, it is one allocation.
    """

    def __init__(self, plan: Plan, device: torch.device, sizes_vary: bool) -> None:
        self._plan = plan
        self._device = device
        self._sizes_vary = sizes_vary
        self._reserved: Any = None  # what backs `_memory`, if it is reserved
        self._memory: torch.Tensor | None = None
        self._one_run = ForkedLock()
        self._stream: torch.cuda.Stream | None = None  # stream of the last run
        self._ended: torch.cuda.Event | None = None  # recorded at the end of the last run
        _arenas.add(self)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The turn of one run. Replays of a captured run take no turns."""
        import torch

        with self._one_run:
            if self._device.type != "cuda" or torch.cuda.is_current_stream_capturing():
                yield
                return
            stream = torch.cuda.current_stream(self._device)
            if self._ended is None:
                self._ended = torch.cuda.Event()
            elif stream != self._stream or is_per_thread(stream):
                stream.wait_event(self._ended)
                if self._memory is not None and self._reserved is None:
                    self._memory.record_stream(stream)
            self._stream = stream
            try:
                yield
            finally:
                self._ended.record(stream)

    def tensor(self, storage: int, like: torch.Tensor) -> torch.Tensor | None:
        """Returns a tensor like `like` at the storage's place, or None if it does not fit there."""
        import torch

        if type(like) is not torch.Tensor or like.layout != torch.strided:
            return None
        if like.device != self._device or like.is_conj() or like.is_neg():
            return None
        dimensions = list(zip(like.shape, like.stride(), strict=True))
        if any(stride == 0 and size > 1 for size, stride in dimensions):
            return None  # elements share memory, so nothing can be copied to it
        # The kernel chooses the strides, which may differ from those in the program.
        elements = (
            1 + sum((size - 1) * stride for size, stride in dimensions) if like.numel() else 0
        )
        most_bytes = self._plan.most_bytes[storage]
        if elements * like.element_size() > most_bytes:
            return None
        begin = self._plan.offsets[storage]
        # A tensor made in inference mode could not be written outside that mode.
        with torch.inference_mode(False), torch.no_grad():
            if self._memory is None:
                self._memory = self._allocate()
            if self._reserved is not None:
                self._reserved.back(begin, elements * like.element_size())
            part = self._memory[begin : begin + most_bytes].view(like.dtype)
            return part.as_strided(like.shape, like.stride(), begin // like.element_size())

    @property
    def held_bytes(self) -> int:
        if self._memory is None:
            return 0
        if self._reserved is None:
            return self._plan.arena_bytes
        held: int = self._reserved.held_bytes()
        return held

    def release(self) -> None:
        """Gives the memory back. The caller has the turn, and keeps none of the tensors."""
        import torch

        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("release: a stream of this thread captures; accepted: no capture")
        self._memory = self._reserved = None

    def _allocate(self) -> torch.Tensor:
        import torch

        size_bytes = self._plan.arena_bytes
        if not self._sizes_vary or self._device.type != "cuda" or not enabled():
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
        classes = sys.modules["torch"].classes.uvmalloc
        self._reserved = classes.ReservedMemory(size_bytes, self._device.index)
        whole: torch.Tensor = self._reserved.first(size_bytes)
        return whole


_arenas: weakref.WeakSet[PlanArena] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Torch ends a forked child that destroys an event, so these events get a reference that is
    never dropped."""
    for arena in list(_arenas):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(arena._ended))


os.register_at_fork(after_in_child=_after_fork_in_child)
