// Runtimes by name. Built-in runtimes add themselves here. A third party adds its own without
// rebuilding uvmalloc: in C by a table of operations (uvmalloc_runtime.h), in C++ with a
// RuntimeRegistration object or add_runtime(). All functions are thread-safe.
//
// A name with a slash is the path of a shared object with such a table. The first query about the
// name opens the object.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/device_runtime.hpp>

namespace uvm {

// Makes a runtime. Returns nullptr, and the reason in one line in `*reason`, if this machine has no
// such device.
using RuntimeFactory = std::function<std::unique_ptr<DeviceRuntime>(std::string* reason)>;

// Queries about a runtime before it is opened. They initialise nothing, and are called often.
struct RuntimeQuestions {
  // Whether the program has initialised the vendor's driver, so that opening the runtime would not
  // be the first to do so.
  std::function<bool()> is_initialized;
  // Whether this machine has the vendor's driver. May load it.
  std::function<bool()> is_present;
};

// Adds a runtime. Returns false and changes nothing if the name is taken, empty, "auto" or a path.
// A runtime without queries counts as present, and as initialised once a program names it.
bool add_runtime(std::string_view name, RuntimeFactory factory, RuntimeQuestions questions = {});

// Whether open_runtime(name) would initialise nothing that the program has not initialised itself.
// For "auto": whether the program has initialised the driver of any runtime.
bool is_runtime_initialized(std::string_view name);

// Whether open_runtime(name) may find a device. Initialises nothing.
bool is_runtime_present(std::string_view name);

std::vector<std::string> runtime_names();

struct RuntimeChoice {
  std::unique_ptr<DeviceRuntime> runtime;  // nullptr: none is usable
  std::string reason;                      // why not, one line; empty on success
};

// Opens a runtime. `name` is a registered name, a path, or "auto": the first runtime, in the order
// of their addition, that finds a device.
RuntimeChoice open_runtime(std::string_view name);

struct RuntimeRegistration {
  RuntimeRegistration(std::string_view name, RuntimeFactory factory) {
    add_runtime(name, std::move(factory));
  }
};

}  // namespace uvm
