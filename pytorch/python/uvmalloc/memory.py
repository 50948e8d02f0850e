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

from uvmalloc.accepted import REGION_POLICIES
from uvmalloc.sizes import EXAMPLES, parse_size
from uvmalloc.torch_names import get_enabled_uvm, library_function

if TYPE_CHECKING:
    import torch


def enabled() -> bool:
    """Whether torch's tensors are in uvmalloc's memory: it was switched on, there is a device."""
    return get_enabled_uvm()


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

    Returns at once. The current stream of the device waits for pages that come to it. Pages leave
    for the host when the current stream of the tensor's device has done its work so far. Pages that
    are there, or for which the device has no room, are left out. Returns False if the tensor's
    memory is not uvmalloc's.
    """
    operators = _operators()
    if operators is None:
        return False
    import torch

    return operators.prefetch(tensor, torch.device(device))


def advise(
    tensor: torch.Tensor,
    *,
    preferred: torch.device | str | int | None = None,
    accessed_by: torch.device | str | int | None = None,
    read_mostly: bool | None = None,
) -> bool:
    """Tells the driver where the tensor's pages are `preferred` and who keeps them mapped.

    Pages stay where they are until a processor touches them. Then they go to the preferred place,
    or are used from afar if `accessed_by` has them mapped. The advice holds until the tensor moves,
    is advised again or is freed. All tensors that share the memory share the advice. None leaves a
    part as it is. Advise the few large tensors that a program knows better than uvmalloc does: the
    driver keeps each advised range apart.

    With `read_mostly` every device that reads pages keeps a copy of them, and so does the host. Use
    it for embeddings or data that several devices read and nobody writes. A write drops all copies
    but the writer's, page by page, so it costs more than without. This advice holds over moves,
    until False takes it back or the tensor is freed.

    Returns False if the tensor's memory is not uvmalloc's, or if no 2 MiB page is the tensor's
    alone. Advice on a shared page would apply to the tensor's neighbours too.

    Raises ValueError without anything to advise, RuntimeError for a device that does not exist,
    TypeError for a `read_mostly` that is no bool.
    """
    if preferred is None and accessed_by is None and read_mostly is None:
        raise ValueError("advise: neither preferred nor accessed_by nor read_mostly is given")
    if not isinstance(read_mostly, bool | None):
        raise TypeError(f"advise: read_mostly must be bool, not {type(read_mostly).__name__}")
    operators = _operators()
    if operators is None:
        return False
    import torch

    places = (None if place is None else torch.device(place) for place in (preferred, accessed_by))
    return operators.advise(tensor, *places, read_mostly)


@contextlib.contextmanager
def region(
    *,
    managed: bool | None = None,
    policy: str | None = None,
    budget: int | str | None = None,
) -> Iterator[None]:
    """Changes settings for this thread until the region ends. Regions nest.

    Args:
        managed: with True, CPU tensors that this thread makes are managed. With False they come
            from malloc, as without uvmalloc. Use False for data that forked workers read and that
            never moves to a device: a fork then copies nothing.
        policy: "auto", "driver" or "off", as in UVMALLOC_POLICY. It holds for allocations, moves,
            prefetches and advice inside.
        budget: bytes, or a size such as "512MiB". Managed tensors made inside may hold so much
            together, counted in the sizes that they ask for. Beyond it torch.OutOfMemoryError names
            the budget. Freed tensors do not count, nor does the memory of graphs and MemPools. In a
            nested region both budgets hold.

    Policy and budget hold in the backward passes that this thread starts, too. Tensors that exist
    stay what they are.

    Raises:
        ValueError: no such policy, or no such size.
        TypeError: a budget that is neither a number nor a text.
    """
    if policy is not None and policy not in REGION_POLICIES:
        accepted = ", ".join(REGION_POLICIES)
        raise ValueError(f"region: the policy is {policy!r}; accepted: {accepted}")
    budget_bytes = 0 if budget is None else _budget_bytes(budget)
    with contextlib.ExitStack() as effects:
        switch = library_function("uvmalloc_set_host_managed", ctypes.c_int, ctypes.c_int)
        if managed is not None and switch is not None:
            effects.callback(switch, switch(int(managed)))
        if (policy is not None or budget is not None) and _operators() is not None:
            classes = sys.modules["torch"].classes.uvmalloc
            effects.callback(classes.Region(policy or "", budget_bytes).close)
        yield


def _budget_bytes(budget: int | str) -> int:
    accepted = f"accepted: a size of at least one byte, {EXAMPLES}"
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise TypeError(f"region: the budget is a {type(budget).__name__}; {accepted}")
    try:
        size_bytes = parse_size(str(budget))
    except ValueError:
        size_bytes = 0
    if size_bytes < 1:
        raise ValueError(f"region: the budget is {budget!r}; {accepted}")
    return size_bytes


def _operators() -> Any:
    """The plugin's operators; None while torch is not imported, or without the plugin."""
    torch = sys.modules.get("torch")
    namespace = getattr(torch, "ops", None)
    if namespace is None:
        return None
    operators = namespace.uvmalloc
    return operators if hasattr(operators, "residency") else None
