// Events.
#include "sim/api/graphs.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

RT_API cudaEventCreate(cudaEvent_t* event) {
  RT_ENTER_DEVICE;
  return finish(create_event(device, 0, kEventFlags, out_of(event)));
}

RT_API cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  RT_ENTER_DEVICE;
  return finish(create_event(device, flags, kEventFlags, out_of(event)));
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
  return finish(elapsed(from, to, milliseconds));
}
