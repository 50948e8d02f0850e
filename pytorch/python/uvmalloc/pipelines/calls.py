"""Calls into libuvmalloc_pipelines.so: credits (credit_calls.h) and plans (plan_calls.h).

The library decides what may start and where storages are placed. It intercepts nothing, so any
program may load it at any time.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from uvmalloc.errors import MissingLibraryError
from uvmalloc.libraries import find_libraries

UNLIMITED = (1 << 64) - 1
_ERROR_BYTES = 4096
_INT, _INT64, _UINT64, _SIZE = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64, ctypes.c_size_t
_HANDLE, _TEXT, _DOUBLE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double
_INTS, _INT64S, _UINT64S = (ctypes.POINTER(kind) for kind in (_INT, _INT64, _UINT64))
_ERROR = (_TEXT, _SIZE)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "uvmalloc_credits_create": (_HANDLE, (_UINT64,)),
    "uvmalloc_credits_destroy": (None, (_HANDLE,)),
    "uvmalloc_credits_add_actor": (_INT, (_HANDLE, _TEXT, *_ERROR)),
    "uvmalloc_credits_add_register": (
        _INT, (_HANDLE, _TEXT, _INT, _INTS, _SIZE, _UINT64, _UINT64, *_ERROR),
    ),
    "uvmalloc_credits_open": (_INT, (_HANDLE, _DOUBLE, *_ERROR)),
    "uvmalloc_credits_start": (_INT, (_HANDLE, _INT, _UINT64S, _UINT64S, *_ERROR)),
    "uvmalloc_credits_wait": (_INT, (_HANDLE, _INT, _DOUBLE, *_ERROR)),
    "uvmalloc_credits_set_output_bytes": (_INT, (_HANDLE, _INT, _UINT64, *_ERROR)),
    "uvmalloc_credits_finish": (_INT, (_HANDLE, _INT, *_ERROR)),
    "uvmalloc_credits_close": (_INT, (_HANDLE, _INT, *_ERROR)),
    "uvmalloc_credits_abandon": (_INT, (_HANDLE, _INT, *_ERROR)),
    "uvmalloc_credits_stop": (None, (_HANDLE, _TEXT)),
    "uvmalloc_credits_peak_bytes": (_UINT64, (_HANDLE,)),
    "uvmalloc_plan_make": (_HANDLE, (_TEXT, _DOUBLE, *_ERROR)),
    "uvmalloc_plan_destroy": (None, (_HANDLE,)),
    "uvmalloc_plan_arena_bytes": (_INT64, (_HANDLE,)),
    "uvmalloc_plan_lower_bound_bytes": (_INT64, (_HANDLE,)),
    "uvmalloc_plan_storage_count": (_SIZE, (_HANDLE,)),
    "uvmalloc_plan_places": (None, (_HANDLE, _INT64S, _INT64S)),
}  # fmt: skip

STARTED, OVER, FAILED, LATE, STOPPED = 1, 0, -1, -2, -3


@functools.cache
def calls() -> ctypes.CDLL:
    """Returns the library, with function types. Raises MissingLibraryError if there is none."""
    file = find_libraries().pipelines
    try:
        library = ctypes.CDLL(str(file))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise MissingLibraryError(f"{file} cannot be used: {error}") from None
    return library


def checked(function: Callable[..., Any], *arguments: Any, fault: type[Exception]) -> Any:
    """Returns the function's result. If it is -1 or NULL, raises `fault` with its text."""
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    result = function(*arguments, error, _ERROR_BYTES)
    if result is None or result == FAILED:
        raise fault(error.value.decode("utf-8", "replace"))
    return result


