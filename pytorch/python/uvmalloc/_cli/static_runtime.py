"""Finds out whether a program contains a static CUDA runtime that cannot use the simulated device.

The static runtime is nvcc's default. It accepts only NVIDIA's driver. The simulator replaces the
runtime of CUDA 13, in stripped files that of the versions that it knows
(sim/audit/static_runtime.h). With any other static runtime the program would run without a device,
and a signal would often end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from uvmalloc.errors import CommandError

# A function that the runtime looks up in the driver, and one of the runtime's errors. Only the
# runtime holds both: the driver lacks such errors, and other users of the driver lack the function.
_MARKS = (b"\0cuGetExportTable\0", b"\0cudaErrorStreamCaptureUnsupported\0")
_OLDER = b"\0cudaGetDeviceProperties_v2\0"  # a function of CUDA 12, which CUDA 13 removed


class StaticRuntimeError(CommandError):
    exit_code = 126


def refuse_static_runtime(command: Sequence[str], audit: Path) -> None:
    """Raises StaticRuntimeError if the simulator cannot replace the program's static runtime.

    `audit` is the library that replaces it. For libraries that the program loads later, the
    simulator reports the static runtime.
    """
    program = shutil.which(command[0])
    if program is None or not _contains_runtime(Path(program)):
        return
    if ctypes.CDLL(str(audit)).uvmsim_replaces_static_runtime(os.fsencode(program)):
        return
    raise StaticRuntimeError(
        f"cannot run {command[0]} on a simulated device: it contains CUDA's static runtime, "
        f"{_reason_to_refuse(Path(program))}; link it with the shared one: nvcc -cudart shared"
    )


def _contains_runtime(program: Path) -> bool:
    with contextlib.suppress(OSError, ValueError), program.open("rb") as file:
        if file.read(4) == b"\x7fELF":
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return all(content.find(mark) >= 0 for mark in _MARKS)
    return False


def _reason_to_refuse(program: Path) -> str:
    if platform.machine() != "x86_64":
        return "which the simulator replaces only on x86-64"
    if _OLDER in program.read_bytes():
        return "from CUDA 12"
    return "in a stripped file, and of a version that the simulator does not know"
