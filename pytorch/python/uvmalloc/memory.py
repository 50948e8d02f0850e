"""Functions with which a running program inspects and directs its memory.

In a program without uvmalloc, they do nothing and return empty results. Any thread may call them.
Importing this module imports neither torch nor a native library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from uvmalloc.sizes import EXAMPLES, parse_size
from uvmalloc.torch_names import get_enabled_uvm, library_function
from uvmalloc.types import RegionPolicy, Stats

if TYPE_CHECKING:
    import torch

_REGION_POLICIES = get_args(RegionPolicy)
LEAST_BUDGET_BYTES = 2 << 20  # one page
_BUDGETS = f"accepted: a size from 2 MiB on, {EXAMPLES}; a float above 0 and up to 1; None"


def enabled() -> bool:
    """Returns whether torch's tensors use uvmalloc's memory: it is on, and a device exists."""
    return get_enabled_uvm()


def stats() -> Stats:
    """Returns the report so far (docs/reference/report.md), or {} without uvmalloc."""
    operators = plugin_operators()
    if operators is None:
        return {}
    found: Stats = json.loads(operators.report())
    return found


def residency(tensor: torch.Tensor, *, exact: bool = False) -> dict[str, int]:
    """Returns where the tensor's 2 MiB pages are: bytes of whole pages, by place.

    Places are "host", "device:0" and so on, and "nowhere" for pages that were never touched. A
    page's place is where the last hint or move put it; later moves by the driver, after a fault,
    are not seen. The pages reach from the first element to the last, so the gaps of a view count
    too. Returns {} if the tensor's memory is not uvmalloc's.

    Args:
        tensor: any tensor of the CPU or of a CUDA device.
        exact: gets the places from the driver (cuMemGetLocationInfo) instead, for each 64 KiB from
            the first element to the last. Moves that streams have not executed yet are not seen:
            synchronize first.

    Raises RuntimeError if `exact` is given and the driver cannot report places: it can from CUDA
    13.4 on.
    """
    operators = plugin_operators()
    if operators is None:
        return {}
    found: dict[str, int] = operators.residency(tensor, exact)
    return found


def prefetch(tensor: torch.Tensor, device: torch.device | str | int) -> bool:
    """Requests a move of the pages to `device` ("cpu", "cuda:1", ...). The tensor keeps its device.

    Returns at once. The current stream of `device` waits for pages that move to `device`. Pages
    move to the host after the work already queued on the current stream of the tensor's device.
    Skips pages that are already there, or for which the device has no room.

    Returns False if the tensor's memory is not uvmalloc's. Raises RuntimeError for a device that
    does not exist.
    """
    operators = plugin_operators()
    if operators is None:
        return False
    import torch

    return bool(operators.prefetch(tensor, torch.device(device)))


def advise(
    tensor: torch.Tensor,
    *,
    preferred: torch.device | str | int | None = None,
    accessed_by: torch.device | str | int | None = None,
    read_mostly: bool | None = None,
) -> bool:
    """Advises the driver where pages are `preferred`, and which device keeps them mapped.

    Pages stay in place until a processor touches them. Then they move to the preferred place, or
    the device `accessed_by` uses them remotely. The advice holds until the tensor moves, is advised
    again or is freed. It applies to all tensors that share the memory. None leaves that part of the
    advice unchanged. Advise only a few large tensors: the driver tracks each range separately.

    With `read_mostly`, every device that reads a page keeps a copy of the page, and so does the
    host. Use it for embeddings or data that several devices read and none writes. A write drops all
    copies of a page except the writer's, so it costs more than without the advice. Unlike other
    advice, this advice survives moves, until False removes it or the tensor is freed.

    Returns False if the tensor's memory is not uvmalloc's, or if no 2 MiB page belongs to the
    tensor only. Advice on a shared page would also apply to the tensor's neighbours.

    Raises:
        ValueError: no advice is given.
        RuntimeError: a device does not exist.
        TypeError: `read_mostly` is not a bool.
    """
    if preferred is None and accessed_by is None and read_mostly is None:
        raise ValueError("advise: neither preferred nor accessed_by nor read_mostly is given")
    if not isinstance(read_mostly, bool | None):
        raise TypeError(f"advise: read_mostly must be bool, not {type(read_mostly).__name__}")
    operators = plugin_operators()
    if operators is None:
        return False
    import torch

    places = (None if place is None else torch.device(place) for place in (preferred, accessed_by))
    return bool(operators.advise(tensor, *places, read_mostly))


def set_budget(
    most: int | str | float | None, device: torch.device | int | str | None = None
) -> bool:
    """Changes how much memory uvmalloc may use in this process, or on a device, from now on.

    Args:
        most: bytes; a size such as "8GiB"; a float, as a fraction; or None, which restores the
            budget at the start of the program. A fraction is one of the device's memory or, without
            `device`, of the budget at the start.
        device: None: the budget of the process, for all memory kinds and devices together
            (UVMALLOC_BUDGET). A device: its device memory (UVMALLOC_DEVICE_BUDGET), freed memory in
            caches included. torch.cuda.set_per_process_memory_fraction() limits a device too; the
            smaller limit applies.

    A budget may be lower than what is in use. Then nothing is freed and all tensors remain valid,
    but requests raise torch.OutOfMemoryError unless cached memory can serve them, until enough
    tensors are deleted. torch.cuda.empty_cache() gives cached memory back. Takes effect for
    requests that begin after the call, on all streams and threads. Any thread may call. Initialises
    CUDA.

    Returns False, and changes nothing, if the program runs without uvmalloc.

    Raises:
        ValueError: the size is below 2 MiB or malformed, the fraction is not in (0, 1], or the
            device does not exist.
        TypeError: the budget has another type.
    """
    if isinstance(most, bool) or not isinstance(most, int | str | float | None):
        raise TypeError(f"set_budget: the budget is a {type(most).__name__}; {_BUDGETS}")
    if isinstance(most, float) and not 0 < most <= 1:
        raise ValueError(f"set_budget: the budget is {most!r}; {_BUDGETS}")
    size_bytes = _budget_bytes("set_budget", most) if isinstance(most, int | str) else None
    operators = plugin_operators()
    if operators is None or not enabled():
        return False
    sys.modules["torch"].cuda.init()  # sets the first limits
    index = -1 if device is None else cuda_index(device, "set_budget")
    if isinstance(most, float):
        size_bytes = int(most * operators.whole_budget(index))
    if size_bytes is not None and size_bytes < LEAST_BUDGET_BYTES:
        raise ValueError(f"set_budget: the budget is {most!r}; {_BUDGETS}")
    operators.set_budget(size_bytes, index)
    return True


@contextlib.contextmanager
def region(
    *,
    managed: bool | None = None,
    policy: RegionPolicy | None = None,
    budget: int | str | None = None,
) -> Iterator[None]:
    """Changes settings for this thread until the region ends. Regions nest.

    Args:
        managed: True: CPU tensors that this thread creates are managed. False: they come from
            malloc, as without uvmalloc. Use False for data that forked workers read and that never
            moves to a device, so that a fork copies nothing.
        policy: "auto", "driver" or "off", as in UVMALLOC_POLICY, for allocations, moves, prefetches
            and advice inside the region.
        budget: bytes, or a size such as "512MiB": the most that managed tensors created inside may
            hold together, by their requested sizes. Above it, torch.OutOfMemoryError names the
            budget. Freed tensors, and the memory of graphs and MemPools, do not count. In a nested
            region, both budgets apply.

    Policy and budget also apply in backward passes that this thread starts. Existing tensors stay
    unchanged.

    Raises:
        ValueError: the policy is unknown, or the budget is not a size of at least one byte.
        TypeError: the budget is neither a number nor a string.
    """
    if policy is not None and policy not in _REGION_POLICIES:
        accepted = ", ".join(_REGION_POLICIES)
        raise ValueError(f"region: the policy is {policy!r}; accepted: {accepted}")
    budget_bytes = 0 if budget is None else _budget_bytes("region", budget)
    with contextlib.ExitStack() as effects:
        switch = library_function("uvmalloc_set_host_managed", ctypes.c_int, ctypes.c_int)
        if managed is not None and switch is not None:
            effects.callback(switch, switch(int(managed)))
        if (policy is not None or budget is not None) and plugin_operators() is not None:
            classes = sys.modules["torch"].classes.uvmalloc
            effects.callback(classes.Region(policy or "", budget_bytes, 0, False).close)
        yield


def _budget_bytes(function: str, budget: int | str) -> int:
    accepted = f"accepted: a size of at least one byte, {EXAMPLES}"
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise TypeError(f"{function}: the budget is a {type(budget).__name__}; {accepted}")
    try:
        size_bytes = parse_size(str(budget))
    except ValueError:
        size_bytes = 0
    if size_bytes < 1:
        raise ValueError(f"{function}: the budget is {budget!r}; {accepted}")
    return size_bytes


def cuda_index(device: torch.device | int | str | None, what: str) -> int:
    """Returns the number of a CUDA device, of the current one for None.

    Raises ValueError, which begins with `what`, for other devices.
    """
    import torch

    accepted = "accepted: cuda, or cuda:N"
    try:
        if isinstance(device, int) and not isinstance(device, bool):
            chosen = torch.device("cuda", device)
        else:
            chosen = torch.device("cuda" if device is None else device)
    except (RuntimeError, TypeError):
        raise ValueError(f"{what}: the device is {device!r}; {accepted}") from None
    if chosen.type != "cuda":
        raise ValueError(f"{what}: the device is {chosen}; {accepted}")
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
    if not 0 <= index < torch.cuda.device_count():
        raise ValueError(f"{what}: {chosen} does not exist; devices: {torch.cuda.device_count()}")
    return index


def plugin_operators() -> Any:
    """Returns the plugin's operators, or None before `import torch` or without the plugin."""
    torch = sys.modules.get("torch")
    namespace = getattr(torch, "ops", None)
    if namespace is None:
        return None
    operators = namespace.uvmalloc
    return operators if hasattr(operators, "residency") else None
