"""Random programs of CUDA print the same when uvmalloc serves them as on the simulated device
alone.

programs/served_fuzz.cpp and programs/virtual_memory_fuzz.cpp say what the programs do, and where
the two outputs may differ.

    build/venv/bin/python -m tests.preload.served_fuzz --seconds 600
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from uvmalloc._cli.environment import Machine
from uvmalloc.libraries import find_libraries

from tests.build_facts import found_by_cmake
from tests.preload.conftest import environment

PROGRAMS = Path(__file__).parent / "programs"
SEQUENCES, CALLS = 20, 150  # in one program
# Source and options of each kind of program.
KINDS = {
    "legacy": ("served_fuzz", []),
    "per_thread": ("served_fuzz", ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]),
    "virtual_memory": ("virtual_memory_fuzz", []),
}


@dataclass(frozen=True)
class Fuzzer:
    program: Path
    folder: Path

    def output(self, seed: int, **variables: str) -> str:
        command = [self.program, str(seed), str(SEQUENCES), str(CALLS)]
        settings = environment(self.folder, variables, Machine(devices=2))
        done = subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=300, check=False
        )
        return f"{done.stdout}exit {done.returncode}\n{done.stderr}"

    def difference(self, seed: int, **variables: str) -> str:
        """Returns the first line that differs, with the lines before it, or an empty string."""
        alone = self.output(seed, UVMALLOC_CUDA="0").splitlines()
        served = self.output(seed, UVMALLOC_POINTER_TYPE="device", **variables).splitlines()
        for number, pair in enumerate(zip(alone, served, strict=False)):
            if pair[0] != pair[1]:
                before = alone[max(0, number - 12) : number]
                return "\n".join(
                    [f"seed {seed}", *before, f"alone:  {pair[0]}", f"served: {pair[1]}"]
                )
        return "" if len(alone) == len(served) else f"seed {seed}: one ends before the other"


def built(kind: str, folder: Path) -> Fuzzer:
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "no C++ compiler on the path"
    stand_ins = find_libraries().stand_ins
    libraries = [stand_ins / "libcudart.so.13", stand_ins / "libcuda.so.1", "-lpthread"]
    headers = ["-isystem", found_by_cmake("UVMALLOC_CUDA_INCLUDE_DIR")]
    name, options = KINDS[kind]
    options = ["-std=c++20", "-O1", *options]
    source, program = PROGRAMS / f"{name}.cpp", folder / f"fuzz_{kind}"
    subprocess.run([compiler, *options, *headers, source, "-o", program, *libraries], check=True)
    return Fuzzer(program, folder)


def main(seconds: float) -> int:
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        fuzzers = [built(name, Path(folder)) for name in KINDS]
        for number in itertools.count():
            # The test does not use these seeds.
            seed = 1_000_001 + number * SEQUENCES
            for fuzzer in fuzzers:
                if difference := fuzzer.difference(seed):
                    print(difference)
                    return 1
            if time.monotonic() > end:
                print(f"{len(fuzzers) * (number + 1) * SEQUENCES} sequences, no difference")
                return 0
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    sys.exit(main(parser.parse_args().seconds))
