"""CuPy: arrays, pinned and managed memory, pools, streams and events."""

import cupy
import numpy
from cupy.cuda import runtime

numbers = numpy.arange(100_000, dtype=numpy.float32)

array = cupy.asarray(numbers)
assert numpy.array_equal(array.get(), numbers)
assert runtime.pointerGetAttributes(array.data.ptr).device == 0

block = cupy.cuda.alloc(1 << 20)
block.memset(7, 1 << 20)
filled = numpy.zeros(1 << 20, dtype=numpy.uint8)
block.copy_to_host(filled.ctypes.data, filled.nbytes)
assert (filled == 7).all()

stream = cupy.cuda.Stream(non_blocking=True)
pinned = cupy.cuda.alloc_pinned_memory(numbers.nbytes)
staged = numpy.frombuffer(pinned, dtype=numpy.float32, count=numbers.size)
staged[:] = numbers
with stream:
    other = cupy.empty_like(array)
    other.data.copy_from_host_async(staged.ctypes.data, staged.nbytes)
event = cupy.cuda.Event()
event.record(stream)
event.synchronize()
assert numpy.array_equal(other.get(), numbers)

with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc), stream:
    assert numpy.array_equal(cupy.asarray(numbers).get(), numbers)
with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
    assert numpy.array_equal(cupy.asarray(numbers).get(), numbers)

free_bytes, total_bytes = runtime.memGetInfo()
assert 0 < free_bytes < total_bytes
cupy.get_default_memory_pool().free_all_blocks()
print("right")
