"""Finds the allocators that this build can measure, and starts their programs.

To add one, write an adapter and an `engine_NAME.cpp` beside this file, and name it in DRIVEN.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from uvmalloc._cli.environment import Machine, on_simulated_device, without_uvmalloc
from uvmalloc.libraries import Libraries

from bench.environment import clean_environment

OURS = "uvmalloc"
EARLIER = "uvmalloc-earlier"  # of an earlier checkout
TORCH = "pytorch"
JEMALLOC = "jemalloc"
_NEWEST_MINOR = "2.15"
NEWEST_TORCH = f"{TORCH}-{_NEWEST_MINOR}"
_EXPANDABLE = "-expandable"  # the end of the name of a torch with expandable segments
TORCHES = tuple(name + end for name in (TORCH, NEWEST_TORCH) for end in ("", _EXPANDABLE))
DRIVEN = (OURS, EARLIER, *TORCHES, "cub", "rmm", "umpire")
# jemalloc is a reference for pairs of small blocks, not an allocator of device memory.
NAMES = (*DRIVEN, JEMALLOC)

# Virtual: the stand-in's memory costs nothing until it is touched, and no workload touches it. This
# is enough for 10,000 blocks of up to 64 MiB, however an allocator rounds.
CAPACITY_BYTES = 256 << 30

_WHY_ABSENT = {
    OURS: "not built: scripts/build",
    EARLIER: "no earlier checkout given: scripts/bench --earlier FOLDER",
    JEMALLOC: "not built: scripts/build",
    **dict.fromkeys(
        TORCHES, f"not built for this torch: scripts/setup, scripts/setup {_NEWEST_MINOR}"
    ),
    "cub": "no CCCL headers were found when this build was configured",
    "rmm": "not built: scripts/build",
    "umpire": "no source tree given: scripts/bench --umpire PATH",
}
_TORCH_SERVER = Path(__file__).resolve().parent / "torch_server.py"
_NEWEST_PYTHON = Path(__file__).resolve().parents[2] / f"build/venv-{_NEWEST_MINOR}/bin/python"


@dataclass(frozen=True)
class Program:
    """The program or module that measures an allocator."""

    allocator: str
    command: tuple[str, ...]
    environment: dict[str, str]


def find_programs(
    libraries: Libraries, earlier: Path | None = None
) -> tuple[dict[str, Program], dict[str, str]]:
    """Returns the available programs by allocator, and the reasons why others are missing.

    `earlier`: a checkout with a release build.
    """
    environment = engine_environment(libraries)
    found: dict[str, Program] = {}
    for allocator in NAMES:
        own = dict(environment)
        if allocator in TORCHES:  # a module for each torch, loaded by its Python
            newest = allocator.startswith(NEWEST_TORCH)
            python = _NEWEST_PYTHON if newest else Path(sys.executable)
            minor = _NEWEST_MINOR if newest else metadata.version("torch").rpartition(".")[0]
            file = libraries.folder / f"libuvmalloc_bench_engine_torch_{minor.replace('.', '_')}.so"
            command = (str(python), str(_TORCH_SERVER), str(file))
            if allocator.endswith(_EXPANDABLE):
                own["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        else:
            build = libraries.folder.parent
            if allocator == EARLIER:
                if earlier is None:
                    continue
                build = earlier / "build" / "release"
            name = OURS if allocator == EARLIER else allocator
            file = build / "bin" / f"bench_engine_{name}"
            command = (str(file),)
        if file.is_file() and Path(command[0]).is_file():
            found[allocator] = Program(allocator, command, own)
    return found, {name: _WHY_ABSENT[name] for name in NAMES if name not in found}


def engine_environment(libraries: Libraries) -> dict[str, str]:
    """Returns the environment of `uvmalloc sim --native`, without the developer's settings. All
    allocators get the same.
    """
    machine = Machine(devices=1, capacity_bytes=CAPACITY_BYTES)
    simulated = on_simulated_device(clean_environment(), libraries, machine, None)
    environment = without_uvmalloc(simulated)
    environment.pop("UVMSIM_KERNELS", None)  # no kernels run
    return environment
