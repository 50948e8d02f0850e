// A DeviceRuntime over a table of operations that a program supplies (uvmalloc_runtime.h). It owns
// a copy of the table. The program owns the table's context and keeps this context alive. Optional
// groups that the table lacks have defaults: hints succeed without a call, a discard is not
// supported, no stream is captured, and every device has its context.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <uvmalloc/uvmalloc_runtime.h>
#include <uvmalloc/device_runtime.hpp>

namespace uvm::external {

class ExternalRuntime final : public DeviceRuntime {
 public:
  // The table must pass fault_of() (operations_table.hpp). Returns nullptr, and one line in
  // `*reason`, if the runtime cannot be initialised or has no device.
  static std::unique_ptr<DeviceRuntime> open(const std::string& name,
                                             const uvmalloc_runtime_operations& operations,
                                             void* context, std::string* reason);

  std::string_view name() const override { return name_; }
  int device_count() const override { return devices_; }
  bool has_context(int device) const override;
#define UVM_CALL(constant, name, parameters, arguments) \
  RuntimeStatus name parameters const override;
#define UVM_ABSENT(...)
#include "runtime/calls.def"

 private:
  ExternalRuntime(std::string name, const uvmalloc_runtime_operations& operations, void* context)
      : name_(std::move(name)), operations_(operations), context_(context) {}

  RuntimeStatus status(int code, std::string_view call) const;
  bool has_device(int device) const {
    return device >= 0 && device < devices_;
  }
  // Calls the operation if the device exists; otherwise returns RuntimeError::kNoDevice.
  template <class... Parameters, class... Arguments>
  RuntimeStatus call(std::string_view name, int (*operation)(void*, int, Parameters...), int device,
                     Arguments... arguments) const;

  std::string name_;
  uvmalloc_runtime_operations operations_;
  void* context_;
  int devices_ = 0;
};

// Registers a runtime with a copy of this table. Returns an empty string, or one line that says why
// the runtime is refused.
std::string add_external_runtime(const char* name, const uvmalloc_runtime_operations* operations,
                                 void* context);

}  // namespace uvm::external
