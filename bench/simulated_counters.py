"""Reads the clock and the counters of a simulated machine from its library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from uvmalloc.libraries import find_libraries

_NAMES = (
    "kernels", "managed_allocations", "managed_frees", "device_allocations", "device_frees",
    "pinned_allocations", "pinned_frees", "advice_calls", "prefetch_calls", "discard_calls",
    "copy_calls", "copy_bytes", "fault_pages_device", "fault_pages_host",
    "migrated_bytes_to_device", "migrated_bytes_to_host", "migrated_bytes_between_devices",
    "populated_bytes_device", "populated_bytes_host", "evicted_chunks", "evicted_bytes",
    "remote_access_bytes", "unimplemented_calls", "graph_launches", "faults_device",
    "speculative_pages_device", "throttles_device", "pinned_pages_device",
)  # fmt: skip


class _Counters(ctypes.Structure):
    """uvmsim_counters of include/uvmalloc/sim/uvmsim.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _NAMES)


def read_counters(simulator: ctypes.CDLL) -> dict[str, int]:
    """Returns all counters since the start of the process, by name. `simulator` is libuvmsim.so."""
    counters = _Counters()
    simulator.uvmsim_get_counters(ctypes.byref(counters))
    return {name: int(getattr(counters, name)) for name in _NAMES}


def load_simulator() -> ctypes.CDLL:
    """Loads the machine of this process, under `uvmalloc sim`."""
    simulator = ctypes.CDLL(str(find_libraries().stand_ins / "libuvmsim.so"))
    simulator.uvmsim_now_ns.restype = ctypes.c_uint64
    simulator.uvmsim_call_count.restype = ctypes.c_uint64
    return simulator


def read_machine(simulator: ctypes.CDLL) -> dict[str, int]:
    """Returns the virtual time as `now_ns`, and all counters."""
    return {"now_ns": int(simulator.uvmsim_now_ns()), **read_counters(simulator)}


def count_calls(simulator: ctypes.CDLL, names: Sequence[str]) -> int:
    """Returns how often the driver's entry points of these names were called, together."""
    return sum(int(simulator.uvmsim_call_count(name.encode())) for name in names)


def read_managed_bytes(simulator: ctypes.CDLL, device: int = 0) -> int:
    """Returns the device memory held by pages of managed memory, in bytes."""
    used, managed = ctypes.c_size_t(), ctypes.c_size_t()
    if simulator.uvmsim_used(device, ctypes.byref(used), ctypes.byref(managed)) != 0:
        raise RuntimeError(f"the simulated machine has no device {device}")
    return managed.value
