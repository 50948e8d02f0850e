"""Counts the instructions of a cache-hit pair of uvmalloc with valgrind's callgrind."""

from __future__ import annotations

import re
import shutil
import subprocess

from bench.allocators.engines import Program
from bench.allocators.plan import SIZES
from bench.allocators.server import RequestError

_PAIRS = (10_000, 12_000)  # after these warm-up pairs, threads cache blocks of all sizes
_SECONDS = 120
_COLLECTED = re.compile(r"Collected : (\d+)")


def instructions_per_pair(program: Program, size: str, options: str = "") -> float:
    """Returns the difference of two runs, so that the rest of the process cancels out.

    `options`: more words of the request, such as "groups=1".
    """
    few, many = (_instructions(program, SIZES[size], pairs, options) for pairs in _PAIRS)
    return (many - few) / (_PAIRS[1] - _PAIRS[0])


def _instructions(program: Program, size_bytes: int, pairs: int, options: str) -> int:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise RequestError("valgrind is not installed")
    environment = {k: v for k, v in program.environment.items() if k != "LD_AUDIT"}
    try:
        done = subprocess.run(
            [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", *program.command],
            input=f"count size={size_bytes} pairs={pairs} runtime=reserving {options}\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RequestError(f"valgrind was still running after {_SECONDS} s") from None
    found = _COLLECTED.search(done.stderr)
    if found is None or '"values"' not in done.stdout:
        raise RequestError(f"valgrind ended with {done.returncode}: {done.stdout.strip()}")
    return int(found.group(1))
