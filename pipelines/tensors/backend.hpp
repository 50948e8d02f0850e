// The hardware layer under compiled plans (Glow, "Refactor Backend interface"). Three classes
// divide the duties of Glow's old interface:
// * Backend: one kind of hardware. It stores only configuration and all methods are const, so one
//   object serves any number of compilations and runs at a time.
// * CompiledPlan: the result of a compilation. Immutable; all runs share it.
// * BoundPlan: one compiled plan with its tensors on one device. It owns the memory of its runs.
//
// Backends are registered by name (add_backend, BackendRegistration). A shared object that is
// opened later may register more backends.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipelines/tensors/device_transfers.hpp"

namespace uvm {

// One operation of a program. It reads and writes tensors, which are given by name.
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
  // A kernel for this hardware. It takes device addresses and returns when its work is complete.
  using Kernel = std::function<void(int device, std::span<const DeviceSpan> inputs,
                                    std::span<const DeviceSpan> outputs)>;

  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual int device_count() const = 0;
  virtual const DeviceTransfers& transfers() const = 0;
  // Compiles one kernel. Returns an empty function if this hardware has no kernel of that name.
  virtual Kernel kernel(std::string_view name) const = 0;
};

// Makes a backend. If this machine lacks the hardware, returns nullptr, with one line in `*reason`.
using BackendFactory = std::function<std::unique_ptr<Backend>(std::string* reason)>;

// These four functions are thread-safe. add_backend() returns false, and changes nothing, if the
// name is taken or empty, or the factory is empty.
bool add_backend(std::string_view name, BackendFactory factory);
std::vector<std::string> backend_names();
// Throws std::invalid_argument, which lists all names, if no backend has that name. Throws
// std::runtime_error if this machine lacks the backend's hardware.
std::unique_ptr<Backend> open_backend(std::string_view name);
// Opens a shared object with BackendRegistration objects, which register backends, and never closes
// it. Throws std::runtime_error if the object cannot be loaded or adds no new name.
void load_backends(const std::string& shared_object);

struct BackendRegistration {
  BackendRegistration(std::string_view name, BackendFactory factory) {
    add_backend(name, std::move(factory));
  }
};

}  // namespace uvm
