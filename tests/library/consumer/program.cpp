// How a C++ program uses uvmalloc: an allocator of its own, containers in that allocator, and an
// exception that the library throws and the program catches.
#include <cstdio>
#include <memory_resource>
#include <stdexcept>
#include <vector>

#include <uvmalloc/uvmalloc.h>
#include <uvmalloc/configuration.hpp>
#include <uvmalloc/inspection.hpp>
#include <uvmalloc/memory_resource.hpp>
#include <uvmalloc/registry.hpp>
#include <uvmalloc/statistics.hpp>

int main() {
  uvm::RuntimeChoice choice = uvm::open_runtime("auto");
  if (choice.runtime == nullptr) return std::fprintf(stderr, "%s\n", choice.reason.c_str()), 1;
  uvm::Configuration configuration;
  configuration.budget_bytes = std::size_t{64} << 20;
  uvm::CachingManagedAllocator allocator(std::move(choice.runtime), configuration);
  uvm::ManagedMemoryResource resource(allocator);

  std::pmr::vector<int> numbers(1 << 20, 3, &resource);
  allocator.move(
      numbers.data(),
      {.source = uvm::Place::host(), .destination = uvm::Place::device(0), .held = false});
  const char* caught = "nothing";
  try {
    allocator.allocate(uvm::Facade::kDevice, 0, std::size_t{65} << 20);
  } catch (const uvm::OutOfMemoryError& error) {
    caught = error.requested_bytes() == std::size_t{65} << 20 ? "out of memory" : "wrong size";
  }
  try {
    (void)resource.allocate(64, 48);
  } catch (const std::invalid_argument&) {
    std::printf("%s caught=%s moved=%llu place=%s allocations=%llu\n", uvmalloc_version(), caught,
                static_cast<unsigned long long>(allocator.statistics().moves.bytes),
                uvm::to_string(allocator.find(numbers.data())->location).c_str(),
                static_cast<unsigned long long>(
                    allocator.inspection().runtime_calls().count("allocate_managed")));
    return numbers[1000] == 3 ? 0 : 1;
  }
  return 1;
}
