"""Calls into libuvmalloc.so."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from uvmalloc.errors import MissingLibraryError
from uvmalloc.libraries import find_libraries
from uvmalloc.torch_names import library_function


def mark(text: str) -> None:
    """Writes `text` into the trace that UVMALLOC_TRACE asks for: where a step begins, for example.

    Does nothing in a program that does not run under uvmalloc, or without a trace.
    """
    trace_mark = library_function("uvmalloc_trace_mark", None, ctypes.c_char_p)
    if trace_mark is not None:
        trace_mark(text.encode(errors="replace"))


def library() -> ctypes.CDLL:
    """This process's libuvmalloc.so; where it has none yet, the one beside this package.

    Raises MissingLibraryError where there is none, or it cannot be loaded.
    """
    everything = ctypes.CDLL(None)
    if hasattr(everything, "uvmalloc_load_in_torch"):
        return everything
    file = find_libraries().require_uvmalloc()
    try:
        opened = ctypes.CDLL(str(file))
        opened.uvmalloc_load_in_torch  # noqa: B018
    except (OSError, AttributeError) as error:
        raise MissingLibraryError(f"{file} cannot be used: {error}") from None
    return opened


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
