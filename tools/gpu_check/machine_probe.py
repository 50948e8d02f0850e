"""Small probes of one device: rates of its memory and its links, and costs of calls, as JSON.

`machine_probe.py [SIMULATOR]` opens libcuda.so.1 and uses at most 512 MiB at a time. Times come
from the device's events. On the simulated device, SIMULATOR is its library and times are virtual.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

_MIB = 1 << 20
_SIZE_BYTES = 256 * _MIB
_BLOCK_BYTES = 2 * _MIB
_LEAST_FREE_BYTES = 4 * _SIZE_BYTES
_ROUNDS = 5
_GLOBAL, _NON_BLOCKING = 1, 1
_DEVICE, _HOST = 1, 2  # CUmemLocationType
_SET_ACCESSED_BY, _UNSET_ACCESSED_BY = 5, 6


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


_ON_DEVICE, _ON_HOST = _Location(_DEVICE, 0), _Location(_HOST, 0)


class ProbeError(Exception):
    """The reason why there are no figures, in one line."""


class Driver:
    """Device 0, through the driver's interface."""

    def __init__(self, simulator: str | None) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise ProbeError(f"there is no driver: {error}") from None
        self._now_ns: Callable[[], int] = time.perf_counter_ns
        if simulator:
            self._now_ns = ctypes.CDLL(simulator).uvmsim_now_ns
            self._now_ns.restype = c_uint64  # type: ignore[attr-defined]
        self.call("cuInit", c_uint(0))
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
        self.call("cuCtxSetCurrent", context)
        self.stream = c_void_p()
        self.call("cuStreamCreate", byref(self.stream), c_uint(_NON_BLOCKING))
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        if free.value < _LEAST_FREE_BYTES:
            raise ProbeError(f"{free.value // _MIB} MiB are free; needed: 1024 MiB")

    def call(self, name: str, *arguments: object) -> None:
        error = getattr(self._library, name)(*arguments)
        if error != 0:
            raise ProbeError(f"{name} returned error {error}")

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, c_int(256), c_int(0))
        return text.value.decode()

    def managed(self) -> c_uint64:
        address = c_uint64()
        self.call("cuMemAllocManaged", byref(address), c_size_t(_SIZE_BYTES), c_uint(_GLOBAL))
        return address

    def device(self) -> c_uint64:
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(_SIZE_BYTES))
        return address

    def free(self, address: c_uint64) -> None:
        self.call("cuMemFree_v2", address)

    def prefetch(self, address: c_uint64, location: _Location) -> None:
        self.call(
            "cuMemPrefetchAsync_v2", address, c_size_t(_SIZE_BYTES), location, c_uint(0),
            self.stream,
        )  # fmt: skip

    def fill(self, address: c_uint64) -> None:
        self.call("cuMemsetD8Async", address, ctypes.c_ubyte(1), c_size_t(_SIZE_BYTES), self.stream)

    def wait(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    def device_ns(self, work: Callable[[], None]) -> float:
        """Returns how long the work takes on the stream, in nanoseconds."""
        self.wait()
        events = (c_void_p(), c_void_p())
        for event in events:
            self.call("cuEventCreate", byref(event), c_uint(0))
        self.call("cuEventRecord", events[0], self.stream)
        work()
        self.call("cuEventRecord", events[1], self.stream)
        self.wait()
        elapsed_ms = c_float()
        self.call("cuEventElapsedTime", byref(elapsed_ms), *events)
        for event in events:
            self.call("cuEventDestroy_v2", event)
        return elapsed_ms.value * 1e6

    def host_ns(self, work: Callable[[], None]) -> float:
        self.wait()
        start = self._now_ns()
        work()
        return float(self._now_ns() - start)


def _median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(_ROUNDS))


def probe(driver: Driver) -> dict[str, float]:
    blocks = _SIZE_BYTES // _BLOCK_BYTES

    def fresh(work: Callable[[c_uint64], float]) -> float:
        memory = driver.managed()
        try:
            return work(memory)
        finally:
            driver.wait()
            driver.free(memory)

    def moved(memory: c_uint64, before: _Location, after: _Location) -> float:
        driver.prefetch(memory, before)
        return driver.device_ns(lambda: driver.prefetch(memory, after))

    def advised(memory: c_uint64) -> float:
        driver.prefetch(memory, _ON_HOST)
        size = c_size_t(_SIZE_BYTES)
        taken = driver.host_ns(
            lambda: driver.call("cuMemAdvise_v2", memory, size, c_int(_SET_ACCESSED_BY), _ON_DEVICE)
        )
        driver.call("cuMemAdvise_v2", memory, size, c_int(_UNSET_ACCESSED_BY), _ON_DEVICE)
        return taken

    source, target = driver.device(), driver.device()
    driver.fill(source)
    figures = {
        "prefetch_to_device_gb_per_s": _SIZE_BYTES
        / _median(lambda: fresh(lambda memory: moved(memory, _ON_HOST, _ON_DEVICE))),
        "prefetch_to_host_gb_per_s": _SIZE_BYTES
        / _median(lambda: fresh(lambda memory: moved(memory, _ON_DEVICE, _ON_HOST))),
        "prefetch_resident_block_us": _median(
            lambda: fresh(lambda memory: moved(memory, _ON_DEVICE, _ON_DEVICE))
        ) / blocks / 1000,
        "populate_block_us": _median(
            lambda: fresh(
                lambda memory: driver.device_ns(lambda: driver.prefetch(memory, _ON_DEVICE))
            )
        ) / blocks / 1000,
        "advice_block_us": _median(lambda: fresh(advised)) / blocks / 1000,
        "copy_inside_gb_per_s": _SIZE_BYTES
        / _median(
            lambda: driver.device_ns(
                lambda: driver.call(
                    "cuMemcpyDtoDAsync_v2", target, source, c_size_t(_SIZE_BYTES), driver.stream
                )
            )
        ),
    }  # fmt: skip
    driver.wait()
    for memory in (source, target):
        driver.free(memory)
    return figures


def main() -> int:
    try:
        driver = Driver(sys.argv[1] if len(sys.argv) > 1 else None)
        print(json.dumps({"device": driver.name(), "figures": probe(driver)}))
    except ProbeError as error:
        print(f"machine_probe: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
