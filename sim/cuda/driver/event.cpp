// Events.
#include "sim/api/graphs.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

constexpr unsigned kFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

}  // namespace

CU_API cuEventCreate(CUevent* event, unsigned flags) {
  CU_ENTER_CONTEXT;
  return finish(create_event(device, flags, kFlags, out_of(event)));
}

CU_API cuEventDestroy_v2(CUevent event) {
  CU_ENTER;
  return finish(machine().streams().destroy_event(event));
}

CU_API cuEventRecord(CUevent event, CUstream stream) {
  CU_ENTER_CONTEXT;
  return finish(machine().streams().record_event(device, event, stream));
}

CU_API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  CU_ENTER_CONTEXT;
  EventScope scope{};
  const Status status = check_event_flags(flags, &scope);
  if (status != Status::kOk) return finish(status);
  return finish(machine().streams().record_event(device, event, stream, scope));
}

CU_API cuEventQuery(CUevent event) {
  CU_ENTER;
  return finish(machine().streams().query_event(event));
}

CU_API cuEventSynchronize(CUevent event) {
  CU_ENTER;
  return finish(machine().streams().wait_for_event(event));
}

CU_API cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
  CU_ENTER;
  return finish(elapsed(from, to, milliseconds));
}

CU_API cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
  CU_ENTER;
  return finish(elapsed(from, to, milliseconds));
}
