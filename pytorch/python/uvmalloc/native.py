"""Calls into this process's libuvmalloc_preload.so, for example to write marks into the trace."""

from __future__ import annotations

import ctypes

from uvmalloc.errors import MissingLibraryError
from uvmalloc.libraries import find_libraries
from uvmalloc.torch_names import library_function


def mark(text: str) -> None:
    """Writes a mark with `text` into the trace (UVMALLOC_TRACE), for example where a step begins.

    Does nothing without uvmalloc or without a trace. Any thread may call it. Raises ValueError for
    an empty text.
    """
    if not text:
        raise ValueError(
            "uvmalloc.mark: the string is empty; accepted: a name for the mark"
        )
    trace_mark = library_function("uvmalloc_trace_mark", None, ctypes.c_char_p)
    if trace_mark is not None:
        trace_mark(text.encode(errors="replace"))


def library() -> ctypes.CDLL:
    """Returns this process's library. If there is none yet, loads the one in this package.

    Raises MissingLibraryError if there is no library, or it cannot be loaded.
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
