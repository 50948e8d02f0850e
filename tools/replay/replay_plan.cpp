#include "tools/replay/replay_plan.hpp"

#include <map>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace uvm::replay {
namespace {

class Planner {
 public:
  explicit Planner(const Trace& trace) : trace_(trace) {
    plan_.devices = static_cast<int>(trace.devices.size());
  }

  ReplayPlan plan() {
    for (at_ = 0; at_ < trace_.events.size(); ++at_) add(trace_.events[at_]);
    return std::move(plan_);
  }

 private:
  void add(const TraceEvent& event) {
    switch (event.kind) {
      case TraceKind::kAllocate:
        if (slots_.contains(event.address)) add_known(ReplayKind::kFree, event);
        push(allocation(event, ReplayKind::kAllocate), take_slot(event.address));
        break;
      case TraceKind::kFailure:
        // Failures without a memory kind come from the driver and depend on the target.
        if (event.facade != kNoFacade) push(allocation(event, ReplayKind::kAllocateFailed), 0);
        break;
      case TraceKind::kFree:
        add_known(ReplayKind::kFree, event);
        break;
      case TraceKind::kUse:
        add_known(ReplayKind::kUse, event);
        break;
      case TraceKind::kMove:
        add_known(ReplayKind::kMove, event);
        break;
      case TraceKind::kMark:
        plan_.marks.push_back(plan_.operations.size());
        break;
      default:
        break;
    }
  }

  ReplayOperation allocation(const TraceEvent& event, ReplayKind kind) {
    if (event.facade == kNoFacade || event.device < 0) {
      throw std::invalid_argument(
          fmt::format("event {}: an allocation without facade or device", at_));
    }
    ReplayOperation operation;
    operation.kind = kind;
    operation.size_bytes = event.size_bytes;
    operation.facade = event.facade;
    operation.device = event.device;
    operation.stream = stream_number(event.device, event.stream);
    return operation;
  }

  void add_known(ReplayKind kind, const TraceEvent& event) {
    auto found = slots_.find(event.address);
    if (found == slots_.end()) {
      ++plan_.unknown_blocks;
      return;
    }
    const std::uint32_t slot = found->second;
    ReplayOperation operation;
    operation.kind = kind;
    if (kind == ReplayKind::kFree) {
      free_slots_.push_back(slot);
      slots_.erase(found);
    } else {
      operation.device = event.device;
      operation.place = event.place;
      // A move's stream belongs to its source or destination device.
      const int device = kind == ReplayKind::kMove && event.place >= 0 ? event.place : event.device;
      operation.stream = stream_number(device < 0 ? 0 : device, event.stream);
    }
    push(operation, slot);
  }

  void push(ReplayOperation operation, std::uint32_t slot) {
    operation.slot = slot;
    plan_.operations.push_back(operation);
    plan_.events.push_back(at_);
  }

  std::uint32_t take_slot(std::uint64_t address) {
    if (free_slots_.empty()) free_slots_.push_back(static_cast<std::uint32_t>(plan_.slots++));
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[address] = slot;
    return slot;
  }

  std::int32_t stream_number(int device, std::uint64_t handle) {
    auto [found, added] =
        streams_.try_emplace({device, handle}, static_cast<std::int32_t>(streams_.size()));
    if (added) plan_.streams.push_back({device, handle});
    return found->second;
  }

  const Trace& trace_;
  std::size_t at_ = 0;
  ReplayPlan plan_;
  std::unordered_map<std::uint64_t, std::uint32_t> slots_;  // slots by live address
  std::vector<std::uint32_t> free_slots_;
  std::map<std::pair<int, std::uint64_t>, std::int32_t> streams_;
};

}  // namespace

ReplayPlan make_plan(const Trace& trace) {
  return Planner(trace).plan();
}

}  // namespace uvm::replay
