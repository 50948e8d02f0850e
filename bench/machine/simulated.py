"""A simulated machine, driven through the runtime's and the simulator's own functions.

A process has one machine: the simulator's variables, such as UVMSIM_MACHINE, are read once.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

from bench.simulated_counters import read_counters

HOST = -1
READ, WRITE = 1, 2
BLOCK_BYTES = 2 << 20

_LOCATION_DEVICE, _LOCATION_HOST = 1, 2
_NON_BLOCKING = 1
_ATTACH_GLOBAL = 1


class _Location(Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Access(Structure):
    _fields_ = (("address", c_void_p), ("size_bytes", c_size_t), ("access", c_int))


@dataclass(frozen=True)
class Touch:
    """A range of a kernel: `access` is READ, WRITE or both."""

    address: int
    size_bytes: int
    access: int


class SimulatedMachine:
    """Device 0 of the machine named by the environment."""

    def __init__(self, stand_ins: Path) -> None:
        ctypes.CDLL(str(stand_ins / "libcuda.so.1"), ctypes.RTLD_GLOBAL)
        self._runtime = ctypes.CDLL(str(stand_ins / "libcudart.so.13"))
        self._simulator = ctypes.CDLL(str(stand_ins / "libuvmsim.so"))
        self._runtime.cudaMemPrefetchAsync.argtypes = (
            c_void_p, c_size_t, _Location, c_uint, c_void_p,
        )  # fmt: skip
        self._runtime.cudaMemAdvise.argtypes = (c_void_p, c_size_t, c_int, _Location)
        self._simulator.uvmsim_now_ns.restype = c_uint64
        self._simulator.uvmsim_kernel_ns.restype = c_uint64
        self._simulator.uvmsim_kernel_ns.argtypes = (c_uint64, c_uint64, c_int)
        self._simulator.uvmsim_kernel.argtypes = (
            c_int, c_void_p, POINTER(_Access), c_size_t, c_uint64,
        )  # fmt: skip
        self._simulator.uvmsim_set_capacity.argtypes = (c_int, c_size_t)
        self._check(self._runtime.cudaFree(None))

    @staticmethod
    def _check(error: int) -> None:
        if error != 0:
            raise RuntimeError(f"a call of the simulated machine returned error {error}")

    def set_managed_room(self, blocks: int) -> None:
        """Leaves room for `blocks` 2 MiB blocks beside the device's context."""
        wanted = blocks * BLOCK_BYTES
        capacity = wanted
        for _ in range(64):
            self._check(self._simulator.uvmsim_set_capacity(0, capacity))
            room = capacity - self.unevictable_bytes()
            if wanted <= room < wanted + BLOCK_BYTES:
                return
            capacity += wanted - room
        raise RuntimeError(f"no capacity leaves room for {blocks} blocks")

    def unevictable_bytes(self) -> int:
        used = c_size_t()
        self._check(self._simulator.uvmsim_used(0, byref(used), None))
        return used.value

    def allocate(self, size_bytes: int) -> int:
        address = c_void_p()
        self._check(
            self._runtime.cudaMallocManaged(byref(address), c_size_t(size_bytes), _ATTACH_GLOBAL)
        )
        return int(address.value or 0)

    def free(self, address: int) -> None:
        self._check(self._runtime.cudaFree(c_void_p(address)))

    def stream(self) -> int:
        stream = c_void_p()
        self._check(self._runtime.cudaStreamCreateWithFlags(byref(stream), _NON_BLOCKING))
        return int(stream.value or 0)

    def prefetch(self, address: int, size_bytes: int, location: int, stream: int) -> None:
        self._check(
            self._runtime.cudaMemPrefetchAsync(
                address, size_bytes, _location(location), 0, c_void_p(stream)
            )
        )

    def advise(self, address: int, size_bytes: int, advice: int, location: int) -> None:
        self._check(self._runtime.cudaMemAdvise(address, size_bytes, advice, _location(location)))

    def discard(self, address: int, size_bytes: int, stream: int) -> None:
        addresses, sizes = (c_void_p * 1)(address), (c_size_t * 1)(size_bytes)
        self._check(
            self._runtime.cudaMemDiscardBatchAsync(
                addresses, sizes, c_size_t(1), ctypes.c_ulonglong(0), c_void_p(stream)
            )
        )

    def kernel(self, touches: list[Touch], stream: int, duration_ns: int | None = None) -> None:
        """Runs a kernel. Without a duration, the cost model computes it from the touched bytes."""
        accesses = (_Access * len(touches))(
            *((each.address, each.size_bytes, each.access) for each in touches)
        )
        if duration_ns is None:
            duration_ns = self.kernel_ns(sum(each.size_bytes for each in touches))
        self._check(
            self._simulator.uvmsim_kernel(0, c_void_p(stream), accesses, len(touches), duration_ns)
        )

    def kernel_ns(self, size_bytes: int) -> int:
        return int(self._simulator.uvmsim_kernel_ns(size_bytes, 0, 1))

    def wait(self, stream: int | None = None) -> None:
        if stream is None:
            self._check(self._runtime.cudaDeviceSynchronize())
        else:
            self._check(self._runtime.cudaStreamSynchronize(c_void_p(stream)))

    def now_ns(self) -> int:
        return int(self._simulator.uvmsim_now_ns())

    def reset_counters(self) -> None:
        self._simulator.uvmsim_reset_counters()

    def counters(self) -> dict[str, int]:
        return read_counters(self._simulator)


def _location(location: int) -> _Location:
    if location == HOST:
        return _Location(_LOCATION_HOST, 0)
    return _Location(_LOCATION_DEVICE, location)
