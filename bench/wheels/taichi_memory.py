"""Taichi: an array on the device. Taichi copies arrays with kernels."""

import numpy
import taichi

taichi.init(arch=taichi.cuda, log_level=taichi.WARN)
numbers = numpy.arange(100_000, dtype=numpy.float32)
array = taichi.ndarray(taichi.f32, numbers.size)
array.from_numpy(numbers)
assert numpy.array_equal(array.to_numpy(), numbers)
print("right")
