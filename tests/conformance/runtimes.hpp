// The runtimes that must conform, by registered name. A new one is a line in kRuntimes. The tests
// of this folder exist for HIP too: they are translated as the runtime itself is
// (hipify/README.md), and then "cuda" reads "hip" here.
//
// "host_threads" is the example of a runtime from outside. It is opened by the path of its shared
// object: that of this build, or another one that UVM_TEST_HOST_THREADS names.
//
// "cuda" is the simulated device, unless UVM_TEST_DEVICE is "real": then it is a real one, which no
// test may ask for more than a few hundred MiB. The program is not to be run on a card by mistake,
// so whichever kind of device is found must be the one that was named.
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

// The simulator's control interface, where the device is simulated.
inline void* simulator() {
  return dlopen("libuvmsim.so", RTLD_NOW | RTLD_NOLOAD);
}

inline std::string host_threads() {
  const char* other = std::getenv("UVM_TEST_HOST_THREADS");
  return other != nullptr ? other : UVM_HOST_THREADS;
}

inline std::unique_ptr<DeviceRuntime> open(const std::string& name) {
  // As a third party would add one.
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
