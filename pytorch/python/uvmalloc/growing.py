"""Tensors that grow in place, such as a cache of keys and values (docs/groups.md, "Growth").

Importing this module imports neither torch nor a native library.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uvmalloc.memory import plugin_operators

if TYPE_CHECKING:
    import torch


class Growing:
    """A tensor that grows along one dimension, and never moves. growing() makes it.

    Its addresses are reserved for the most that it may hold; memory is taken as it grows, in pages
    of 2 MiB, and given back when it shrinks, in blocks of up to 32 MiB. Growing copies nothing. All
    tensors that it returned remain valid: those of bytes that a shrink has given back read
    undefined contents. The dimension that grows is the outermost in memory, so the tensor is
    contiguous only if that is its first one. The contents of new elements are undefined.

    Use it from one thread at a time, as a tensor that is written in place.
    """

    def __init__(
        self,
        shape: Sequence[int],
        most: int,
        dim: int,
        dtype: torch.dtype | None,
        device: torch.device | int | str | None,
    ) -> None:
        import torch

        self._dim = dim
        self._most = most
        self._size = shape[dim]
        dtype = dtype or torch.get_default_dtype()
        chosen = torch.device("cuda" if device is None else device)
        if chosen.type != "cuda":
            raise ValueError(f"growing: the device is {chosen}; accepted: cuda, or cuda:N")
        index = torch.cuda.current_device() if chosen.index is None else chosen.index
        others = [size for at, size in enumerate(shape) if at != dim]
        self._row_bytes = math.prod(others) * dtype.itemsize
        self._memory: Any = None
        if plugin_operators() is None or self._row_bytes == 0:
            whole = torch.empty((most, *others), dtype=dtype, device=torch.device("cuda", index))
        else:
            classes = sys.modules["torch"].classes.uvmalloc
            self._memory = classes.GrowingMemory(most * self._row_bytes, index)
            self._memory.resize(self._size * self._row_bytes)
            flat = self._memory.whole()[: most * self._row_bytes].view(dtype)
            whole = flat.view(most, *others)
        self._whole = whole.movedim(0, dim)

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor as it is now. Later growth does not change it."""
        return self._whole.narrow(self._dim, 0, self._size)

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
        if self._memory is not None:
            self._memory.resize(size * self._row_bytes)
        self._size = size
        return self.tensor

    def append(self, values: torch.Tensor) -> torch.Tensor:
        """Grows by `values`, which it copies behind its last elements, and returns the tensor.

        Raises as resize(), and RuntimeError if the other dimensions of `values` differ.
        """
        first, count = self._size, values.shape[self._dim]
        grown = self.resize(first + count)
        try:
            grown.narrow(self._dim, first, count).copy_(values)
        except RuntimeError:
            self._size = first
            raise
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
    sizes = tuple(shape)
    if not sizes or any(isinstance(each, bool) or not isinstance(each, int) for each in sizes):
        raise TypeError(f"growing: the shape is {shape!r}; accepted: at least one int")
    if any(each < 0 for each in sizes):
        raise ValueError(f"growing: the shape is {sizes}; accepted: sizes of at least 0")
    if isinstance(dim, bool) or not isinstance(dim, int) or not -len(sizes) <= dim < len(sizes):
        raise ValueError(f"growing: the dimension is {dim!r}; accepted: one of {len(sizes)}")
    dim %= len(sizes)
    if isinstance(most, bool) or not isinstance(most, int) or most < max(sizes[dim], 1):
        raise ValueError(
            f"growing: most is {most!r}; accepted: an int from {max(sizes[dim], 1)} on"
        )
    return Growing(sizes, most, dim, dtype, device)
