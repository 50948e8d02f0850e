"""For all Python tests: the marks `slow` and `fresh_start`; and torch's own CPU kernels do not die
where AMX is announced and refused.

Some virtual machines do that. There every product of bfloat16 matrices ends in SIGILL, with or
without uvmalloc, and the simulated device runs the same kernels.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left out by scripts/test --fast")
    config.addinivalue_line("markers", "fresh_start: its programs import torch themselves")


_PRODUCT = "import torch; ones = torch.ones(64, 64, dtype=torch.bfloat16); ones @ ones"
_CPU = Path("/proc/cpuinfo")


def _amx_is_refused() -> bool:
    if not _CPU.is_file() or "amx_bf16" not in _CPU.read_text():
        return False
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ended = subprocess.run([sys.executable, "-c", _PRODUCT], env=plain, capture_output=True)
    return ended.returncode == -signal.SIGILL


if "ONEDNN_MAX_CPU_ISA" not in os.environ and _amx_is_refused():
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"  # for this process and those it starts
