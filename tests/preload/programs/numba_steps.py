"""numba-cuda's memory without kernels: device, pinned, mapped and managed arrays, streams and
events. The argument is the number of steps."""

from __future__ import annotations

import sys

import numpy as np
from numba import cuda

COUNT = 1 << 18
stream = cuda.stream()
event = cuda.event(timing=False)
managed = cuda.managed_array(16, np.float32)
managed[:] = 3
for step in range(int(sys.argv[1])):
    values = np.arange(COUNT, dtype=np.float32) + step
    first = cuda.to_device(values, stream=stream)
    second = cuda.device_array_like(first)
    pinned = cuda.pinned_array(COUNT, np.float32)
    mapped = cuda.mapped_array(1000, np.float32)
    mapped[:] = step
    second.copy_to_device(first, stream=stream)
    pinned[:] = 0
    second.copy_to_host(pinned, stream=stream)
    event.record(stream)
    event.synchronize()
    with cuda.pinned(values):
        cuda.to_device(values, stream=stream, to=first)
        stream.synchronize()
    part = second[: COUNT // 4].copy_to_host()
    print(step, float(pinned.sum()), float(part.sum()), float(mapped.sum()), float(managed.sum()))
    del first, second, pinned, mapped
    cuda.current_context().deallocations.clear()
free_bytes, total_bytes = cuda.current_context().get_memory_info()
print(0 < free_bytes <= total_bytes)
