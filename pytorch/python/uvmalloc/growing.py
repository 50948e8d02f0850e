"""Tensors that grow in place, such as caches (docs/reference/groups.md, "Growth").

Importing this module imports neither torch nor a native library.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uvmalloc.forks import ForkedLock
from uvmalloc.memory import cuda_index, enabled

if TYPE_CHECKING:
    import torch


_MOST_BYTES = 2 << 40


class Growing:
    """A tensor that grows along one dimension, and never moves. growing() makes it.

    Its addresses are reserved for the most that it may hold; memory is taken as it grows, in pages
    of 2 MiB, and given back when it shrinks, in blocks of up to 32 MiB. Growing copies nothing.
    Tensors that it returned remain valid and keep the memory alive; of bytes that a shrink has
    given back they read undefined contents. Giving memory back waits for the device, also when
    the last of these tensors is deleted. A graph that uses the memory does not keep it alive.
    The dimension that grows is the outermost in memory, so the tensor is contiguous only if that is
    its first one. The contents of new elements are undefined.

    Threads may call it at the same time: each resize() or append() is done as a whole. Their work
    on the device is ordered by streams, as for a tensor that is written in place.
    """

    def __init__(
        self,
        shape: Sequence[int],
        most: int,
        dim: int,
        dtype: torch.dtype,
        index: int,
    ) -> None:
        import torch

        self._dim = dim
        self._most = most
        self._dtype = dtype
        self._others = tuple(size for at, size in enumerate(shape) if at != dim)
        self._row_bytes = math.prod(self._others) * dtype.itemsize
        self._lock = ForkedLock()
        self._memory: Any = None
        self._device = torch.device("cuda", index)
        self._whole: torch.Tensor | None = None
        if not enabled() or self._row_bytes == 0:
            self._whole = torch.empty((most, *self._others), dtype=dtype, device=self._device)
        else:
            classes = sys.modules["torch"].classes.uvmalloc
            self._memory = classes.ReservedMemory(most * self._row_bytes, index)
        self.resize(shape[dim])

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("growing: a Growing cannot be pickled; pickle its tensor")

    def __deepcopy__(self, memo: dict[int, Any]) -> Growing:
        index, shape = self._device.index, self._tensor.shape
        copied = Growing(tuple(shape), self._most, self._dim, self._dtype, index)
        copied.tensor.copy_(self._tensor)
        memo[id(self)] = copied
        return copied

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor as it is now. Later growth does not change it."""
        with self._lock:
            return self._tensor.narrow(self._dim, 0, self._size)  # the caller may resize its own

    @property
    def size(self) -> int:
        """Of the dimension that grows."""
        return self._size

    @property
    def most(self) -> int:
        return self._most

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that it has taken: whole pages of 2 MiB."""
        if self._memory is None:
            return self._most * self._row_bytes
        held: int = self._memory.held_bytes()
        return held

    def resize(self, size: int) -> torch.Tensor:
        """Grows or shrinks to `size` elements along its dimension, and returns the tensor.

        Raises ValueError for a size above `most`, and torch.OutOfMemoryError if memory is short;
        then it has its last size. Waits for the device if blocks are given back.
        """
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"growing: the size is a {type(size).__name__}; accepted: an int")
        if not 0 <= size <= self._most:
            raise ValueError(f"growing: the size is {size}; accepted: 0 to {self._most}")
        import torch

        # A tensor made in inference mode could not be written outside that mode.
        with self._lock, torch.inference_mode(False):
            if self._whole is None:
                size_bytes = size * self._row_bytes
                self._memory.resize(size_bytes)
                rows = self._memory.first(size_bytes).view(self._dtype).view(size, *self._others)
            else:
                rows = self._whole[:size]
            self._size = size
            self._tensor: torch.Tensor = rows.movedim(0, self._dim)
            return self.tensor

    def append(self, values: torch.Tensor) -> torch.Tensor:
        """Grows by `values`, which it copies behind its last elements, and returns the tensor.

        Values of another type or device are converted, as by Tensor.copy_(). Raises as resize(),
        TypeError if `values` is not a tensor, and ValueError if its other dimensions differ; then
        it has its last size.
        """
        import torch

        if not isinstance(values, torch.Tensor):
            raise TypeError(
                f"growing: the values are a {type(values).__name__}; accepted: a tensor"
            )
        count = values.shape[self._dim] if values.ndim == self._tensor.ndim else -1
        wanted = (*self._others[: self._dim], count, *self._others[self._dim :])
        if tuple(values.shape) != wanted:
            raise ValueError(
                f"growing: the values have the shape {tuple(values.shape)}; accepted: "
                f"{(*self._others[: self._dim], 'any', *self._others[self._dim :])}"
            )
        with self._lock:
            first = self.size
            grown = self.resize(first + count)
            grown.narrow(self._dim, first, count).copy_(values)
            return grown


def growing(
    shape: Sequence[int],
    most: int,
    *,
    dim: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | int | str | None = None,
) -> Growing:
    """Returns a tensor of `shape` that may grow to `most` elements along `dim`, in place.

    It takes memory for `shape` now. Without uvmalloc it takes memory for the most at once. Call it
    after `import torch`.

    Args:
        shape: the sizes at first.
        most: the largest size of dimension `dim`.
        dim: the dimension that grows; negative ones count from the last.
        dtype: torch's default type if None.
        device: a CUDA device; the current one if None.

    Raises ValueError or TypeError for other values, and torch.OutOfMemoryError if there are not so
    many addresses, or no memory for `shape`.
    """
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if not sizes or any(isinstance(each, bool) or not isinstance(each, int) for each in sizes):
        accepted = "a sequence of at least one int"
        raise TypeError(f"growing: the shape is {shape!r}; accepted: {accepted}")
    if any(each < 0 for each in sizes):
        raise ValueError(f"growing: the shape is {sizes}; accepted: sizes of at least 0")
    if isinstance(dim, bool) or not isinstance(dim, int) or not -len(sizes) <= dim < len(sizes):
        raise ValueError(f"growing: the dimension is {dim!r}; accepted: one of {len(sizes)}")
    dim %= len(sizes)
    if isinstance(most, bool) or not isinstance(most, int) or most < max(sizes[dim], 1):
        raise ValueError(
            f"growing: most is {most!r}; accepted: an int from {max(sizes[dim], 1)} on"
        )
    import torch

    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"growing: dtype is a {type(dtype).__name__}; accepted: a torch.dtype")
    if dtype in (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4):
        raise ValueError(f"growing: dtype is {dtype}; accepted: one that is not quantized")
    kind = torch.get_default_dtype() if dtype is None else dtype
    row_bytes = math.prod(size for at, size in enumerate(sizes) if at != dim) * kind.itemsize
    if most * row_bytes > _MOST_BYTES:
        raise ValueError(f"growing: {most} elements of {row_bytes} bytes; accepted: 2 TiB at most")
    return Growing(sizes, most, dim, kind, cuda_index(device, "growing"))
