// Finds and opens runtimes by name. Built-in runtimes add themselves here. Third parties add
// runtimes without rebuilding uvmalloc: in C with a table of operations (uvmalloc_runtime.h), in
// C++ with a RuntimeRegistration object or add_runtime(). All functions are thread-safe.
//
// A name with a slash is the path of a shared object with a table. The first query opens it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/device_runtime.hpp>

namespace uvm {

// Makes a runtime. If there is no such device, returns nullptr and sets `*reason` to one line.
using RuntimeFactory = std::function<std::unique_ptr<DeviceRuntime>(std::string* reason)>;

// Queries about a runtime before it is opened. They are called often and initialise nothing.
struct RuntimeQuestions {
  // Returns whether the program has already initialised the vendor's driver.
  std::function<bool()> is_initialized;
  // Returns whether this machine has the vendor's driver. May load the driver.
  std::function<bool()> is_present;
};

// Adds a runtime. Returns false and changes nothing if the name is taken, empty, "auto" or a path.
// A runtime without queries counts as present; it counts as initialised once a program names it.
bool add_runtime(std::string_view name, RuntimeFactory factory, RuntimeQuestions questions = {});

// Returns whether open_runtime(name) would initialise only what the program has already
// initialised. For "auto": whether the program has initialised the driver of any runtime.
bool is_runtime_initialized(std::string_view name);

// Returns whether open_runtime(name) may find a device. Initialises nothing.
bool is_runtime_present(std::string_view name);

std::vector<std::string> runtime_names();

struct RuntimeChoice {
  std::unique_ptr<DeviceRuntime> runtime;  // nullptr if no runtime is usable
  std::string reason;                      // why no runtime is usable; empty on success
};

// Opens a runtime. `name` is a registered name, a path, or "auto": the first runtime that finds a
// device, in the order in which they were added.
RuntimeChoice open_runtime(std::string_view name);

struct RuntimeRegistration {
  RuntimeRegistration(std::string_view name, RuntimeFactory factory) {
    add_runtime(name, std::move(factory));
  }
};

}  // namespace uvm
