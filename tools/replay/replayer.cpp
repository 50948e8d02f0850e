#include "tools/replay/replayer.hpp"

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace uvm::replay {
namespace {

Place place_of(std::int16_t traced) {
  if (traced >= 0) return Place::device(traced);
  return traced == kHostPlace ? Place::host() : Place::nowhere();
}

std::string_view to_string(ReplayKind kind) {
  switch (kind) {
    case ReplayKind::kAllocate:
    case ReplayKind::kAllocateFailed:
      return "allocation";
    case ReplayKind::kFree:
      return "free";
    case ReplayKind::kUse:
      return "use";
    case ReplayKind::kMove:
      return "move";
  }
  return "operation";
}

}  // namespace

Replayer::Replayer(const ReplayPlan& plan, ReplayTarget& target) : plan_(plan), target_(target) {
  target_.prepare(plan_.streams);
}

ReplayOutcome Replayer::run(const ReplayOptions& options) {
  options_ = options;
  outcome_ = {};
  outcome_.operations = plan_.operations.size();
  live_ = {};
  blocks_.assign(plan_.slots + 1, nullptr);  // slot 0 exists even if no request succeeded
  const auto start = std::chrono::steady_clock::now();
  if (options.check || options.compare_failures) {
    replay<true>();
  } else {
    replay<false>();
  }
  outcome_.duration = std::chrono::steady_clock::now() - start;
  free_remaining();
  return std::move(outcome_);
}

void Replayer::free_remaining() {
  for (void* block : blocks_) {
    if (block == nullptr || target_.free(block) || !options_.check) continue;
    mismatch(plan_.operations.size() - 1, "the free of a block that the trace leaves is refused");
  }
}

template <bool Check>
void Replayer::replay() {
  for (std::size_t index = 0; index < plan_.operations.size(); ++index) {
    const ReplayOperation& operation = plan_.operations[index];
    void*& block = blocks_.data()[operation.slot];
    [[maybe_unused]] bool taken = true;
    switch (operation.kind) {
      case ReplayKind::kAllocate:
        block = allocate(operation);
        if (block == nullptr && operation.size_bytes != 0) ++outcome_.failed_allocations;
        if constexpr (Check) check_block(index, block);
        break;
      case ReplayKind::kAllocateFailed: {
        void* unexpected = allocate(operation);
        outcome_.failed_allocations += unexpected == nullptr;
        if constexpr (Check) check_outcome(index, unexpected != nullptr);
        if (unexpected != nullptr) taken = target_.free(unexpected);
        break;
      }
      case ReplayKind::kFree:
        if (block == nullptr) break;
        if constexpr (Check) live_.remove(reinterpret_cast<std::uintptr_t>(block));
        taken = target_.free(std::exchange(block, nullptr));
        break;
      case ReplayKind::kUse:
        if (block != nullptr) taken = target_.use(block, operation.stream);
        break;
      case ReplayKind::kMove:
        if (block == nullptr) break;
        taken = target_.move(block, place_of(operation.device), place_of(operation.place),
                             operation.stream);
        break;
    }
    if constexpr (Check) check_taken(index, taken);
  }
}

void Replayer::check_taken(std::size_t index, bool taken) {
  if (taken || !options_.check) return;
  const ReplayKind kind = plan_.operations[index].kind;
  if (kind == ReplayKind::kAllocateFailed) {
    mismatch(index, "the free of a block that the trace did not get is refused");
  } else {
    mismatch(index, fmt::format("a {} is refused", to_string(kind)));
  }
}

void* Replayer::allocate(const ReplayOperation& operation) {
  return target_.allocate(static_cast<Facade>(operation.facade), operation.device,
                          operation.size_bytes, operation.stream);
}

void Replayer::check_block(std::size_t index, void* block) {
  const std::size_t size_bytes = plan_.operations[index].size_bytes;
  check_outcome(index, block != nullptr || size_bytes == 0);
  if (!options_.check || block == nullptr) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(block);
  if (auto other = live_.add(begin, size_bytes)) {
    mismatch(index,
             fmt::format("a block of {} bytes at {:#x} overlaps a live one of {} bytes at {:#x}",
                         size_bytes, begin, other->size_bytes, other->begin));
  }
}

void Replayer::check_outcome(std::size_t index, bool succeeded) {
  const ReplayOperation& operation = plan_.operations[index];
  const bool expected = operation.kind == ReplayKind::kAllocate;
  if (!options_.compare_failures || succeeded == expected) return;
  mismatch(index,
           fmt::format("a request of {} bytes {} here and {} in the trace", operation.size_bytes,
                       succeeded ? "succeeds" : "fails", expected ? "succeeded" : "failed"));
}

void Replayer::mismatch(std::size_t index, std::string text) {
  ++outcome_.mismatch_count;
  if (outcome_.mismatches.size() < kMostMismatches) {
    outcome_.mismatches.push_back({plan_.events[index], std::move(text)});
  }
}

}  // namespace uvm::replay
