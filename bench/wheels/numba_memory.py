"""numba-cuda: device, pinned and managed arrays, and copies on a stream."""

import numpy
from numba import cuda

numbers = numpy.arange(100_000, dtype=numpy.float32)
array = cuda.to_device(numbers)
assert numpy.array_equal(array.copy_to_host(), numbers)

stream = cuda.stream()
other = cuda.device_array(numbers.size, numpy.float32, stream=stream)
pinned = cuda.pinned_array(numbers.size, numpy.float32)
pinned[:] = numbers
other.copy_to_device(pinned, stream=stream)
back = cuda.pinned_array(numbers.size, numpy.float32)
other.copy_to_host(back, stream=stream)
stream.synchronize()
assert numpy.array_equal(back, numbers)

managed = cuda.managed_array(numbers.size, numpy.float32)
managed[:] = numbers
assert numpy.array_equal(managed, numbers)
print("right")
