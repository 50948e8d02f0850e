// Runtimes by name. The ones built in add themselves here; a shared object of a third party adds
// its own with a RuntimeRegistration object or add_runtime(), without rebuilding uvmalloc. All
// functions are thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/runtime/device_runtime.hpp>

namespace uvm {

// Makes a runtime, or returns nullptr and says in `*reason`, in one line, why this machine has
// none.
using RuntimeFactory = std::function<std::unique_ptr<DeviceRuntime>(std::string* reason)>;

// False, and nothing changes, where the name is taken or empty.
bool add_runtime(std::string_view name, RuntimeFactory factory);

std::vector<std::string> runtime_names();

struct RuntimeChoice {
  std::unique_ptr<DeviceRuntime> runtime;  // nullptr: none is usable
  std::string reason;                      // why not, one line; empty on success
};

// `name` is a registered name, or "auto": the first, in the order they were added, that finds a
// device.
RuntimeChoice open_runtime(std::string_view name);

struct RuntimeRegistration {
  RuntimeRegistration(std::string_view name, RuntimeFactory factory) {
    add_runtime(name, std::move(factory));
  }
};

}  // namespace uvm
