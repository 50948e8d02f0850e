"""Finds out whether a program holds CUDA's static runtime, which is nvcc's default.

That runtime requests undocumented tables from the driver, so no simulated device can serve it. The
program would run without a device, and a signal would often end it.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
from collections.abc import Sequence
from pathlib import Path

from uvmalloc.errors import CommandError

# A function that the runtime looks up in the driver, and one of the runtime's errors. Only the
# runtime holds both: the driver lacks such errors, and other users of the driver lack the function.
_MARKS = (b"\0cuGetExportTable\0", b"\0cudaErrorStreamCaptureUnsupported\0")


class StaticRuntimeError(CommandError):
    exit_code = 126


def refuse_static_runtime(command: Sequence[str]) -> None:
    """Raises StaticRuntimeError if the program's own file holds CUDA's static runtime.

    For libraries that the program loads later, the simulator reports the static runtime.
    """
    program = shutil.which(command[0])
    if program is not None and _holds_static_runtime(Path(program)):
        raise StaticRuntimeError(
            f"cannot run {command[0]} on a simulated device: it holds CUDA's static runtime; link "
            "it with the shared one: nvcc -cudart shared"
        )


def _holds_static_runtime(program: Path) -> bool:
    with contextlib.suppress(OSError, ValueError), program.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return all(content.find(mark) >= 0 for mark in _MARKS)
    return False
