"""What a program may ask of uvmalloc and tell it, while it runs.

Everything here is harmless in a program that does not run under uvmalloc: nothing happens, and what
is asked for is empty. Importing this imports neither torch nor a native library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from uvmalloc.native import preloaded

if TYPE_CHECKING:
    import torch


def enabled() -> bool:
    """Whether torch's tensors are in uvmalloc's memory in this process."""
    return _operators() is not None


def stats() -> dict[str, Any]:
    """The report on this process so far, as docs/report.md describes it; empty without uvmalloc."""
    operators = _operators()
    return json.loads(operators.report()) if operators is not None else {}


def residency(tensor: torch.Tensor) -> dict[str, int]:
    """Where the tensor's 2 MiB pages are: bytes of whole pages by place.

    Places are "host", "device:0" and so on, and "nowhere" for pages that nobody has touched yet.
    They are where hints and moves have put them; what the driver has moved since because somebody
    touched it is not seen. From the first to the last element, so a view with gaps has its gaps
    counted. Empty for a tensor whose memory is not uvmalloc's.
    """
    operators = _operators()
    return operators.residency(tensor) if operators is not None else {}


def prefetch(tensor: torch.Tensor, device: torch.device | str | int) -> bool:
    """Asks for the tensor's pages to be at `device` ("cpu", "cuda:1", ...); it stays what it is.

    Returns at once. To a device, its current stream waits for the pages; to the host, they leave
    when the current stream of the tensor's device has done what it has been given. Pages already
    there, or for which the device has no room, are left out. False: the tensor's memory is not
    uvmalloc's.
    """
    operators = _operators()
    if operators is None:
        return False
    import torch

    return operators.prefetch(tensor, torch.device(device))


@contextlib.contextmanager
def region(*, managed: bool) -> Iterator[None]:
    """Inside, CPU tensors that this thread makes are managed, or with `managed=False` come from
    malloc as without uvmalloc: for data that forked workers read, which then costs no copy at a
    fork, and that is never moved to a device. Tensors that exist stay what they are. Regions nest.
    """
    switch = preloaded("uvmalloc_set_host_managed", ctypes.c_int, ctypes.c_int)
    if switch is None:
        yield
        return
    before = switch(int(managed))
    try:
        yield
    finally:
        switch(before)


def _operators() -> Any:
    """The plugin's operators; None while torch is not imported, or without the plugin."""
    torch = sys.modules.get("torch")
    namespace = getattr(torch, "ops", None)
    if namespace is None:
        return None
    operators = namespace.uvmalloc
    return operators if hasattr(operators, "residency") else None
