#include "runtime/counting_runtime.hpp"

namespace uvm {

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

#define UVM_CALL(constant, name, parameters, arguments)   \
  RuntimeStatus CountingRuntime::name parameters const {  \
    return counted(RuntimeCall::constant).name arguments; \
  }
#define UVM_COUNTED_AS UVM_CALL
#include "runtime/calls.def"

}  // namespace uvm
