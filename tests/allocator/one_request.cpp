// Makes one request of 3 MiB that no cache serves, so that only the lines that this request runs
// are counted (scripts/files_on_path.py). For a build that counts lines.
#include <unistd.h>

#include <memory>

#include "allocator/interface.hpp"

#include "tests/support/fake_runtime.hpp"
#include "tests/support/sizes.hpp"

extern "C" void __gcov_reset();
extern "C" void __gcov_dump();

int main() {
  using uvm::testing::kMiB;
  uvm::Configuration configuration;
  configuration.budget_bytes = 256 * kMiB;
  configuration.span_bytes = 32 * kMiB;
  auto machine = std::make_shared<uvm::testing::FakeMachine>(1);
  uvm::CachingManagedAllocator allocator(std::make_unique<uvm::testing::FakeRuntime>(machine),
                                         configuration);
  const auto request = [&] { return allocator.allocate(uvm::Facade::kDevice, 0, 3 * kMiB); };
  request();  // the span and the thread's cache exist from now on
  __gcov_reset();
  const bool is_served = request() != nullptr;
  __gcov_dump();
  _exit(is_served ? 0 : 1);
}
