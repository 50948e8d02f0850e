// A shared object that adds two backends when a program opens it, like a third party's object.
#include "tests/support/host_devices.hpp"

namespace {

using uvm::testing::HostBackend;
using uvm::testing::HostDevices;

// Lives as long as the process, as a driver does.
const HostDevices& hardware() {
  static const auto* const devices = new HostDevices(2, "hardware of a shared object");
  return *devices;
}

const uvm::BackendRegistration with_hardware("of a shared object", [](std::string*) {
  return std::make_unique<HostBackend>(hardware(), "of a shared object");
});
const uvm::BackendRegistration without("of a machine without it", [](std::string* reason) {
  *reason = "there is no such device";
  return std::unique_ptr<uvm::Backend>();
});

}  // namespace
