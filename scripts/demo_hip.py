"""Runs the C++ example on a simulated device of CUDA and on one of HIP, and compares.

The device holds two thirds of the bytes. Both runs must print the same, except the name of the
runtime. The simulated device counts allocations and copies. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = 24
BLOCK_MIB = 16
STEPS = 5
CAPACITY = "256MiB"


@dataclass(frozen=True)
class Run:
    runtime: str
    output: list[str]
    counters: dict[str, Any]

    def counter(self, name: str) -> int:
        return self.counters["counters"][name]


def run_example(program: Path, runtime: str) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        counters = Path(folder, "counters.json")
        command = [Path(sys.executable).with_name("uvmalloc"), "sim", "--no-report", "--native"]
        command += ["--capacity", CAPACITY, *(["--hip"] if runtime == "hip" else [])]
        command += ["--", "env", f"UVMALLOC_RUNTIME={runtime}", f"UVMSIM_REPORT={counters}"]
        numbers = [str(BLOCK_MIB), str(BLOCKS), str(STEPS)]
        finished = subprocess.run([*command, program, *numbers], capture_output=True, text=True)
        if finished.returncode != 0:
            sys.stderr.write(finished.stderr)
            raise SystemExit(f"demo: the example ended with {finished.returncode} on {runtime}")
        return Run(runtime, finished.stdout.splitlines(), json.loads(counters.read_text()))


def broken_promises(cuda: Run, hip: Run) -> list[str]:
    broken = []
    same = [line.replace("runtime hip:", "runtime cuda:") for line in hip.output]
    if same != cuda.output:
        broken.append("the outputs differ by more than the runtime's name")
    if not any(line == "blocks with a wrong byte: 0" for line in hip.output):
        broken.append("the example does not say that every byte is right")
    for run in (cuda, hip):
        if not run.output[0].startswith(f"runtime {run.runtime}:"):
            broken.append(f"the example did not run on {run.runtime}")
        if run.counter("managed_allocations") == 0:
            broken.append(f"{run.runtime}: no managed memory was allocated")
        if run.counter("copy_bytes") != 0:
            broken.append(f"{run.runtime}: {run.counter('copy_bytes'):,} bytes were copied")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bin/moves")
    program = parser.parse_args().program
    runs = [run_example(program, runtime) for runtime in ("cuda", "hip")]
    for run in runs:
        print("\n".join(run.output))
    broken = broken_promises(*runs)
    for promise in broken:
        print(f"demo: FAILED: {promise}")
    if not broken:
        print("demo: the C++ example does the same on CUDA and on HIP")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
