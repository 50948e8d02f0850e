// Events.
#include "sim/api/graphs.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

constexpr unsigned kFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
constexpr double kNsPerMs = 1e6;

CUresult elapsed(float* milliseconds, CUevent from, CUevent to) {
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::int64_t nanoseconds = 0;
  const Status status = machine().streams().elapsed(from, to, &nanoseconds);
  if (status == Status::kOk)
    *milliseconds = static_cast<float>(static_cast<double>(nanoseconds) / kNsPerMs);
  return finish(status);
}

}  // namespace

CU_API cuEventCreate(CUevent* event, unsigned flags) {
  CU_ENTER_CONTEXT;
  const bool timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  if (event == nullptr || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && timing) return CUDA_ERROR_INVALID_VALUE;
  *event = static_cast<CUevent>(machine().streams().create_event(device, flags, timing));
  return CUDA_SUCCESS;
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
  return elapsed(milliseconds, from, to);
}

CU_API cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
  CU_ENTER;
  return elapsed(milliseconds, from, to);
}
