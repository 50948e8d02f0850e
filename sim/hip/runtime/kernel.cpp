// Kernels: accepts the registrations of a program's start-up code; no kernel can run.
#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

RT_API_AS(void**) __hipRegisterFatBinary(const void*) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
  static void* handle[1] = {nullptr};
  return handle;
}

RT_API_AS(void) __hipUnregisterFatBinary(void**) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
}

RT_API_AS(void)
__hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*, void*,
                      int*) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
}

RT_API_AS(void) __hipRegisterVar(void**, void*, char*, char*, int, size_t, int, int) {
  UVMSIM_CALL_RECORD;
  call_record.enter();
}

RT_API hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t) {
  RT_ENTER_DEVICE;
  (void)device;
  call_record.not_implemented();
  return fail(hipErrorNoBinaryForGpu);
}
