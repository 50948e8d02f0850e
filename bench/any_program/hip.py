"""Measures HIP: passed conformance tests, and CUDA names left after translation.

`python -m bench.any_program.hip` adds the figures to build/any_program.json: hip_conformance and
cuda_conformance (passed and total tests of the suite on the vendor's stand-in) and cuda_names_left
(in translated files of the build). It needs a release build. The exit code is 1 if a test fails,
the counts of the vendors differ, or a name is left.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from uvmalloc._cli.environment import without_settings

from bench.any_program.figures import write_figures

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
CUDA_NAME = re.compile(r"\bcu[A-Z]|\bcuda[A-Z]|\bCU(?:DA)?_")
# As in tests/conformance/CMakeLists.txt: the first program needs two devices.
PROGRAMS = {"conformance_test": "2", "process_allocator_test": "1", "resident_memory_test": "1"}


@dataclass(frozen=True)
class Conformance:
    passed: int
    total: int


def conformance(vendor: str, build: Path = BUILD) -> Conformance:
    """Runs each test of the suite once, in its own process, on the vendor's stand-in."""
    outcomes = [
        _passes(program, test, _environment(vendor, devices, build))
        for program, devices in _programs(vendor, build)
        for test in _tests_of(program, _environment(vendor, devices, build))
    ]
    return Conformance(sum(outcomes), len(outcomes))


def cuda_names_left(build: Path = BUILD) -> int:
    """Returns the number of CUDA names in the translated files of the build."""
    files = [file for file in (build / "hip").rglob("*") if file.is_file()]
    if not files:
        raise FileNotFoundError(
            f"{build / 'hip'} holds no translated file: build with HIP's headers"
        )
    return sum(len(CUDA_NAME.findall(file.read_text())) for file in files)


def _programs(vendor: str, build: Path) -> Iterator[tuple[Path, str]]:
    prefix = "" if vendor == "cuda" else f"{vendor}_"
    for name, devices in PROGRAMS.items():
        yield build / "bin" / f"{prefix}{name}", devices


def _environment(vendor: str, devices: str, build: Path) -> dict[str, str]:
    environment = without_settings(os.environ, "LD_", "HSA_", "HIP_", "CUDA_")
    stand_ins = build / "lib" / "sim"
    environment["UVMSIM_DEVICES"] = devices
    if vendor == "hip":
        environment |= {"HSA_XNACK": "1", "UVMSIM_PROFILE": "hmm"}
        stand_ins = stand_ins / "hip"
    environment["LD_LIBRARY_PATH"] = str(stand_ins)
    return environment


def _tests_of(program: Path, environment: dict[str, str]) -> Iterator[str]:
    listed = subprocess.run(
        [program, "--gtest_list_tests"], env=environment, capture_output=True, text=True, check=True
    )
    suite = ""
    for line in listed.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if name.endswith("."):
            suite = name
        elif name.startswith("  "):
            yield suite + name.strip()


def _passes(program: Path, test: str, environment: dict[str, str]) -> bool:
    done = subprocess.run(
        [program, f"--gtest_filter={test}"], env=environment, capture_output=True, text=True
    )
    return done.returncode == 0 and "[  PASSED  ] 1 test." in done.stdout


def main() -> int:
    cuda, hip = conformance("cuda"), conformance("hip")
    left = cuda_names_left()
    write_figures(
        {
            "cuda_conformance": asdict(cuda),
            "hip_conformance": asdict(hip),
            "cuda_names_left": left,
        }
    )
    print(f"CUDA: {cuda.passed} of {cuda.total} tests of the conformance suite pass")
    print(f"HIP: {hip.passed} of {hip.total} tests of the conformance suite pass")
    print(f"names of CUDA left in translated files: {left}")
    everything = all(figure.passed == figure.total for figure in (cuda, hip))
    return 0 if everything and cuda.total == hip.total and left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
