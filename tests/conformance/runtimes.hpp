// The runtimes that must conform, by registered name. A new one is a line in kRuntimes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include <uvmalloc/runtime/registry.hpp>

#include "support/fake_runtime.hpp"

namespace uvm::testing {

inline constexpr const char* kRuntimes[] = {"cuda", "fake"};

inline std::unique_ptr<DeviceRuntime> open(const std::string& name) {
  // As a third party would add one.
  static RuntimeRegistration fake("fake", [](std::string*) -> std::unique_ptr<DeviceRuntime> {
    return std::make_unique<FakeRuntime>(std::make_shared<FakeMachine>());
  });
  RuntimeChoice choice = open_runtime(name);
  if (choice.runtime == nullptr) throw std::runtime_error(choice.reason);
  return std::move(choice.runtime);
}

}  // namespace uvm::testing
