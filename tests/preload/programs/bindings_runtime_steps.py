"""The runtime through cuda.bindings: device, pinned, pooled and managed memory, copies, a batch.

Each step allocates and frees everything. The argument is the number of steps.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from typing import Any

from cuda.bindings import runtime

MIB = 1 << 20
KIND = runtime.cudaMemcpyKind.cudaMemcpyDefault


def check(result: tuple[Any, ...]) -> Any:
    error, *values = result
    assert error == runtime.cudaError_t.cudaSuccess, error
    return values[0] if len(values) == 1 else values


stream = check(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking))
attributes = runtime.cudaMemcpyAttributes()
attributes.srcAccessOrder = runtime.cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderStream
for step in range(int(sys.argv[1])):
    plain = check(runtime.cudaMalloc(2 * MIB))
    pooled = check(runtime.cudaMallocAsync(MIB, stream))
    pinned = check(runtime.cudaHostAlloc(2 * MIB, 0))
    pitched, pitch = check(runtime.cudaMallocPitch(1000, 100))
    managed = check(runtime.cudaMallocManaged(4096, 1)) if step == 0 else None
    ctypes.memset(pinned, step % 251, 2 * MIB)
    check(runtime.cudaMemsetAsync(pooled, 7, MIB, stream))
    to, source = [plain, plain + MIB], [pinned, pooled]
    check(runtime.cudaMemcpyBatchAsync(to, source, [MIB, MIB], 2, [attributes], [0], 1, stream))
    check(runtime.cudaMemcpyAsync(pinned, plain, 2 * MIB, KIND, stream))
    check(runtime.cudaStreamSynchronize(stream))
    found = check(runtime.cudaPointerGetAttributes(plain + 100))
    print(
        step,
        hashlib.sha256(ctypes.string_at(pinned, 2 * MIB)).hexdigest()[:16],
        found.device,
        pitch >= 1000,
    )
    if managed is not None:
        check(runtime.cudaFree(managed))
    check(runtime.cudaFree(plain))
    check(runtime.cudaFree(pitched))
    check(runtime.cudaFreeAsync(pooled, stream))
    check(runtime.cudaFreeHost(pinned))
check(runtime.cudaStreamDestroy(stream))
check(runtime.cudaDeviceSynchronize())
