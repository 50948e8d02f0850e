"""Call sites in traces of programs without torch: the function that called CUDA."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from uvmalloc._trace.reader import ALLOCATE, SITE, read_trace

from tests.preload.conftest import Program, in_python

LIBRARY = """
typedef int (*allocation)(void **out, unsigned long size_bytes);
__attribute__((noinline)) static int hidden(allocation allocate, void **out) {
  int status = allocate(out, 5 << 20);
  return status + (*out == 0);
}
int load_weights(allocation allocate, void **out) {
  int status = allocate(out, 3 << 20);
  return status + hidden(allocate, out);
}
"""


def test_an_allocation_has_the_function_that_called_or_the_offset_in_its_library(
    program: Program, tmp_path: Path
) -> None:
    source, library, trace_file = (tmp_path / name for name in ("l.c", "libmodel.so", "run.trace"))
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-O0", "-shared", "-fPIC", "-o", library, source], check=True)
    python = in_python(program, 'runtime = ctypes.CDLL("libcudart.so.13")\n')
    text = f"""
out = pointer()
model = ctypes.CDLL({str(library)!r})
assert model.load_weights(ctypes.cast(runtime.cudaMalloc, pointer), byref(out)) == 0
"""
    run = python(text, UVMALLOC_TRACE=str(trace_file), UVMALLOC_CALL_SITES="1")
    assert run.served == 2
    trace = read_trace(trace_file)
    sizes = {int(e["address"]): int(e["size_bytes"]) for e in trace.events if e["kind"] == ALLOCATE}
    sites = {
        sizes[int(event["address"])]: trace.text(SITE, int(event["extra"]))
        for event in trace.events
        if event["kind"] == SITE
    }
    assert re.fullmatch(r"load_weights\+0x[0-9a-f]+ in libmodel\.so", sites[3 << 20])
    assert re.fullmatch(r"libmodel\.so\+0x[0-9a-f]+", sites[5 << 20])
