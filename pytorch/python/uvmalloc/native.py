"""Calls into libuvmalloc.so."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from uvmalloc.errors import MissingLibraryError


def mark(text: str) -> None:
    """Writes `text` into the trace that UVMALLOC_TRACE asks for: where a step begins, for example.

    Does nothing in a program that does not run under uvmalloc, or without a trace.
    """
    trace_mark = preloaded("uvmalloc_trace_mark", None, ctypes.c_char_p)
    if trace_mark is not None:
        trace_mark(text.encode())


@cache
def preloaded(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    """That function of this process's libuvmalloc.so, by its types; None where there is none."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        return None
    function.argtypes = list(arguments)
    function.restype = result
    return function


def doctor(library: Path) -> dict[str, Any]:
    """What libuvmalloc.so says of this machine and of its configuration."""
    try:
        native = ctypes.CDLL(str(library))
        describe = native.uvmalloc_doctor_json
    except (OSError, AttributeError) as error:
        raise MissingLibraryError(f"{library} cannot be used: {error}") from None
    describe.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    describe.restype = ctypes.c_int64
    # Free memory may gain a digit between the two calls.
    capacity = describe(None, 0) + 64
    buffer = ctypes.create_string_buffer(capacity)
    needed = describe(buffer, capacity)
    if not 0 < needed <= capacity:
        raise MissingLibraryError(f"{library} gave no description of this machine (code {needed})")
    return json.loads(buffer.value.decode("utf-8", "replace"))
