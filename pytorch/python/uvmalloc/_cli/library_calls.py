"""The command's calls into libuvmalloc_preload.so and the simulator. The calls return texts."""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from uvmalloc.errors import MissingLibraryError
from uvmalloc.libraries import find_libraries


def doctor(library: Path) -> dict[str, Any]:
    """Returns the library's report on this machine and its configuration."""
    describe = _function(library, "uvmalloc_doctor_json", ctypes.c_char_p, ctypes.c_size_t)
    text = _text(describe)
    if text is None:
        raise MissingLibraryError(f"{library} gave no description of this machine")
    found: dict[str, Any] = json.loads(text)
    return found


@functools.cache
def figures_reader() -> Callable[..., int]:
    """Loads the library's function. Call it before the process gives up its right to load the
    library.
    """
    return _function(
        find_libraries().require_uvmalloc(),
        "uvmalloc_report_json_of", ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t,
    )  # fmt: skip


def report_of(figures: Path) -> dict[str, Any] | None:
    """Returns the report on a process from its file of figures. None: it is not such a file."""
    text = _text(functools.partial(figures_reader(), os.fsencode(figures)))
    return None if text is None else json.loads(text)


def machine_fault(library: Path, machine: str) -> str | None:
    """Returns why the simulator cannot read a machine (a name or a file), or None if it can."""
    check = _function(
        library, "uvmsim_check_machine", ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t
    )
    fault = ctypes.create_string_buffer(1024)
    if check(os.fsencode(machine), fault, len(fault)) == 0:
        return None
    return fault.value.decode("utf-8", "replace")


def _function(library: Path, name: str, *arguments: Any) -> Callable[..., int]:
    try:
        function = getattr(ctypes.CDLL(str(library)), name)
    except (OSError, AttributeError) as error:
        raise MissingLibraryError(f"{library} cannot be used: {error}") from None
    function.argtypes = arguments
    function.restype = ctypes.c_int64
    return cast(Callable[..., int], function)


def _text(write: Callable[[ctypes.Array[ctypes.c_char] | None, int], int]) -> str | None:
    """Returns the text that `write` puts into a buffer, or None if `write` fails."""
    # The text may grow between the two calls, because a figure gains a digit.
    capacity = write(None, 0) + 64
    buffer = ctypes.create_string_buffer(capacity)
    needed = write(buffer, capacity)
    return buffer.value.decode("utf-8", "replace") if 0 < needed <= capacity else None
