// A DeviceRuntime that counts calls and forwards them. The counters are relaxed atomics, one for
// each kind of call. This object owns the counters until count_in() replaces them.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>

#include <uvmalloc/device_runtime.hpp>

namespace uvm {

enum class RuntimeCall : std::uint8_t {
#define UVM_CALL(constant, ...) constant,
#include "runtime/calls.def"
  kEnd
};

class CountingRuntime final : public DeviceRuntime {
 public:
  explicit CountingRuntime(std::unique_ptr<DeviceRuntime> inner) : inner_(std::move(inner)) {}
  CountingRuntime(const CountingRuntime&) = delete;
  CountingRuntime& operator=(const CountingRuntime&) = delete;

  static constexpr auto kCallKinds = static_cast<std::size_t>(RuntimeCall::kEnd);
  using Counters = std::array<std::atomic<std::uint64_t>, kCallKinds>;

  // Adds the current counts to `counters`, and counts in `counters` from now on. Must be called
  // before other threads use this object. `counters` must outlive this object.
  void count_in(Counters* counters);

  // Returns the number of calls by the name of the DeviceRuntime method. Leaves out uncalled
  // methods.
  using Calls = std::map<std::string, std::uint64_t>;
  Calls calls() const;
  static Calls named(const Counters& counters);

  std::string_view name() const override { return inner_->name(); }
  int device_count() const override { return inner_->device_count(); }
  // Not counted, because these calls do no work on a device.
  bool has_context(int device) const override { return inner_->has_context(device); }
  void lose_context(int device) const override { inner_->lose_context(device); }
  void renew_context(int device) const override { inner_->renew_context(device); }
  std::chrono::nanoseconds now() const override { return inner_->now(); }
#define UVM_CALL(constant, name, parameters, arguments) \
  RuntimeStatus name parameters const override;
#define UVM_COUNTED_AS UVM_CALL
#include "runtime/calls.def"

 private:
  const DeviceRuntime& counted(RuntimeCall call) const {
    (*calls_)[static_cast<std::size_t>(call)].fetch_add(1, std::memory_order_relaxed);
    return *inner_;
  }

  std::unique_ptr<DeviceRuntime> inner_;
  mutable Counters own_calls_{};
  Counters* calls_ = &own_calls_;
};

}  // namespace uvm
