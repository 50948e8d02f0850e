"""The command line, which `scripts/gpu_check` describes.

The command uses only the standard library and this tree. Only --prepare downloads anything. The
exit code is 1 if a stage failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from gpu_check.carried import MissingSourceError, prepare
from gpu_check.check import Check
from gpu_check.model import compare
from gpu_check.place import DEPS, ROOT, Place
from gpu_check.subprograms import CheckError, Clock, say
from gpu_check.toolchain import build, missing


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks uvmalloc on a machine with a real GPU.")
    parser.add_argument("--prepare", action="store_true", help="fill build/gpu_deps and end")
    parser.add_argument("--simulated", action="store_true", help="a trial on the simulated device")
    parser.add_argument("--build", type=Path, help="a finished build to check instead of a new one")
    parser.add_argument("--output", type=Path, help="default: docs/measurements")
    parser.add_argument(
        "--model", metavar="PROFILE",
        help="only small probes, on the card and on the simulated machine of that profile; with "
        "--simulated, h100-pcie5 stands for the card",
    )  # fmt: skip
    arguments = parser.parse_args()
    try:
        if arguments.prepare:
            prepare(ROOT, DEPS)
            return 0
        if arguments.model:
            build_folder = ROOT / "build" / ("release" if arguments.simulated else "gpu")
            lines = compare(
                (arguments.build or build_folder).resolve(), arguments.model,
                "h100-pcie5" if arguments.simulated else None, Clock(),
            )  # fmt: skip
            print("\n".join(lines))
            return 0
        return check(arguments.simulated, arguments.build, arguments.output)
    except (CheckError, MissingSourceError) as error:
        print(f"gpu_check: error: {error}", file=sys.stderr)
        return 1


def check(simulated: bool, finished_build: Path | None, output: Path | None) -> int:
    clock = Clock()
    started = time.monotonic()
    if simulated:
        place = Place(True, (finished_build or ROOT / "build" / "release").resolve())
        output = output or Path(tempfile.mkdtemp(prefix="gpu-check-"))
    else:
        lines = missing()
        for line in lines:
            say(f"missing: {line}")
        if lines:
            return 1
        place = Place(False, (finished_build or ROOT / "build" / "gpu").resolve())
        output = output or ROOT / "docs" / "measurements"
        if finished_build is None:
            build(place, clock)
            say(f"build: done, {time.monotonic() - started:.0f} s")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        one = Check(place, clock, Path(folder))
        one.run()
        one.write(output)
    for line in one.failures:
        say(f"FAILED: {line}")
    say(f"{len(one.failures)} failed, {time.monotonic() - started:.0f} s")
    return 1 if one.failures else 0
