"""Compares programs that move their own weights with the same programs under uvmalloc.

A program with offloaded weights (offload_here.py) keeps as many layers on the device as fit, and
copies the others one layer ahead. It runs with torch's own allocators, on the same simulated
machine. The ordinary program runs under uvmalloc, on a device with the memory that PyTorch has
reserved for the other one. Both have the same results.

`python -m bench.oversubscription.offload [--machine NAME]` prints only these figures.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from bench.oversubscription import live

# The layers of each program that stay on the device, of 20 and 12. With the fewest, there are only
# the two buffers; else about 1 / 2 and 1 / 1.25 of the memory is there.
RESIDENT = {"streaming": (0, 8, 14), "dense": (0, 3, 7)}


def speedup(offloaded: live.LiveRun, ours: live.LiveRun) -> float:
    """Returns the speed-up of uvmalloc's steps. Refuses runs with different results."""
    if offloaded.results != ours.results:
        raise RuntimeError(f"{ours.workload} has other results with its weights on the host")
    return offloaded.of_a_step("now_ns") / ours.of_a_step("now_ns")


def _case(program: str, resident: int, machine: str) -> dict[str, Any]:
    module = ("bench.oversubscription.offload_here", program, str(resident))
    module = (*module, str(live.steps_of(program)))
    printed = live.run_module(module, None, live.ENOUGH_MIB, machine)
    capacity_mib = live.capacity_for(printed["reserved_bytes"], 1)
    offloaded = live.LiveRun(program, "native", 0, capacity_mib, 0, printed["steps"])
    ours = live.run(program, "auto", 0, capacity_mib, machine)
    return {
        "program": program,
        "resident_layers": resident,
        "capacity_mib": capacity_mib,
        "offload_ns": offloaded.of_a_step("now_ns"),
        "auto_ns": ours.of_a_step("now_ns"),
        "speedup": speedup(offloaded, ours),
    }


def measure(machine: str = live.MACHINE) -> dict[str, Any]:
    """Returns the part of oversubscription.json about programs that move their own weights."""
    cases = [
        _case(program, resident, machine)
        for program, numbers in RESIDENT.items()
        for resident in numbers
    ]
    return {"speedup_over_offload": min(case["speedup"] for case in cases), "offload_runs": cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default=live.MACHINE, help="as of `uvmalloc sim`")
    Console().print_json(data=measure(parser.parse_args().machine))


if __name__ == "__main__":
    main()
