"""Measures evictions to another device over a link that is faster than the host's.

Some programs run as in live.py, on a machine with NVLink: once with one device,
and once with two, of which they use only the first. The second device has as much memory, all free.

`python -m bench.oversubscription.peers` prints only these figures.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console

from bench.oversubscription import live

MACHINE = "h100-sxm-nvlink"
WORKLOADS = ("recommender", "generation")
TIMES = 1.5
_POLICY = "auto"


def speedup(alone: live.LiveRun, beside: live.LiveRun) -> float:
    """Returns the speed-up of a step through the other device. Refuses runs with different results,
    and runs that did not use the other device.
    """
    if alone.results != beside.results:
        raise RuntimeError(f"{alone.workload} has other results with a second device")
    if beside.of_a_step("migrated_bytes_between_devices") == 0:
        raise RuntimeError(f"no page of {alone.workload} has left to the other device")
    return alone.of_a_step("now_ns") / beside.of_a_step("now_ns")


def measure() -> dict[str, Any]:
    """Returns the part of oversubscription.json about other devices."""
    found = {}
    for workload in WORKLOADS:
        enough = live.run(workload, _POLICY, 0, live.ENOUGH_MIB, MACHINE)
        capacity_mib = live.capacity_for(enough.managed_bytes, TIMES)
        alone, beside = (
            live.run(workload, _POLICY, TIMES, capacity_mib, MACHINE, devices) for devices in (1, 2)
        )
        found[workload] = {
            "speedup": speedup(alone, beside),
            "resident_ns": enough.of_a_step("now_ns"),
            "host_ns": alone.of_a_step("now_ns"),
            "peer_ns": beside.of_a_step("now_ns"),
            "peer_bytes": beside.of_a_step("migrated_bytes_between_devices"),
        }
    return {
        "peer_speedup": min(float(each["speedup"]) for each in found.values()),
        "peer_detail": found,
    }


if __name__ == "__main__":
    Console().print_json(data=measure())
