"""Checks the protocol of pipelines/credits/credits.hpp with spin, in every order of its steps.

    check_model.py [--json] [--break] [--tensors N]

Up to four actors, in a line and as a diamond, each with one to three slots per register, pass on
N tensors (default: 2). The exit code is 0 if spin finds no error and stores more than 10,000
states in all. `--break` checks a protocol that gives slots back too early: then the exit code is
0 if spin finds an error.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("credits.pml")
SHAPES = ("ACTORS=2", "ACTORS=3", "ACTORS=4", "DIAMOND")
QUOTAS = (1, 2, 3)
LEAST_STATES = 10_000
# A slot is free although one of its two consumers still reads it.
BROKEN = ("(to2 == NONE -> 1 : 2)", "1")


@dataclass(frozen=True)
class Checked:
    shape: str
    quota: int
    states: int
    errors: int


def run(command: list[str], folder: Path) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def check(model: str, shape: str, quota: int, tensors: int) -> Checked:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.pml").write_text(model)
        options = [f"-D{shape}", f"-DQUOTA={quota}", f"-DTENSORS={tensors}"]
        run(["spin", *options, "-a", "model.pml"], folder)
        run(["cc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], folder)
        said = run(["./pan", "-m1000000"], folder)
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\d+) states, stored", said)
    if errors is None or states is None or "Search not completed" in said.split("errors:")[1]:
        sys.exit(f"the checker said something else:\n{said}")
    return Checked(shape, quota, int(states[1]), int(errors[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--break", dest="is_broken", action="store_true")
    parser.add_argument("--tensors", type=int, default=2, help="how many are handed on")
    arguments = parser.parse_args()
    if shutil.which("spin") is None:
        sys.exit("spin is not on the path; scripts/setup installs it")
    model = MODEL.read_text()
    if arguments.is_broken:
        if BROKEN[0] not in model:
            sys.exit("the model has changed: --break does not fit it any more")
        found = [check(model.replace(*BROKEN), "DIAMOND", 1, arguments.tensors)]
    else:
        found = [
            check(model, shape, quota, arguments.tensors) for shape in SHAPES for quota in QUOTAS
        ]
    states, errors = (sum(getattr(one, key) for one in found) for key in ("states", "errors"))
    figures = {"states": states, "errors": errors, "configurations": [asdict(one) for one in found]}
    if arguments.json:
        print(json.dumps(figures, indent=1))
    else:
        print(f"{len(found)} configurations, {states} states, {errors} errors")
    if arguments.is_broken:
        return 0 if errors > 0 else 1
    return 0 if errors == 0 and states > LEAST_STATES else 1


if __name__ == "__main__":
    sys.exit(main())
