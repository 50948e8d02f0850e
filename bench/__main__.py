"""Measures uvmalloc beside other allocators on the simulated device.

Programs of PyTorch (build/bench/pytorch.json), its allocator alone (build/bench/pairs.json) and
below it (build/bench/engine.json); CUDA programs without it (build/any_program.json); plans,
credits and tensors on devices, with --pipelines alone (build/bench/pipelines.json); the simulated
machine beside published figures of real ones, with --machine alone (build/bench/machine.json);
programs with too little memory, with --oversubscription alone
(build/bench/oversubscription.json, and running programs in build/bench/live.json); calls of today's
CUDA, and what hints cost, with --ground alone (build/bench/ground.json); groups that sleep and
wake, with --groups alone (build/bench/groups.json). docs/internals/benchmarks.md
describes the methods. A missed target is printed as missed and is no failure. The exit code is 1 if
an allocator hands out too little memory, or the same memory twice, in a replay.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from uvmalloc.libraries import find_libraries

from bench.allocators import compare as engine
from bench.allocators.engines import NAMES
from bench.allocators.plan import FULL, QUICK, SMOKE
from bench.any_program import compare as any_program
from bench.any_program import figures as any_program_figures
from bench.ground import compare as ground
from bench.groups import compare as groups
from bench.machine import compare as machine
from bench.oversubscription import compare as oversubscription
from bench.pipelines import compare as pipelines
from bench.programs import compare as programs
from bench.torch_pairs import compare as torch_pairs
from bench.traces import committed_traces

_LEVELS = {level.name: level for level in (FULL, QUICK, SMOKE)}
_PROGRAMS = {FULL.name: programs.FULL, QUICK.name: programs.QUICK, SMOKE.name: programs.SMOKE}
_ANY_PROGRAM = {
    FULL.name: any_program.FULL,
    QUICK.name: any_program.QUICK,
    SMOKE.name: any_program.SMOKE,
}
_OUTPUT = Path(__file__).resolve().parent.parent / "build" / "bench"
_PARTS = ("torch", "programs", "engine", "any-program")
_ALONE = (
    "pipelines",
    "machine",
    "oversubscription",
    "ground",
    "groups",
)  # run only by their own option


def _replay(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not name or " " in text or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"'{text}'; accepted: NAME=FILE, without blanks")
    return name, Path(path).resolve()


def _instances(text: str) -> dict[str, Path]:
    files = sorted(Path(text).glob("*.csv"))
    if not files:
        raise argparse.ArgumentTypeError(f"'{text}'; accepted: a folder of CSV files")
    return {file.name.split(".")[0]: file.resolve() for file in files}


def _checkout(text: str) -> Path:
    if not (Path(text) / "build" / "release" / "lib" / "sim").is_dir():
        raise argparse.ArgumentTypeError(f"'{text}'; accepted: a checkout that is built")
    return Path(text).resolve()


def _allocators(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"'{text}'; accepted: some of {','.join(NAMES)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--level", choices=list(_LEVELS), default=FULL.name, help="how much")
    level.add_argument(
        "--quick", dest="level", action="store_const", const=QUICK.name, help="--level quick"
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--part", choices=("all", *_PARTS, *_ALONE), default="all")
    part.add_argument(
        "--pytorch", dest="part", action="store_const", const="programs", help="--part programs"
    )
    part.add_argument(
        "--any-program", dest="part", action="store_const", const="any-program",
        help="--part any-program",
    )  # fmt: skip
    part.add_argument(
        "--pipelines", dest="part", action="store_const", const="pipelines", help="--part pipelines"
    )
    part.add_argument(
        "--machine", dest="part", action="store_const", const="machine", help="--part machine"
    )
    part.add_argument(
        "--oversubscription", dest="part", action="store_const", const="oversubscription",
        help="--part oversubscription",
    )  # fmt: skip
    part.add_argument(
        "--ground", dest="part", action="store_const", const="ground", help="--part ground"
    )
    part.add_argument(
        "--groups", dest="part", action="store_const", const="groups", help="--part groups"
    )
    parser.add_argument("--allocators", type=_allocators, default=list(NAMES), metavar="A,B,...")
    parser.add_argument(
        "--replay", type=_replay, action="append", default=[], metavar="NAME=FILE",
        help="a trace with marks to replay too, plain or .xz; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions per pair with valgrind"
    )
    parser.add_argument(
        "--instances", type=_instances, default={}, metavar="FOLDER",
        help="CSV files of packing problems for --pipelines, as MiniMalloc's benchmarks have them",
    )  # fmt: skip
    parser.add_argument(
        "--earlier", type=_checkout, metavar="FOLDER",
        help="a checkout with a release build, which --machine and --part engine measure too",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=_OUTPUT, metavar="FOLDER")
    parser.add_argument(
        "--umpire", metavar="FOLDER", help="a source tree of Umpire 2024.07 to build"
    )
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    level = _LEVELS[arguments.level]
    libraries = find_libraries()
    console = Console()
    parts = _PARTS if arguments.part == "all" else (arguments.part,)
    if "machine" in parts:
        machine.compare(libraries, arguments.output / "machine.json", console, arguments.earlier)
    if "oversubscription" in parts:
        file = arguments.output / "oversubscription.json"
        oversubscription.compare(libraries, file, console)
    if "ground" in parts:
        ground.compare(arguments.output / "ground.json", console)
    if "groups" in parts:
        groups.compare(arguments.output / "groups.json", console)
    if "torch" in parts and torch_pairs.library(libraries).is_file():
        pairs_file = arguments.output / "pairs.json"
        torch_pairs.compare(libraries, level.rounds, pairs_file, console)
    if "programs" in parts and torch_pairs.library(libraries).is_file():
        programs_file = arguments.output / "pytorch.json"
        programs.compare(libraries, _PROGRAMS[level.name], programs_file, console)
    if "any-program" in parts:
        file = arguments.output.parent / any_program_figures.FILE.name
        any_program.compare(libraries, _ANY_PROGRAM[level.name], file, console)
    if "pipelines" in parts:
        file = arguments.output / "pipelines.json"
        pipelines.compare(libraries, arguments.instances, file, console)
    if "engine" in parts:
        wrong = engine.compare(
            libraries,
            level,
            arguments.allocators,
            committed_traces() | dict(arguments.replay),
            arguments.instructions,
            arguments.output / "engine.json",
            console,
            arguments.earlier,
        )
        if wrong:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
