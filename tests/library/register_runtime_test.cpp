// External runtimes through the C interface: by a table, and by the path of a shared object.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include <uvmalloc/uvmalloc.h>
#include <uvmalloc/uvmalloc_runtime.h>

#include "tests/conformance/runtimes.hpp"

namespace uvm {
namespace {

// Returns the registration of the example.
const uvmalloc_runtime_registration& host_threads() {
  void* library = dlopen(testing::host_threads().c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto function =
      reinterpret_cast<decltype(&uvmalloc_runtime)>(dlsym(library, "uvmalloc_runtime"));
  return *function(UVMALLOC_RUNTIME_VERSION);
}

// Makes an allocator of that runtime, uses it, and returns the status of its creation.
uvmalloc_status use(const std::string& runtime) {
  uvmalloc_options options{};
  options.struct_bytes = sizeof options;
  options.runtime = runtime.c_str();
  options.budget_bytes = std::uint64_t{64} << 20;
  uvmalloc_allocator* allocator = nullptr;
  const uvmalloc_status status = uvmalloc_create(&options, &allocator);
  if (status != UVMALLOC_OK) return status;
  void* block = nullptr;
  EXPECT_EQ(uvmalloc_allocate(allocator, UVMALLOC_DEVICE, 0, 5 << 20, 0, nullptr, &block),
            UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_destroy(allocator), UVMALLOC_OK);
  return status;
}

TEST(RegisterRuntime, ATableIsARuntimeForAllocatorsByItsName) {
  const uvmalloc_runtime_registration& example = host_threads();
  EXPECT_EQ(use("threads by table"), UVMALLOC_ERROR_NO_DEVICE);
  EXPECT_EQ(uvmalloc_register_runtime("threads by table", example.operations, example.context),
            UVMALLOC_OK)
      << uvmalloc_last_error();
  EXPECT_EQ(use("threads by table"), UVMALLOC_OK) << uvmalloc_last_error();
}

TEST(RegisterRuntime, APathIsARuntimeWithoutRegistration) {
  EXPECT_EQ(use(testing::host_threads()), UVMALLOC_OK) << uvmalloc_last_error();
  EXPECT_EQ(use("./absent.so"), UVMALLOC_ERROR_NO_DEVICE);
  EXPECT_EQ(std::string(uvmalloc_last_error()),
            "the runtime './absent.so' cannot be used: ./absent.so: cannot open shared object "
            "file: No such file or directory");
}

TEST(RegisterRuntime, AFaultyTableIsAnInvalidArgumentThatSaysTheFault) {
  uvmalloc_runtime_operations table = *host_threads().operations;
  table.copy = nullptr;
  EXPECT_EQ(uvmalloc_register_runtime("faulty", &table, nullptr), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(uvmalloc_last_error()),
            "uvmalloc_register_runtime: the operations table of the runtime 'faulty' has no copy; "
            "required are all of the required group");
  EXPECT_EQ(uvmalloc_register_runtime("cuda", host_threads().operations, nullptr),
            UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_register_runtime(nullptr, host_threads().operations, nullptr),
            UVMALLOC_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace uvm
