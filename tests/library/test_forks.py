"""The C interface in a forked child."""

from __future__ import annotations

import sys

from uvmalloc.libraries import find_libraries

from .conftest import run

UVMALLOC_ERROR_NO_DEVICE = 3
PROGRAM = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
made = ctypes.c_void_p()
assert library.uvmalloc_create(None, ctypes.byref(made)) == 0
child = os.fork()
if child == 0:
    os._exit(library.uvmalloc_create(None, ctypes.byref(ctypes.c_void_p())))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_no_device_for_a_new_allocator() -> None:
    libraries = find_libraries()
    said = run(
        sys.executable, "-c", PROGRAM, libraries.require_uvmalloc(),
        LD_LIBRARY_PATH=str(libraries.stand_ins),
    )  # fmt: skip
    assert said == f"{UVMALLOC_ERROR_NO_DEVICE}\n"
