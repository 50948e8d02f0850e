"""Groups: named sets of tensors that sleep, wake and are described as a whole (docs/groups.md).

In a program without uvmalloc, groups do nothing. Any thread may call them. Importing this module
imports neither torch nor a native library.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uvmalloc.memory import plugin_operators
from uvmalloc.sizes import EXAMPLES, parse_size

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    Member: TypeAlias = torch.Tensor | torch.nn.Module | torch.cuda.MemPool

_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,64}")
_STATES = ("awake", "asleep", "discarded")
_COPIES = ("auto", "kept", "none")
_LEAST_LIMIT = 2 << 20


@dataclass(frozen=True)
class GroupFigures:
    """What a group has, and what it did. Sizes are in bytes.

    `bytes`: of its tensors' blocks. `page_bytes`: of the 2 MiB pages that move with the group; the
    others are shared with other memory. `device_bytes` and `host_bytes`: of these, where the last
    hint or move put them. `kept_bytes`, `left_bytes`: pages that left in all sleeps without a copy,
    because the host had their bytes, and by a copy.
    """

    state: str = "awake"
    blocks: int = 0
    bytes: int = 0
    page_bytes: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    sleeps: int = 0
    wakes: int = 0
    kept_bytes: int = 0
    left_bytes: int = 0


class Group:
    """A named set of tensors. group() makes it; two groups of one name are the same.

    As a context manager, a group takes all tensors that the thread creates inside, and those that
    backward passes started there create. Groups nest: the innermost one takes the tensors. A tensor
    is in one group at a time, and leaves it when its memory is freed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._open = threading.local()
        self._priority, self._pinned, self._limit, self._copies = 0, False, 0, "auto"
        native = plugin_operators()
        self._number = native.group_open(name) if native is not None else 0

    def __repr__(self) -> str:
        figures = self.figures()
        return f"<uvmalloc.Group {self.name!r}: {figures.state}, {figures.bytes} bytes>"

    def add(self, *members: Member | Iterable[Member]) -> Group:
        """Takes tensors, the parameters and buffers of modules, and what a MemPool has now.

        Leaves out tensors that are not in uvmalloc's memory. Raises TypeError for other objects.
        """
        native = plugin_operators()
        if native is not None and self._number:
            for tensor in _tensors_of(members):
                native.group_add(tensor, self._number)
            for address in _addresses_of(members):
                native.group_add_address(address, self._number)
        return self

    def remove(self, *members: Member | Iterable[Member]) -> Group:
        """Takes tensors, and the parameters and buffers of modules, out of their groups."""
        native = plugin_operators()
        if native is not None:
            for tensor in _tensors_of(members):
                native.group_remove(tensor)
        return self

    def sleep(
        self, *, discard: bool = False, device: torch.device | int | str | None = None
    ) -> int:
        """Moves the group's pages to the host, and returns the bytes that leave devices.

        They leave after the work that the current stream of `device` has now; the call does not
        wait, unless pages leave without a copy. Tensors stay as they are: a kernel or the host that
        uses one gets right bytes, and the pages that it uses come back. With `discard`, the
        contents are given up instead, and the call waits for the device: write to the tensors
        before you read them again.

        Raises RuntimeError while a graph is being captured.
        """
        native = plugin_operators()
        if native is None or not self._number:
            return 0
        return native.group_sleep(self._number, _index_of(device), discard)

    def wake(self, *, lazily: bool = False, device: torch.device | int | str | None = None) -> int:
        """Moves the group's pages to `device`, and returns the bytes that come.

        The call does not wait; later work of the current stream of `device` does. If there is no
        room, other groups sleep: those with a lower priority first, then those that woke first.
        Pages that still find no room come when they are used. With `lazily`, all do.

        Raises RuntimeError while a graph is being captured.
        """
        native = plugin_operators()
        if native is None or not self._number:
            return 0
        return native.group_wake(self._number, _index_of(device), lazily)

    def configure(
        self,
        *,
        priority: int | None = None,
        pinned: bool | None = None,
        limit: int | str | None = None,
        copies: str | None = None,
    ) -> Group:
        """Changes settings; None changes nothing.

        Args:
            priority: groups with a lower priority sleep first when a group needs room; 0 at first.
                No group makes one with a higher priority sleep.
            pinned: no other group makes this one sleep.
            limit: bytes, or a size such as "8GiB": the most that wake() brings to the device; 0: no
                limit.
            copies: whether the host keeps the bytes of the group while it is awake, so that pages
                that were only read leave without a copy. "kept": yes. "none": no; use it for what
                is written to all the time. "auto": once, and again while few pages were written to,
                if the driver says where pages are (CUDA 13.4 and later).

        Raises ValueError or TypeError for other values, and changes nothing then.
        """
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise TypeError(f"group: priority is a {type(priority).__name__}; accepted: an int")
        if priority is not None and not -(2**31) <= priority < 2**31:
            raise ValueError(f"group: priority is {priority}; accepted: 32 bits")
        if pinned is not None and not isinstance(pinned, bool):
            raise TypeError(f"group: pinned is a {type(pinned).__name__}; accepted: a bool")
        if copies is not None and copies not in _COPIES:
            accepted = ", ".join(_COPIES)
            raise ValueError(f"group: copies is {copies!r}; accepted: {accepted}")
        limit_bytes = self._limit if limit is None else _limit_bytes(limit)
        self._priority = self._priority if priority is None else priority
        self._pinned = self._pinned if pinned is None else pinned
        self._copies = self._copies if copies is None else copies
        self._limit = limit_bytes
        native = plugin_operators()
        if native is not None and self._number:
            native.group_configure(
                self._number, self._priority, self._pinned, self._limit, _COPIES.index(self._copies)
            )
        return self

    def figures(self) -> GroupFigures:
        """Returns the group's figures now; all 0 without uvmalloc."""
        native = plugin_operators()
        if native is None or not self._number:
            return GroupFigures()
        figures = dict(native.group_figures(self._number).items())
        return GroupFigures(**{**figures, "state": _STATES[figures["state"]]})

    def __enter__(self) -> Group:
        regions = self._open.__dict__.setdefault("regions", [])
        if plugin_operators() is not None and self._number:
            classes = sys.modules["torch"].classes.uvmalloc
            regions.append(classes.Region("", 0, self._number))
        else:
            regions.append(None)
        return self

    def __exit__(self, *_: object) -> None:
        region = self._open.regions.pop()
        if region is not None:
            region.close()


