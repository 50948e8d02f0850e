// Adapts CachingManagedAllocator for the workloads. It owns the allocator, makes public calls only,
// allocates device memory, and frees by the pointer alone. An adapter has no virtual functions, and
// workloads are templates on it, so they measure only the allocator's own call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <uvmalloc/groups.hpp>
#include <uvmalloc/registry.hpp>
#include "allocator/interface.hpp"

#include "../request.hpp"
#include "../reserving_runtime.hpp"

namespace uvm::bench {

class UvmallocAdapter {
 public:
  static constexpr const char* kName = "uvmalloc";
  static constexpr bool kMeasuresMetadata = true;
  static std::string version() { return "this tree"; }

  // "runtime=reserving" selects a runtime that only hands out address space: measured memory and
  // instructions are then only the allocator's. "budget" is the most bytes in use. "groups=1": the
  // program has a group, which sleeps.
  explicit UvmallocAdapter(const Request& request)
      : allocator_(runtime(request), settings(request)) {
    if (request.number("groups", 0) == 0) return;
    const auto groups = Groups::of(allocator_);
    const GroupNumber group = groups->open("asleep");
    groups->add(group, allocator_.allocate(Facade::kDevice, 0, kGroupBytes));
    groups->sleep(group, {0, nullptr});
  }

  void* allocate(std::size_t size_bytes, cudaStream_t stream) {
    return allocator_.allocate(Facade::kDevice, 0, size_bytes, stream);
  }
  void free(void* block, std::size_t, cudaStream_t) { allocator_.free(block); }

  void* allocate_on_host(std::size_t size_bytes) {
    return allocator_.allocate(Facade::kHost, 0, size_bytes);
  }
  void move_to_device(void* block) { move(block, Place::host(), Place::device(0)); }
  void move_to_host(void* block) { move(block, Place::device(0), Place::host()); }

  // The other adapters report reserved device memory. Managed memory takes no device memory until
  // its 2 MiB pages are handed out, so this adapter reports touched bytes.
  std::size_t peak_reserved_bytes() const { return allocator_.statistics().touched_bytes.peak; }

 private:
  void move(void* block, Place source, Place destination) {
    MoveRequest wanted;
    wanted.source = source;
    wanted.destination = destination;
    wanted.held = false;
    if (allocator_.move(block, wanted) == nullptr) throw std::runtime_error("a move was refused");
  }

  static constexpr std::size_t kGroupBytes = std::size_t{64} << 20;
  // Enough for the largest workload. Any machine can provide it, since no workload writes to these
  // bytes.
  static constexpr std::size_t kBudgetBytes = std::size_t{240} << 30;

  static std::unique_ptr<DeviceRuntime> runtime(const Request& request) {
    if (request.text("runtime", "auto") == "reserving") return std::make_unique<ReservingRuntime>();
    RuntimeChoice choice = open_runtime("auto");
    if (choice.runtime == nullptr) throw std::runtime_error(choice.reason);
    return std::move(choice.runtime);
  }
  static Configuration settings(const Request& request) {
    ParsedConfiguration parsed = parse_environment();
    if (!parsed.errors.empty()) throw std::runtime_error(parsed.errors.front());
    Configuration configuration = std::move(parsed.configuration);
    configuration.budget_bytes = request.number("budget", kBudgetBytes);
    return configuration;
  }

  CachingManagedAllocator allocator_;
};

}  // namespace uvm::bench
