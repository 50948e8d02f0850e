#include "preload/served_memory.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include <uvmalloc/errors.hpp>
#include "allocator/interface.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "allocator/process/process_allocator.hpp"
#include "hints/placement_planner.hpp"
#include "preload/interpose.hpp"
#include "preload/memory_uses.hpp"
#include "runtime/log.hpp"
#include "runtime/made_once.hpp"

namespace uvm::preload {
namespace {

std::atomic<ServedMemory*> the_instance{nullptr};

using Vendor = ServedMemory::Vendor;

Vendor vendor_of(const CachingManagedAllocator& allocator) {
  return allocator.inspection().runtime().name() == "hip" ? Vendor::kHip : Vendor::kCuda;
}

const char* to_string(Vendor vendor) {
  return vendor == Vendor::kHip ? "HIP" : "CUDA";
}

}  // namespace

bool wants_to_serve() noexcept {
  static std::atomic<std::optional<ServeCuda>> known{std::nullopt};
  std::optional<ServeCuda> wanted = known.load(std::memory_order_relaxed);
  if (!wanted) {
    try {
      wanted = process_configuration().configuration.serve_cuda;
      known.store(wanted, std::memory_order_relaxed);
    } catch (const std::exception&) {
      return false;  // out of memory while reading the variables; the next call tries again
    }
  }
  return *wanted == ServeCuda::kYes || (*wanted == ServeCuda::kAuto && !has_framework());
}

bool serves_virtual_memory() noexcept {
  return process_configuration().configuration.virtual_memory;
}

bool calls_memory_devices() noexcept {
  return ServedMemory::existing() != nullptr &&
         process_configuration().configuration.pointer_type == PointerType::kDevice;
}

ServedMemory* ServedMemory::existing() noexcept {
  return the_instance.load(std::memory_order_acquire);
}

ServedMemory* ServedMemory::existing_here() noexcept {
  ServedMemory* memory = existing();
  return memory != nullptr && !memory->allocator_.inspection().in_forked_child() ? memory : nullptr;
}

ServedMemory* ServedMemory::instance() noexcept {
  if (ServedMemory* existing = ServedMemory::existing()) return existing;
  if (!wants_to_serve()) return nullptr;
  try {
    return make();
  } catch (const std::exception& error) {
    log(LogLevel::kError, "an allocation call is not served: {}", error.what());
    return nullptr;
  }
}

ServedMemory* ServedMemory::make() {
  // True while the allocator is being created. Then the driver itself allocates, and its calls are
  // forwarded.
  thread_local bool is_making = false;
  if (is_making) return nullptr;
  struct Making {
    Making() { is_making = true; }
    ~Making() { is_making = false; }
  } making;
  CachingManagedAllocator* allocator = activate_process_allocator().allocator;
  if (allocator == nullptr) return nullptr;
  static constinit MadeOnce<ServedMemory> memory;
  return &memory.get([&] {
    std::unique_ptr<ServedMemory> made(new ServedMemory(*allocator));
    the_instance.store(made.get(), std::memory_order_release);
    return made;
  });
}

ServedMemory::ServedMemory(CachingManagedAllocator& allocator)
    : allocator_(allocator),
      vendor_(vendor_of(allocator)),
      group_(Groups::default_of(allocator)),
      exclusions_(process_configuration().configuration.exclude, &exclusion_errors_),
      deferred_(allocator),
      virtual_memory_(allocator, group_) {
  for (const std::string& error : exclusion_errors_) log_line(LogLevel::kError, error);
  report_coverage();
  begin_to_note_uses(allocator_);
  allocator_.limits().add_pressure_callback([this] { return deferred_.wait_and_free(); });
}

ServedMemory::Shard& ServedMemory::shard_of(const void* address) const {
  return shards_[(reinterpret_cast<std::uintptr_t>(address) >> 9) * 0x9E3779B97F4A7C15u >> 60];
}

void* ServedMemory::take_block(const Request& request) {
  if (request.kind == Kind::kPinned) {
    return allocator_.allocate(Facade::kPinned, request.device, request.size_bytes);
  }
  if (request.kind == Kind::kDevice && group_ != GroupNumber{}) {
    return Groups::of(allocator_)
        ->allocate(group_, Facade::kDevice, request.size_bytes,
                   DeviceStream::named(request.device, request.stream));
  }
  if (request.kind == Kind::kDevice) {
    return allocator_.allocate(Facade::kDevice, request.device, request.size_bytes, request.stream);
  }
  // The program places managed memory by first touch and by advice, so uvmalloc sends no hints.
  struct WithoutHints {
    std::optional<Policy> before = set_thread_policy(Policy::kDriver);
    ~WithoutHints() { set_thread_policy(before); }
  } without_hints;
  return allocator_.allocate(Facade::kDevice, request.device, request.size_bytes);
}

bool ServedMemory::is_capturing(const Request& request) const noexcept {
  bool answer = false;
  // The legacy default stream cannot be captured.
  return request.stream != nullptr &&
         allocator_.inspection()
             .runtime()
             .is_capturing(request.device, request.stream, &answer)
             .ok() &&
         answer;
}

bool ServedMemory::serves(Vendor vendor) const noexcept {
  return vendor == vendor_ && !allocator_.inspection().in_forked_child();
}

void ServedMemory::say_that_it_serves() const noexcept {
  static std::atomic_flag has_said;
  if (has_said.test(std::memory_order_relaxed) || has_said.test_and_set()) return;
  const Configuration& configuration = allocator_.inspection().configuration();
  if (!configuration.startup_line || is_framework_without_plugin()) return;
  beside("the startup line", [&] {
    const bool is_coherent = allocator_.inspection().host_backing() == HostBacking::kOrdinary;
    log(LogLevel::kWarning,
        "serves {}'s allocation calls: {} x {}, {}, policy {}, budget {}; UVMALLOC_STARTUP_LINE=0 "
        "turns this line off",
        to_string(vendor_), allocator_.inspection().devices().size(),
        allocator_.inspection().devices().front().name,
        is_coherent ? "memory that host and devices share" : "managed memory",
        to_string(configuration.policy), format_size(allocator_.limits().budget_bytes()));
  });
}

Outcome ServedMemory::allocate(const Request& request, void** out) noexcept {
  if (request.size_bytes == 0 || request.vendor != vendor_ ||
      allocator_.inspection().in_forked_child()) {
    return Outcome::kForwarded;
  }
  if (request.is_ordered && is_capturing(request)) return Outcome::kForwarded;
  if (exclusions_.excludes(request.size_bytes, request.caller)) return Outcome::kExcluded;
  try {
    void* address = take_block(request);
    try {
      if (request.kind == Kind::kManaged && group_ != GroupNumber{})
        Groups::of(allocator_)->add(group_, address);
      Shard& shard = shard_of(address);
      std::lock_guard lock(shard.mutex);
      shard.blocks[address] = {request.size_bytes, request.stream, request.context, request.device,
                               request.kind};
    } catch (const std::exception&) {
      allocator_.free(address);
      throw;
    }
    allocator_.tracing().caller(address, request.caller);
    *out = address;
    say_that_it_serves();
    return Outcome::kServed;
  } catch (const std::exception& error) {
    const auto* refused = dynamic_cast<const OutOfMemoryError*>(&error);
    if (refused != nullptr && refused->is_beyond_limit()) {
      log(LogLevel::kInfo, "{}", error.what());
      return Outcome::kBeyondLimit;
    }
    log(LogLevel::kInfo, "a request for {} is forwarded to {}: {}", format_size(request.size_bytes),
        to_string(vendor_), error.what());
    return Outcome::kNoMemory;
  }
}

ServedMemory::Freed ServedMemory::take(const void* address, Frees frees, Block* out) noexcept {
  if (allocator_.inspection().in_forked_child()) return Freed::kNotOurs;
  {
    Shard& shard = shard_of(address);
    std::lock_guard lock(shard.mutex);
    const auto found = shard.blocks.find(address);
    if (found != shard.blocks.end()) {
      const bool is_pinned = found->second.kind == Kind::kPinned;
      if (frees != Frees::kAll && (frees == Frees::kPinned) != is_pinned) return Freed::kNoBlock;
      *out = found->second;
      shard.blocks.erase(found);
      return Freed::kYes;
    }
  }
  // If a span begins at this address, the real free would free the whole span.
  return address != nullptr && allocator_.inspection().has_taken(address) ? Freed::kNoBlock
                                                                          : Freed::kNotOurs;
}

// Resets advice: later blocks on these pages are device memory, which prefers the device.
void ServedMemory::forget_advice(void* address, const Block& block) noexcept {
  if (allocator_.inspection().host_backing() == HostBacking::kOrdinary)
    return;  // no page ever moves
  const Place device = Place::device(block.device);
  const bool has_hints = sends_hints(allocator_.inspection().configuration().policy);
  const auto advise = [&](Advice advice, Place place) {
    allocator_.inspection().runtime().advise(block.device, address, block.size_bytes, advice,
                                             place);
  };
  advise(Advice::kUnsetReadMostly, device);
  for (std::size_t other = 0; other < allocator_.inspection().devices().size(); ++other) {
    advise(Advice::kUnsetAccessedBy, Place::device(static_cast<int>(other)));
  }
  advise(Advice::kUnsetAccessedBy, Place::host());
  advise(has_hints ? Advice::kSetPreferredLocation : Advice::kUnsetPreferredLocation, device);
}

ServedMemory::Freed ServedMemory::free(void* address, Frees frees) noexcept {
  Block block;
  if (const Freed taken = take(address, frees, &block); taken != Freed::kYes) return taken;
  if (block.kind == Kind::kManaged) forget_advice(address, block);
  try {
    deferred_.add(block.device, address, block.size_bytes);
  } catch (const std::bad_alloc&) {
    free_after_wait(address, block.device);
  }
  return Freed::kYes;
}

void ServedMemory::free_after_wait(void* address, int device) noexcept {
  if (allocator_.streams().wait_for_device(device)) {
    allocator_.free(address);
    return;
  }
  log(LogLevel::kWarning,
      "a freed block cannot be reused: host memory ran out when uvmalloc recorded the free during "
      "a stream capture");
}

// Frees at once, because the context's work has ended, so nothing uses the memory.
void ServedMemory::free_all_of(const void* context) noexcept {
  if (context == nullptr || allocator_.inspection().in_forked_child()) return;
  for (Shard& shard : shards_) {
    std::unordered_map<const void*, Block> ended;
    {
      const std::lock_guard lock(shard.mutex);
      for (auto at = shard.blocks.begin(); at != shard.blocks.end();) {
        const auto next = std::next(at);
        if (at->second.context == context) ended.insert(shard.blocks.extract(at));
        at = next;
      }
    }
    for (const auto& [key, block] : ended) {
      auto* const address = const_cast<void*>(key);
      if (block.kind == Kind::kManaged) forget_advice(address, block);
      allocator_.free(address);
    }
  }
}

void ServedMemory::forget_device(int device, const std::vector<void*>& lost) {
  const std::unordered_set<const void*> ended(lost.begin(), lost.end());
  deferred_.forget(ended);
  // The reset ended all work on the device, so there is nothing to wait for.
  deferred_.free_after(device, [] { return true; });
  std::vector<void*> others;
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    std::erase_if(shard.blocks, [&](const auto& entry) {
      const auto& [address, block] = entry;
      if (ended.contains(address)) return true;
      if (block.device != device) return false;
      others.push_back(const_cast<void*>(address));
      return true;
    });
  }
  for (void* address : others) allocator_.free(address);
  virtual_memory_.forget_device(device);
}