class CreditsGate:
    """Actors and registers with credits. See pipelines/credits/credit_gate.hpp for each call."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._library = calls()
        limit = UNLIMITED if memory_bytes is None else memory_bytes
        self._process = os.getpid()
        self._handle = self._library.uvmalloc_credits_create(limit)
        if not self._handle:
            raise MemoryError("no memory for credits")
        self._slots: dict[int, tuple[int, int]] = {}  # by actor: counts of reads and writes

    def add_actor(self, name: str) -> int:
        actor: int = self._call("add_actor", name.encode())
        self._slots[actor] = (0, 0)
        return actor

    def add_register(
        self, name: str, producer: int, consumers: Sequence[int], quota: int, slot_bytes: int
    ) -> int:
        numbers = (_INT * len(consumers))(*consumers)
        added: int = self._call(
            "add_register", name.encode(), producer, numbers, len(consumers), quota, slot_bytes
        )
        reads, writes = self._slots[producer]
        self._slots[producer] = (reads, writes + 1)
        for consumer in consumers:
            reads, writes = self._slots[consumer]
            self._slots[consumer] = (reads + 1, writes)
        return added

    def open(self, timeout_seconds: float | None = None) -> None:
        self._call("open", timeout_seconds or 0.0)

    def start(self, actor: int) -> tuple[list[int], list[int]] | None:
        """Waits, without the GIL, until the actor may start. Returns the slots to read and the
        slots to write.

        Returns None if the actor has ended. Raises CreditTimeout or CreditStopped.
        """
        reads, writes = self._slots[actor]
        inputs, outputs = (_UINT64 * max(1, reads))(), (_UINT64 * max(1, writes))()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = self._library.uvmalloc_credits_start(
            self._handle, actor, inputs, outputs, error, _ERROR_BYTES
        )
        if status == STARTED:
            return list(inputs[:reads]), list(outputs[:writes])
        if status == OVER:
            return None
        faults = {LATE: CreditTimeout, STOPPED: CreditStopped}
        raise faults.get(status, RuntimeError)(error.value.decode("utf-8", "replace"))

    def wait(self, actor: int, seconds: float) -> bool:
        """Waits at most `seconds`. Returns whether start() would return or raise at once."""
        return bool(self._call("wait", actor, seconds))

    def set_output_bytes(self, register: int, size_bytes: int) -> None:
        self._call("set_output_bytes", register, size_bytes)

    def finish(self, actor: int) -> None:
        self._call("finish", actor)

    def close(self, actor: int) -> None:
        self._call("close", actor)

    def abandon(self, actor: int) -> None:
        self._call("abandon", actor)

    def stop(self, reason: str) -> None:
        if self._handle is not None:  # the garbage collector may end the gate before its pipeline
            self._library.uvmalloc_credits_stop(self._handle, reason.encode())

    @property
    def peak_bytes(self) -> int:
        return int(self._library.uvmalloc_credits_peak_bytes(self._handle))

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._library, f"uvmalloc_credits_{name}")
        return checked(function, self._handle, *arguments, fault=CreditError)

    def __del__(self) -> None:
        # Not in a forked child: its gate still counts waiting threads that do not exist there.
        if getattr(self, "_handle", None) and os.getpid() == self._process:
            self._library.uvmalloc_credits_destroy(self._handle)
            self._handle = None


class CreditError(ValueError):
    """Impossible credits, for example a quota that is too small or an item that is too large."""


class CreditTimeout(TimeoutError):
    """An actor did not finish in time. The message names the actor."""


class CreditStopped(RuntimeError):
    """The actors were stopped."""


class Plan:
    """A StoragePlan; see pipelines/plans/storage_plan.hpp."""

    def __init__(self, handle: int) -> None:
        self._library = calls()
        self._handle = handle
        count = self._library.uvmalloc_plan_storage_count(handle)
        offsets, most_bytes = (_INT64 * count)(), (_INT64 * count)()
        self._library.uvmalloc_plan_places(handle, offsets, most_bytes)
        self.offsets: list[int] = list(offsets)
        self.most_bytes: list[int] = list(most_bytes)

    @classmethod
    def make(cls, description: str, effort: float = 1.0) -> Plan:
        """Makes a plan from a description in JSON. ValueError names a fault in that text."""
        function = calls().uvmalloc_plan_make
        return cls(checked(function, description.encode(), effort, fault=ValueError))

    @property
    def arena_bytes(self) -> int:
        return int(self._library.uvmalloc_plan_arena_bytes(self._handle))

    @property
    def lower_bound_bytes(self) -> int:
        return int(self._library.uvmalloc_plan_lower_bound_bytes(self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.uvmalloc_plan_destroy(self._handle)
