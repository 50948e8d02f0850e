// The runtimes that must conform, by registered name. A new runtime is one line in kRuntimes. The
// tests of this folder exist for HIP, too: hipify translates them like the runtime
// (hipify/README.md), and then "cuda" reads "hip" here.
//
// "host_threads" is the example of an external runtime. It is opened by the path of its shared
// object: the path in this build, or the path in UVM_TEST_HOST_THREADS.
//
// "cuda" is the simulated device, or a real device if UVM_TEST_DEVICE is "real". On a real device,
// no test may request more than a few hundred MiB. The program must not run on a card by mistake,
// so it fails if the device that is found is not of the named kind.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include <uvmalloc/registry.hpp>

#include "tests/support/fake_runtime.hpp"

namespace uvm::testing {

inline constexpr const char* kRuntimes[] = {"cuda", "fake", "host_threads"};

inline bool on_real_device() {
  const char* device = std::getenv("UVM_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "real";
}

// Returns the simulator's control interface, or nullptr if the device is real.
inline void* simulator() {
  return dlopen("libuvmsim.so", RTLD_NOW | RTLD_NOLOAD);
}

inline std::string host_threads() {
  const char* other = std::getenv("UVM_TEST_HOST_THREADS");
  return other != nullptr ? other : UVM_HOST_THREADS;
}

inline std::unique_ptr<DeviceRuntime> open(const std::string& name) {
  // Adds a runtime as a third party would.
  static RuntimeRegistration fake("fake", [](std::string*) -> std::unique_ptr<DeviceRuntime> {
    return std::make_unique<FakeRuntime>(std::make_shared<FakeMachine>());
  });
  RuntimeChoice choice = open_runtime(name == "host_threads" ? host_threads() : name);
  if (choice.runtime == nullptr) throw std::runtime_error(choice.reason);
  if (name == "cuda" && on_real_device() == (simulator() != nullptr)) {
    throw std::runtime_error(on_real_device()
                                 ? "UVM_TEST_DEVICE is 'real', but the device is simulated"
                                 : "the device is real: set UVM_TEST_DEVICE=real to test on it");
  }
  return std::move(choice.runtime);
}

}  // namespace uvm::testing
