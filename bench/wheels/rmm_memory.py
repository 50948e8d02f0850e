"""RMM: device buffers of a pool, of stream-ordered and of managed memory, and pinned memory."""

import numpy
import rmm

numbers = numpy.arange(100_000, dtype=numpy.float32)
for resource in (
    rmm.mr.CudaMemoryResource(),
    rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 22),
    rmm.mr.ManagedMemoryResource(),
    rmm.mr.CudaAsyncMemoryResource(),
):
    rmm.mr.set_current_device_resource(resource)
    buffer = rmm.DeviceBuffer.to_device(numbers.tobytes())
    assert buffer.tobytes() == numbers.tobytes()
    del buffer
print("right")
