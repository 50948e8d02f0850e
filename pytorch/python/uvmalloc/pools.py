"""Pools of managed memory, for one part of a program.

Importing this module imports neither torch nor a native library.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from uvmalloc.memory import cuda_index, enabled
from uvmalloc.native import library

if TYPE_CHECKING:
    import torch


def MemPool(
    device: torch.device | int | str | None = None,
    *,
    use_on_oom: bool = False,
    no_split: bool = False,
) -> torch.cuda.MemPool:
    """Returns a pool of managed memory, for torch.cuda.use_mem_pool().

    Tensors that a thread creates inside `with torch.cuda.use_mem_pool(pool)` may together need more
    memory than the device has. The rest of the program keeps torch's own allocators. There, moves
    copy such tensors, as those of torch; residency(), prefetch() and advise() do not know them; and
    the pool must not be used while a graph is captured. In a program that runs under uvmalloc, the
    pool is a private pool of uvmalloc, without these limits.

    Threads and streams are as with every torch.cuda.MemPool: the pool serves the thread that enters
    the context, on all streams of the device. Pools keep freed memory until they are deleted.

    Args:
        device: the device whose tensors the pool serves; None: the current one. Make a pool for
            each device, and use it there: torch serves the other devices of a pool itself.
        use_on_oom: whether the pool helps out if a request outside finds no memory.
        no_split: whether no two tensors share a segment.

    Raises:
        ValueError: the device does not exist.
        RuntimeError: there is no device that uvmalloc can use, or this is a forked child.
        MissingLibraryError: there is no libuvmalloc_preload.so, or it cannot be loaded.
    """
    import torch

    torch.cuda.init()
    index = cuda_index(device, "MemPool")
    # Once the plugin is there, torch's allocator is uvmalloc's, and serves the pool itself.
    allocator = None if enabled() else _managed_allocator().allocator()
    with torch.cuda.device(index):
        return torch.cuda.MemPool(allocator, use_on_oom, no_split)


@functools.cache
def _managed_allocator() -> Any:
    """Returns torch's wrapper of libuvmalloc_preload.so, which it makes once."""
    from torch.cuda.memory import CUDAPluggableAllocator

    opened = library()
    handle = ctypes.c_void_p()
    if opened.uvmalloc_process_allocator(ctypes.byref(handle)) != 0:
        last_error = opened.uvmalloc_last_error
        last_error.restype = ctypes.c_char_p
        raise RuntimeError(f"MemPool: {last_error().decode()}")
    return CUDAPluggableAllocator(opened._name, "uvmalloc_torch_allocate", "uvmalloc_torch_free")
