"""The driver through cuda.bindings: device, pinned, pooled and managed memory, copies and streams.

Each step allocates and frees everything. The argument is the number of steps.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from typing import Any

from cuda.bindings import driver

MIB = 1 << 20


def check(result: tuple[Any, ...]) -> Any:
    error, *values = result
    assert error == driver.CUresult.CUDA_SUCCESS, driver.cuGetErrorName(error)
    return values[0] if len(values) == 1 else values


def host(pointer: Any) -> int:
    return int(pointer)


check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
event = check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
for step in range(int(sys.argv[1])):
    plain = check(driver.cuMemAlloc(MIB))
    pooled = check(driver.cuMemAllocAsync(MIB, stream))
    second = check(driver.cuMemAllocAsync(MIB, stream))
    pinned = check(driver.cuMemAllocHost(MIB))
    pitched, pitch = check(driver.cuMemAllocPitch(1000, 100, 4))
    managed = check(driver.cuMemAllocManaged(4096, 1)) if step == 0 else None
    ctypes.memset(host(pinned), step % 251, MIB)
    check(driver.cuMemcpyHtoDAsync(plain, host(pinned), MIB, stream))
    check(driver.cuMemcpyDtoDAsync(pooled, plain, MIB, stream))
    check(driver.cuMemcpyDtoDAsync(second, pooled, MIB, stream))
    check(driver.cuMemsetD8Async(second, 7, MIB // 2, stream))
    check(driver.cuEventRecord(event, stream))
    check(driver.cuEventSynchronize(event))
    ctypes.memset(host(pinned), 0, MIB)
    check(driver.cuMemcpyDtoH(host(pinned), second, MIB))
    base, size_bytes = check(driver.cuMemGetAddressRange(int(plain) + 100))
    kind = check(
        driver.cuPointerGetAttribute(
            driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, plain
        )
    )
    print(
        step,
        hashlib.sha256(ctypes.string_at(host(pinned), MIB)).hexdigest()[:16],
        int(base) == int(plain),
        size_bytes,
        pitch >= 1000,
        kind,
    )
    if managed is not None:
        check(driver.cuMemFree(managed))
    check(driver.cuMemFree(plain))
    check(driver.cuMemFree(pitched))
    check(driver.cuMemFreeAsync(pooled, stream))
    check(driver.cuMemFreeAsync(second, stream))
    check(driver.cuMemFreeHost(pinned))
check(driver.cuStreamDestroy(stream))
check(driver.cuEventDestroy(event))
check(driver.cuCtxSynchronize())
