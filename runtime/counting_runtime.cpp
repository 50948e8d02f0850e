#include "runtime/counting_runtime.hpp"

#include <tuple>

#include "runtime/work_range.hpp"

namespace uvm {
namespace {

const char* name_of_move(Place destination) {
  return destination.is_device() ? "prefetch" : "evict";
}

// Opens a WorkRange for a call that moves pages; the range ends with the returned object. Other
// calls get no range.
template <RuntimeCall kCall, class... Arguments>
auto range_of(const Arguments&... arguments) {
  constexpr bool kIsBatch =
      kCall == RuntimeCall::kPrefetchBatch || kCall == RuntimeCall::kDiscardAndPrefetchBatch;
  if constexpr (kCall == RuntimeCall::kPrefetch) {
    const auto all = std::tie(arguments...);  // device, address, size, destination, stream
    return WorkRange(name_of_move(std::get<3>(all)), std::get<2>(all));
  } else if constexpr (kIsBatch) {
    const std::span<const RangeMove> moves = std::get<1>(std::tie(arguments...));
    std::size_t size_bytes = 0;
    for (const RangeMove& move : moves) size_bytes += move.size_bytes;
    return WorkRange(moves.empty() ? "prefetch" : name_of_move(moves.front().destination),
                     size_bytes);
  } else {
    return std::tuple<>();
  }
}

}  // namespace

void CountingRuntime::count_in(Counters* counters) {
  for (std::size_t call = 0; call < kCallKinds; ++call) {
    (*counters)[call] += (*calls_)[call].load();
  }
  calls_ = counters;
}

CountingRuntime::Calls CountingRuntime::calls() const {
  return named(*calls_);
}

CountingRuntime::Calls CountingRuntime::named(const Counters& counters) {
  static constexpr const char* kNames[kCallKinds] = {
#define UVM_CALL(constant, name, ...) #name,
#include "runtime/calls.def"
  };
  Calls out;
  for (std::size_t call = 0; call < kCallKinds; ++call) {
    if (auto count = counters[call].load(std::memory_order_relaxed); count != 0) {
      out[kNames[call]] = count;
    }
  }
  return out;
}

// The arguments contain their own parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define UVM_CALL(constant, name, parameters, arguments)                            \
  RuntimeStatus CountingRuntime::name parameters const {                           \
    [[maybe_unused]] const auto range = range_of<RuntimeCall::constant> arguments; \
    return counted(RuntimeCall::constant).name arguments;                          \
  }
// NOLINTEND(bugprone-macro-parentheses)
#define UVM_COUNTED_AS UVM_CALL
#include "runtime/calls.def"

}  // namespace uvm
