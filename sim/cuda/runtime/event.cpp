// Events.
#include "sim/api/graphs.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

constexpr double kNsPerMs = 1e6;

cudaError_t create(int device, cudaEvent_t* out, unsigned flags) {
  const bool timing = (flags & cudaEventDisableTiming) == 0;
  if (out == nullptr || (flags & ~kEventFlags) != 0) return fail(cudaErrorInvalidValue);
  if ((flags & cudaEventInterprocess) != 0 && timing) return fail(cudaErrorInvalidValue);
  *out = static_cast<cudaEvent_t>(machine().streams().create_event(device, flags, timing));
  return cudaSuccess;
}

}  // namespace

RT_API cudaEventCreate(cudaEvent_t* event) {
  RT_ENTER_DEVICE;
  return create(device, event, 0);
}

RT_API cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  RT_ENTER_DEVICE;
  return create(device, event, flags);
}

RT_API cudaEventDestroy(cudaEvent_t event) {
  RT_ENTER_DEVICE;
  return finish(machine().streams().destroy_event(event));
}

RT_API cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().streams().record_event(device, event, stream));
}

RT_API cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  RT_ENTER_DEVICE;
  EventScope scope{};
  const Status status = check_event_flags(flags, &scope);
  if (status != Status::kOk) return finish(status);
  return finish(machine().streams().record_event(device, event, stream, scope));
}

RT_API cudaEventQuery(cudaEvent_t event) {
  RT_ENTER_DEVICE;
  return finish(machine().streams().query_event(event));
}

RT_API cudaEventSynchronize(cudaEvent_t event) {
  RT_ENTER_DEVICE;
  return finish(machine().streams().wait_for_event(event));
}

RT_API cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  RT_ENTER_DEVICE;
  if (milliseconds == nullptr) return fail(cudaErrorInvalidValue);
  std::int64_t nanoseconds = 0;
  const Status status = machine().streams().elapsed(from, to, &nanoseconds);
  if (status == Status::kOk)
    *milliseconds = static_cast<float>(static_cast<double>(nanoseconds) / kNsPerMs);
  return finish(status);
}