_groups: dict[str, Group] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


def group(
    name: str,
    *,
    priority: int | None = None,
    pinned: bool | None = None,
    limit: int | str | None = None,
    copies: str | None = None,
) -> Group:
    """Returns the group of that name, and makes it if it does not exist.

    A name has 1 to 64 characters: letters, digits and "_", "-", ".", "/", ":". The other arguments
    are those of Group.configure(). Call it after `import torch`.

    Raises ValueError or TypeError for other names and values.
    """
    if not isinstance(name, str):
        raise TypeError(f"group: the name is a {type(name).__name__}; accepted: a str")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"group: the name is {name!r}; accepted: 1 to 64 letters, digits and _ - . / :"
        )
    with _lock:
        found = _groups.get(name)
        if found is None or (not found._number and plugin_operators() is not None):
            found = _groups[name] = Group(name)
    return found.configure(priority=priority, pinned=pinned, limit=limit, copies=copies)


def group_of(*members: Member | Iterable[Member], name: str | None = None) -> Group:
    """Returns a group with these tensors, modules and pools.

    Without a name, it is named after the class of the first member and a number.
    """
    if name is None:
        kind = type(members[0]).__name__ if members else "group"
        name = f"{kind}-{next(_numbers)}"
    return group(name).add(*members)


def groups() -> dict[str, GroupFigures]:
    """Returns the figures of all groups of this process, by name."""
    native = plugin_operators()
    if native is None:
        return {}
    return {name: group(name).figures() for name in native.group_names()}


def _tensors_of(members: Iterable[Any]) -> Iterable[torch.Tensor]:
    import torch

    for member in members:
        if isinstance(member, torch.Tensor):
            yield member
        elif isinstance(member, torch.nn.Module):
            yield from member.parameters()
            yield from member.buffers()
        elif isinstance(member, torch.cuda.MemPool):
            continue
        elif isinstance(member, Iterable) and not isinstance(member, str | bytes):
            yield from _tensors_of(member.values() if isinstance(member, dict) else member)
        else:
            raise TypeError(
                f"group: a member is a {type(member).__name__}; accepted: tensors, modules, "
                "MemPools, and collections of them"
            )


def _addresses_of(members: Iterable[Any]) -> Iterable[int]:
    import torch

    for member in members:
        if not isinstance(member, torch.cuda.MemPool):
            continue
        for segment in member.snapshot():
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    yield block["address"]


def _index_of(device: torch.device | int | str | None) -> int:
    import torch

    if device is None:
        return torch.cuda.current_device()
    chosen = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if chosen.type != "cuda":
        raise ValueError(f"group: the device is {chosen}; accepted: cuda, or cuda:N")
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"group: there is no {chosen}; there are {torch.cuda.device_count()}")
    return index


def _limit_bytes(limit: int | str) -> int:
    accepted = f"accepted: 0, or a size of at least 2 MiB, {EXAMPLES}"
    if isinstance(limit, bool) or not isinstance(limit, int | str):
        raise TypeError(f"group: the limit is a {type(limit).__name__}; {accepted}")
    try:
        size_bytes = parse_size(str(limit))
    except ValueError:
        size_bytes = -1
    if size_bytes != 0 and size_bytes < _LEAST_LIMIT:
        raise ValueError(f"group: the limit is {limit!r}; {accepted}")
    return size_bytes
