"""Finds out whether a program contains a static CUDA runtime that cannot use the simulated device.

The static runtime is nvcc's default. It accepts only NVIDIA's driver. The simulator replaces the
runtime of CUDA 13 in files that are not stripped (sim/audit/static_runtime.h). With any other
static runtime the program would run without a device, and a signal would often end it.
"""

from __future__ import annotations

import contextlib
import mmap
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from uvmalloc.errors import CommandError

# A function that the runtime looks up in the driver, and one of the runtime's errors. Only the
# runtime holds both: the driver lacks such errors, and other users of the driver lack the function.
_MARKS = (b"\0cuGetExportTable\0", b"\0cudaErrorStreamCaptureUnsupported\0")
_SYMBOL = b"\0libcudart_static_"  # the prefix of the runtime's internal functions, in symbol tables
_OLDER = b"\0cudaGetDeviceProperties_v2\0"  # a function of CUDA 12, which CUDA 13 removed


class StaticRuntimeError(CommandError):
    exit_code = 126


def refuse_static_runtime(command: Sequence[str]) -> None:
    """Raises StaticRuntimeError if the simulator cannot replace the program's static runtime.

    For libraries that the program loads later, the simulator reports the static runtime.
    """
    program = shutil.which(command[0])
    reason = None if program is None else _reason_to_refuse(Path(program))
    if reason is not None:
        raise StaticRuntimeError(
            f"cannot run {command[0]} on a simulated device: it contains CUDA's static runtime, "
            f"{reason}; link it with the shared one: nvcc -cudart shared"
        )


def _reason_to_refuse(program: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError), program.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if any(content.find(mark) < 0 for mark in _MARKS):
                return None
            if content.find(_SYMBOL) < 0:
                return "and is stripped"
            if content.find(_OLDER) >= 0:
                return "from CUDA 12"
            if platform.machine() != "x86_64":
                return "which the simulator replaces only on x86-64"
    return None
