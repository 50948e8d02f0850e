// What runs a compiled plan on one kind of hardware (Glow, "Refactor Backend interface"). The state
// that the old interface mixed is in three parts:
//  * Backend: the hardware layer. It holds configuration only, all methods are const, and one
//  object serves any number
//    of compilations and runs at a time.
//  * CompiledPlan: what compilation gives. Immutable, shared by all who run it.
//  * BoundPlan: one compiled plan with its tensors, on one device. It owns the memory that runs
//  change.
//
// Backends are registered by name (add_backend, BackendRegistration), also from a shared object
// that is opened later.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipelines/tensors/device_transfers.hpp"

namespace uvm {

// One operation of a program: reads tensors, writes tensors, by name.
struct PlanOperation {
  std::string kernel;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

struct DeviceSpan {
  void* address = nullptr;
  std::size_t size_bytes = 0;
};

class Backend {
 public:
  // A kernel, as this hardware runs it. Called with addresses on the device; has ended when it
  // returns.
  using Kernel = std::function<void(int device, std::span<const DeviceSpan> inputs,
                                    std::span<const DeviceSpan> outputs)>;

  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual int device_count() const = 0;
  virtual const DeviceTransfers& transfers() const = 0;
  // Compiles one kernel; an empty function if this hardware has none of that name.
  virtual Kernel kernel(std::string_view name) const = 0;
};

// Makes a backend, or returns nullptr and says in `*reason`, in one line, why this machine has
// none.
using BackendFactory = std::function<std::unique_ptr<Backend>(std::string* reason)>;

// All four functions are thread-safe. Returns false, and changes nothing, where the name is taken
// or empty.
bool add_backend(std::string_view name, BackendFactory factory);
std::vector<std::string> backend_names();
// std::invalid_argument: no backend of that name, which lists those there are; std::runtime_error:
// it has no hardware.
std::unique_ptr<Backend> open_backend(std::string_view name);
// Opens a shared object whose BackendRegistration objects add themselves, and never closes it.
// std::runtime_error with the loader's reason, or if it added none.
void load_backends(const std::string& shared_object);

struct BackendRegistration {
  BackendRegistration(std::string_view name, BackendFactory factory) {
    add_backend(name, std::move(factory));
  }
};

}  // namespace uvm
