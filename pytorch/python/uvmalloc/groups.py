"""Groups: named sets of tensors that sleep and wake as a whole (docs/reference/groups.md).

In a program without uvmalloc, groups do nothing. Any thread may call them. Importing this module
imports neither torch nor a native library.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvmalloc.growing import Growing
from uvmalloc.loading import as_device, load_as_in_files, load_safetensors
from uvmalloc.memory import cuda_index, enabled, plugin_operators
from uvmalloc.sizes import EXAMPLES, parse_size

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    Member: TypeAlias = torch.Tensor | torch.nn.Module | torch.cuda.MemPool | Growing

_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,64}")
_STATES = ("awake", "asleep", "discarded", "in a file")
_COPIES = ("auto", "kept", "none")
_LEAST_LIMIT = 2 << 20
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)(ms|s|m|h|)", re.ASCII)
_SECONDS = {"": 1, "s": 1, "ms": 1e-3, "m": 60, "h": 3600}
_MOST_IDLE = 1e9  # a billion seconds


@dataclass(frozen=True)
class GroupFigures:
    """What a group has, and what it did. Sizes are in bytes.

    `bytes`: of its tensors' blocks. `page_bytes`: of the 2 MiB pages that move with the group; the
    others are shared with other memory. `device_bytes` and `host_bytes`: of these, where the last
    hint or move put them. `spill_bytes`, `file_bytes`: of these, that a file can hold if the
    group has one, and that are in one. `kept_bytes`, `left_bytes`: pages that left in all sleeps
    without a copy, because the host had their bytes, and by a copy. `idle_sleeps`: of the sleeps,
    those because nothing used the group.
    """

    state: str = "awake"
    blocks: int = 0
    bytes: int = 0
    page_bytes: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    spill_bytes: int = 0
    file_bytes: int = 0
    sleeps: int = 0
    wakes: int = 0
    kept_bytes: int = 0
    left_bytes: int = 0
    idle_sleeps: int = 0


@dataclass(frozen=True)
class _Settings:
    """Settings that a program has given, as Group.configure() describes them; None: not given."""

    priority: int | None = None
    pinned: bool | None = None
    limit_bytes: int | None = None
    copies: str | None = None
    floor_bytes: int | None = None
    idle_seconds: float | None = None
    file: str | None = None

    def changed(self, other: _Settings) -> _Settings:
        given = {name: value for name, value in vars(other).items() if value is not None}
        return replace(self, **given)

    def apply(self, number: int) -> None:
        copies = None if self.copies is None else _COPIES.index(self.copies)
        plugin_operators().group_configure(
            number,
            self.priority,
            self.pinned,
            self.limit_bytes,
            copies,
            self.floor_bytes,
            self.idle_seconds,
            self.file,
        )


def _checked(
    *,
    priority: int | None,
    pinned: bool | None,
    limit: int | str | None,
    copies: str | None,
    floor: int | str | None,
    idle: float | str | None,
    file: str | os.PathLike[str] | None,
) -> _Settings:
    """Returns the settings. Raises ValueError or TypeError for values that are not accepted."""
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise TypeError(f"group: priority is a {type(priority).__name__}; accepted: an int")
    if priority is not None and not -(2**31) <= priority < 2**31:
        raise ValueError(f"group: priority is {priority}; accepted: 32 bits")
    if pinned is not None and not isinstance(pinned, bool):
        raise TypeError(f"group: pinned is a {type(pinned).__name__}; accepted: a bool")
    if copies is not None and copies not in _COPIES:
        accepted = ", ".join(_COPIES)
        raise ValueError(f"group: copies is {copies!r}; accepted: {accepted}")
    return _Settings(
        priority,
        pinned,
        None if limit is None else _size_bytes("limit", limit, _LEAST_LIMIT),
        copies,
        None if floor is None else _size_bytes("floor", floor, 0),
        None if idle is None else _idle_seconds(idle),
        None if file is None else _folder(file),
    )


class Group:
    """A named set of tensors. group() makes it; two groups of one name are the same.

    As a context manager, a group takes all tensors that the thread creates inside, and those that
    backward passes started there create. Groups nest: the innermost one takes the tensors. A tensor
    is in one group at a time, until its memory is freed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._open = threading.local()
        self._settings = _Settings()
        self._number = 0  # until uvmalloc is switched on

    def __repr__(self) -> str:
        figures = self.figures()
        return f"<uvmalloc.Group {self.name!r}: {figures.state}, {figures.bytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        return group, (self.name,)

    def add(self, *members: Member | Iterable[Member]) -> Group:
        """Takes tensors, the parameters and buffers of modules, and what a MemPool has now.

        Takes a Growing with all that it grows by. Leaves out tensors that are not in uvmalloc's
        memory. Raises TypeError for other objects, and takes nothing then.
        """
        self._put(members, self._find())
        return self

    def remove(self, *members: Member | Iterable[Member]) -> Group:
        """Takes tensors, and the parameters and buffers of modules, out of their groups."""
        self._put(members, 0)
        return self

    def _put(self, members: Iterable[Any], number: int) -> None:
        members = _listed(members)
        tensors, addresses = list(_tensors_of(members)), list(_addresses_of(members))
        native = plugin_operators()
        if native is None or not self._find():
            return
        for tensor in tensors:
            native.group_put(tensor, number)
        for address in addresses:
            native.group_put_address(address, number)

    def load(
        self, path: str | os.PathLike[str], device: torch.device | str | int = "cuda"
    ) -> dict[str, torch.Tensor]:
        """Reads the tensors of a safetensors file into the group, and returns them by name.

        Arguments and errors are those of load_safetensors(). If the group has a `file`, the tensors
        of a file share one storage, which has the bytes of that file. Then the group sleeps in the
        safetensors file: only what the program has changed is written to the group's own file.
        While the group sleeps, the safetensors file must not change. It may be removed. Tensors
        that do not begin at a multiple of 16 bytes in their file have memory of their own; if that
        is more than half of a file, none share.
        """
        with self:
            number = self._find()
            has_file = number != 0 and plugin_operators().group_file(number) != ""
            if has_file and as_device(device).type == "cuda":
                return load_as_in_files(path, device)
            return load_safetensors(path, device)

    def sleep(
        self, *, discard: bool = False, device: torch.device | int | str | None = None
    ) -> int:
        """Moves the group's pages to the host, and returns how many bytes move.

        They move after the work that the current stream of their device has now. The call does not
        wait, unless pages can be dropped without a copy. Tensors stay valid: a kernel or host code
        that uses one reads the right bytes, and the pages that it uses move back. With `discard`,
        the contents are dropped instead, and the call waits for the device: write to the tensors
        before you read them again.

        Args:
            discard: whether the contents are dropped.
            device: moves only pages on this device; None: on all devices.

        Raises RuntimeError while a graph is being captured.
        """
        return self._move("group_sleep", device, discard=discard)

    def wake(self, *, lazily: bool = False, device: torch.device | int | str | None = None) -> int:
        """Moves the group's pages back to their devices, and returns how many bytes move.

        The call does not wait; later work of the current stream of each device does. After the
        first wake, kernels wait only for the pages that they use, and pages move in the order of
        their first use. If there is no room, other groups are put to sleep: those with a lower
        priority first, then those that woke first. Pages for which there is still no room move
        when they are used.

        Args:
            lazily: whether each page moves only when it is used.
            device: moves only pages of this device; None: of all devices.

        Raises RuntimeError while a graph is being captured.
        """
        return self._move("group_wake", device, lazily=lazily)

    def _move(self, operator: str, device: torch.device | int | str | None, **option: bool) -> int:
        """Calls the operator for one device, or for all that have pages; returns the bytes."""
        ((name, value),) = option.items()
        if not isinstance(value, bool):
            raise TypeError(f"group: {name} is a {type(value).__name__}; accepted: a bool")
        chosen = None if device is None else cuda_index(device, "group")
        if not self._find():
            return 0
        native = plugin_operators()
        devices = native.group_devices(self._number) if chosen is None else (chosen,)
        return sum(getattr(native, operator)(self._number, each, value) for each in devices)

    def configure(
        self,
        *,
        priority: int | None = None,
        pinned: bool | None = None,
        limit: int | str | None = None,
        copies: str | None = None,
        floor: int | str | None = None,
        idle: float | str | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> Group:
        """Changes settings; None changes nothing. UVMALLOC_GROUPS has a group's first settings.

        Args:
            priority: groups with a lower priority sleep first when a group needs room; 0 at first.
                No group makes one with a higher priority sleep.
            pinned: no other group makes this one sleep.
            limit: bytes, or a size such as "8GiB": the most that wake() brings to a device; 0: no
                limit.
            copies: whether the host keeps a copy of the group while it is awake. Then pages that
                were only read need no copy when the group sleeps. "kept": yes. "none": no; use it
                for memory that is written to all the time. "auto": the first time, and again while
                few pages were written to, if the driver reports where pages are (CUDA 13.4).
            floor: bytes or a size: when other groups need room, this much of the group stays on its
                device.
            idle: seconds, or a time such as "500ms" or "2m", after which the group sleeps if
                nothing has used it; 0: never. Calls for the group, torch's operators and replayed
                graphs are uses.
            file: a folder on a disk: tensors that are created inside `with group:` from now on
                sleep in a file there, which takes no memory of the host; "": no file. All devices
                have to reach ordinary memory.

        Raises ValueError or TypeError for other values, and for a folder in which groups cannot
        sleep, and changes nothing then.
        """
        given = _checked(
            priority=priority,
            pinned=pinned,
            limit=limit,
            copies=copies,
            floor=floor,
            idle=idle,
            file=file,
        )
        if given != _Settings() and self._find():
            given.apply(self._number)
        self._settings = self._settings.changed(given)
        return self

    def figures(self) -> GroupFigures:
        """Returns the group's figures now; all 0 without uvmalloc."""
        if not self._find():
            return GroupFigures()
        figures = dict(plugin_operators().group_figures(self._number).items())
        return GroupFigures(**{**figures, "state": _STATES[figures["state"]]})

    @property
    def number(self) -> int:
        """The group's number in the C interface; 0 without uvmalloc."""
        return self._find()

    def _find(self) -> int:
        """Returns the group's number, 0 without uvmalloc, which may be switched on later."""
        if not self._number and enabled():
            number = plugin_operators().group_open(self.name)
            if self._settings != _Settings():
                self._settings.apply(number)
            self._number = number
        return self._number

    def __enter__(self) -> Group:
        regions = self._open.__dict__.setdefault("regions", [])
        if self._find():
            classes = sys.modules["torch"].classes.uvmalloc
            regions.append(classes.Region("", 0, self._number, False))
        else:
            regions.append(None)
        return self

    def __exit__(self, *_: object) -> None:
        regions = getattr(self._open, "regions", None)
        if not regions:
            raise RuntimeError(f"{self.name}: __exit__ without __enter__ in this thread")
        region = regions.pop()
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
    floor: int | str | None = None,
    idle: float | str | None = None,
    file: str | os.PathLike[str] | None = None,
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
    settings: dict[str, Any] = {
        "priority": priority,
        "pinned": pinned,
        "limit": limit,
        "copies": copies,
        "floor": floor,
        "idle": idle,
        "file": file,
    }
    _checked(**settings)  # before the group is made
    with _lock:
        found = _groups.setdefault(name, Group(name))
    return found.configure(**settings)


def group_of(*members: Member | Iterable[Member], name: str | None = None) -> Group:
    """Returns a group with these tensors, modules and pools.

    Without a name, it is named after the class of the first member and a number.
    """
    listed = _listed(members)
    empty = not any(True for _ in _tensors_of(listed))  # checks the members first
    if name is None:
        kind = "group" if empty else type(listed[0]).__name__
        name = f"{kind}-{next(_numbers)}"
    return group(name).add(*listed)


def groups() -> dict[str, GroupFigures]:
    """Returns the figures of all groups of this process, by name."""
    if not enabled():
        return {}
    return {name: group(name).figures() for name in plugin_operators().group_names()}


def _listed(members: Iterable[Any]) -> list[Any]:
    """Returns the members; those that can be gone through only once as lists."""
    return [list(each) if isinstance(each, Iterator) else each for each in members]


def _tensors_of(members: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Yields the tensors that may be in uvmalloc's memory."""
    import torch

    for member in members:
        if isinstance(member, torch.Tensor):
            if _may_have_memory(member):
                yield member
        elif isinstance(member, Growing):
            yield member.tensor
        elif isinstance(member, torch.nn.Module):
            yield from filter(_may_have_memory, (*member.parameters(), *member.buffers()))
        elif isinstance(member, torch.cuda.MemPool):
            continue
        elif isinstance(member, Iterable) and not isinstance(member, str | bytes):
            yield from _tensors_of(member.values() if isinstance(member, Mapping) else member)
        else:
            raise TypeError(
                f"group: a member is a {type(member).__name__}; accepted: tensors, modules, "
                "MemPools, and collections of them"
            )


def _may_have_memory(tensor: torch.Tensor) -> bool:
    """Leaves out sparse, nested, quantized, meta, fake and uninitialized tensors."""
    import torch

    own = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return (
        type(tensor) in own
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not tensor.is_nested
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


def _size_bytes(name: str, size: int | str, least: int) -> int:
    accepted = f"0, or a size of at least 2 MiB, {EXAMPLES}" if least else f"a size, {EXAMPLES}"
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"group: the {name} is a {type(size).__name__}; accepted: {accepted}")
    try:
        size_bytes = parse_size(str(size))
    except ValueError:
        size_bytes = -1
    if size_bytes < 0 or 0 < size_bytes < least:
        raise ValueError(f"group: the {name} is {size!r}; accepted: {accepted}")
    return size_bytes


def _folder(file: str | os.PathLike[str]) -> str:
    accepted = 'accepted: a folder on a disk; "": no file'
    if not isinstance(file, str | os.PathLike) or not isinstance(os.fspath(file), str):
        raise TypeError(f"group: file is a {type(file).__name__}; {accepted}")
    if "\0" in os.fspath(file):
        raise ValueError(f"group: file is {file!r}; {accepted}")
    return str(Path(file).absolute()) if os.fspath(file) else ""


def _idle_seconds(idle: float | str) -> float:
    accepted = 'accepted: seconds, or a time such as "30s", "500ms", "2m" or "1h"; 0: never'
    if isinstance(idle, bool) or not isinstance(idle, int | float | str):
        raise TypeError(f"group: idle is a {type(idle).__name__}; {accepted}")
    match = _TIME.fullmatch(str(idle))
    seconds = float(match[1]) * _SECONDS[match[2]] if match else -1
    if not 0 <= seconds <= _MOST_IDLE:
        raise ValueError(f"group: idle is {idle!r}; {accepted}")
    return seconds
