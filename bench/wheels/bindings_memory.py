"""cuda.bindings.runtime: device, managed and stream-ordered memory, copies and fills."""

import numpy
from cuda.bindings import runtime


def checked(answer: tuple) -> object:
    error, *values = answer
    assert error == runtime.cudaError_t.cudaSuccess, error
    return values[0] if values else None


KIND = runtime.cudaMemcpyKind
numbers = numpy.arange(100_000, dtype=numpy.float32)
back = numpy.zeros_like(numbers)
stream = checked(runtime.cudaStreamCreate())
blocks = (
    checked(runtime.cudaMalloc(numbers.nbytes)),
    checked(runtime.cudaMallocManaged(numbers.nbytes, runtime.cudaMemAttachGlobal)),
    checked(runtime.cudaMallocAsync(numbers.nbytes, stream)),
)
for block in blocks:
    back[:] = 0
    up, down = KIND.cudaMemcpyHostToDevice, KIND.cudaMemcpyDeviceToHost
    checked(runtime.cudaMemcpy(block, numbers.ctypes.data, numbers.nbytes, up))
    checked(runtime.cudaMemcpyAsync(back.ctypes.data, block, back.nbytes, down, stream))
    checked(runtime.cudaStreamSynchronize(stream))
    assert numpy.array_equal(back, numbers)
    checked(runtime.cudaMemset(block, 0, numbers.nbytes))
    checked(runtime.cudaFree(block))
print("right")