ServedMemory::Freed ServedMemory::free_async(void* address, int device,
                                             StreamHandle stream) noexcept {
  Block block;
  if (const Freed taken = take(address, Frees::kAllButPinned, &block); taken != Freed::kYes)
    return taken;
  if (block.kind == Kind::kManaged) forget_advice(address, block);
  try {
    if (block.device != device || block.stream != stream) {
      allocator_.record_use(address, device, stream);
    }
  } catch (const std::exception&) {
    free_after_wait(address, device);
    return Freed::kYes;
  }
  allocator_.free(address);
  return Freed::kYes;
}

void ServedMemory::free_after(int device, const DeferredFrees::Wait& wait) noexcept {
  if (allocator_.inspection().in_forked_child() ||
      device >= static_cast<int>(allocator_.inspection().devices().size())) {
    wait();
    return;
  }
  deferred_.free_after(device, wait);
}

bool ServedMemory::find(const void* address, Range* out) const noexcept {
  try {
    if (allocator_.inspection().in_forked_child()) return false;
    const auto block = allocator_.find(address);
    if (!block || !block->live) return false;
    Shard& shard = shard_of(block->base);
    std::lock_guard lock(shard.mutex);
    const auto found = shard.blocks.find(block->base);
    if (found != shard.blocks.end()) {
      *out = {
          .base = block->base, .size_bytes = found->second.size_bytes, .kind = found->second.kind};
      return true;
    }
    const auto mapped = virtual_memory_.find(reinterpret_cast<std::uintptr_t>(address));
    if (!mapped) return false;
    *out = {.base = reinterpret_cast<void*>(mapped->run.address),
            .size_bytes = mapped->run.size_bytes,
            .kind = Kind::kDevice,
            .mapped = mapped};
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool ServedMemory::is_placed_by_program(const void* base) const noexcept {
  Shard& shard = shard_of(base);
  std::lock_guard lock(shard.mutex);
  const auto found = shard.blocks.find(base);
  return found != shard.blocks.end() && found->second.kind == Kind::kManaged;
}

}  // namespace uvm::preload
