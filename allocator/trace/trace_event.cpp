#include "allocator/trace/trace_event.hpp"

namespace uvm {

std::string_view to_string(TraceKind kind) {
  switch (kind) {
    case TraceKind::kAllocate:
      return "allocate";
    case TraceKind::kFree:
      return "free";
    case TraceKind::kMove:
      return "move";
    case TraceKind::kAdvise:
      return "advise";
    case TraceKind::kPrefetch:
      return "prefetch";
    case TraceKind::kDiscard:
      return "discard";
    case TraceKind::kUse:
      return "use";
    case TraceKind::kStream:
      return "stream";
    case TraceKind::kFailure:
      return "failure";
    case TraceKind::kMark:
      return "mark";
    case TraceKind::kKernel:
      return "kernel";
    case TraceKind::kTouch:
      return "touch";
    case TraceKind::kSignal:
      return "signal";
    case TraceKind::kWait:
      return "wait";
    case TraceKind::kSite:
      return "site";
  }
  return "unknown";
}

}  // namespace uvm
