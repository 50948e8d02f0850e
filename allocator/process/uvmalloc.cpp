// The functions of the C interface that create and use allocators.
#include <uvmalloc/uvmalloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <uvmalloc/registry.hpp>
#include <uvmalloc/use_range.hpp>
#include "allocator/process/c_interface.hpp"
#include "allocator/process/process_allocator.hpp"
#include "hints/oversubscription/graph_uses.hpp"
#include "runtime/external/external_runtime.hpp"

namespace {

using uvm::CachingManagedAllocator;
using uvm::Facade;
using uvm::Place;
using uvm::c_interface::Failed;
using uvm::c_interface::failure;
using uvm::c_interface::guarded;
using uvm::c_interface::not_ours;
using uvm::c_interface::null_argument;
using uvm::c_interface::too_small;

static_assert(static_cast<int>(Facade::kHost) == UVMALLOC_HOST);
static_assert(static_cast<int>(Facade::kPinned) == UVMALLOC_PINNED);
static_assert(static_cast<int>(Facade::kDevice) == UVMALLOC_DEVICE);

// The size of the first version of each structure. These sizes never change.
constexpr std::size_t kFirstOptionsBytes =
    offsetof(uvmalloc_options, span_bytes) + sizeof(uvmalloc_options::span_bytes);
constexpr std::size_t kFirstBlockBytes =
    offsetof(uvmalloc_block, movable) + sizeof(uvmalloc_block::movable);
constexpr std::size_t kFirstStatisticsBytes =
    offsetof(uvmalloc_statistics, out_of_memory) + sizeof(uvmalloc_statistics::out_of_memory);

// An upper bound for the size of each structure. A caller with a larger `struct_bytes` did not
// initialise it, and the library would read that many bytes.
constexpr std::size_t kMostOptionsBytes = 4096;

uvmalloc_allocator* handle_of(CachingManagedAllocator* allocator) {
  return reinterpret_cast<uvmalloc_allocator*>(allocator);
}

// Runs the body of a function on an allocator. The body may also take the function's name. If the
// body returns nothing, the status is success.
template <class Handle, class Body>
uvmalloc_status with(Handle* handle, const char* function, Body body) noexcept {
  if (handle == nullptr) return null_argument(function, "allocator");
  using Allocator = std::conditional_t<std::is_const_v<Handle>, const CachingManagedAllocator,
                                       CachingManagedAllocator>;
  return guarded([&]() -> uvmalloc_status {
    auto& own = *reinterpret_cast<Allocator*>(handle);
    if constexpr (std::is_invocable_v<Body, Allocator&, const char*>) {
      return body(own, function);
    } else {
      body(own);
      return UVMALLOC_OK;
    }
  });
}

void require_device(const char* function, const CachingManagedAllocator& allocator, int device) {
  const int count = allocator.inspection().runtime().device_count();
  if (device >= 0 && device < count) return;
  throw Failed{failure(UVMALLOC_ERROR_NO_DEVICE, "{}: device {} does not exist; there are {}",
                       function, device, count)};
}

std::int32_t number_of(Place place) {
  if (place.is_device()) return place.index;
  return place.is_host() ? UVMALLOC_PLACE_HOST : UVMALLOC_PLACE_NOWHERE;
}

// Copies the caller's structure. Members of this version that an older caller lacks are zero.
uvmalloc_options known_options(const uvmalloc_options& given) {
  if (given.struct_bytes < kFirstOptionsBytes) {
    throw Failed{too_small("uvmalloc_create", given.struct_bytes, kFirstOptionsBytes)};
  }
  if (given.struct_bytes > kMostOptionsBytes) {
    throw std::invalid_argument(
        fmt::format("uvmalloc_create: struct_bytes is {}; accepted: the size of the structure, at "
                    "most {}",
                    given.struct_bytes, kMostOptionsBytes));
  }
  uvmalloc_options options{};
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  const std::size_t common = std::min(given.struct_bytes, sizeof options);
  if (std::any_of(bytes + common, bytes + given.struct_bytes,
                  [](auto byte) { return byte != 0; })) {
    throw std::invalid_argument(
        "uvmalloc_create: an option is set that this version does not have");
  }
  std::memcpy(&options, bytes, common);
  return options;
}

static_assert(static_cast<int>(uvm::Policy::kAuto) == UVMALLOC_POLICY_AUTO);
static_assert(static_cast<int>(uvm::Policy::kDriver) == UVMALLOC_POLICY_DRIVER);
static_assert(static_cast<int>(uvm::Policy::kLru) == UVMALLOC_POLICY_LRU);
static_assert(static_cast<int>(uvm::Policy::kPlanned) == UVMALLOC_POLICY_PLANNED);

uvm::Policy policy_of(std::int32_t policy) {
  if (policy < UVMALLOC_POLICY_AUTO || policy > UVMALLOC_POLICY_PLANNED) {
    throw std::invalid_argument(
        "uvmalloc_create: the policy is unknown; accepted: a value of UVMALLOC_POLICY_*");
  }
  return static_cast<uvm::Policy>(policy);
}

uvm::Configuration configuration_of(const uvmalloc_options& given) {
  const uvmalloc_options options = known_options(given);
  uvm::Configuration configuration;
  configuration.policy = policy_of(options.policy);
  if (options.runtime != nullptr) configuration.runtime = options.runtime;
  if (options.budget_bytes != 0) configuration.budget_bytes = options.budget_bytes;
  if (options.reserve_bytes != 0) configuration.reserve_bytes = options.reserve_bytes;
  if (options.span_bytes != 0) configuration.span_bytes = options.span_bytes;
  if (options.device_budget_bytes != 0) {
    configuration.device_budget_bytes = options.device_budget_bytes;
  }
  if (!std::isfinite(options.decay_seconds) || options.decay_seconds < 0) {
    throw std::invalid_argument(
        fmt::format("uvmalloc_create: decay_seconds is {}; accepted: seconds from 0 on",
                    options.decay_seconds));
  }
  configuration.decay_seconds = options.decay_seconds;
  return configuration;
}

// Copies as much of `all` as fits. The caller has checked that struct_bytes is large enough.
template <class Structure>
void fill(Structure* out, Structure all) {
  all.struct_bytes = std::min(out->struct_bytes, sizeof all);
  std::memcpy(out, &all, all.struct_bytes);
}

}  // namespace

// ---- allocators

uvmalloc_status uvmalloc_create(const uvmalloc_options* options,
                                uvmalloc_allocator** out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  *out = nullptr;
  return guarded([&] {
    uvm::Configuration configuration =
        options == nullptr ? uvm::Configuration() : configuration_of(*options);
    // UVMALLOC_RUNTIME chooses the runtime here too, because the devices belong to the machine.
    if (options == nullptr || options->runtime == nullptr)
      configuration.runtime = uvm::process_configuration().configuration.runtime;
    uvm::RuntimeChoice choice = uvm::open_runtime(configuration.runtime);
    if (choice.runtime == nullptr) return failure(UVMALLOC_ERROR_NO_DEVICE, "{}", choice.reason);
    *out = handle_of(
        std::make_unique<CachingManagedAllocator>(std::move(choice.runtime), configuration)
            .release());
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_register_runtime(const char* name,
                                          const uvmalloc_runtime_operations* operations,
                                          void* context) noexcept {
  return guarded([&] {
    const std::string why = uvm::external::add_external_runtime(name, operations, context);
    if (why.empty()) return UVMALLOC_OK;
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "uvmalloc_register_runtime: {}", why);
  });
}

uvmalloc_status uvmalloc_destroy(uvmalloc_allocator* allocator) noexcept {
  if (allocator == nullptr) return UVMALLOC_OK;
  if (allocator == handle_of(uvm::process_allocator())) {
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT,
                   "uvmalloc_destroy: the process's allocator is never destroyed");
  }
  delete reinterpret_cast<CachingManagedAllocator*>(allocator);
  return UVMALLOC_OK;
}

uvmalloc_status uvmalloc_process_allocator(uvmalloc_allocator** out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  *out = nullptr;
  return guarded([&] {
    const uvm::Activation& activation = uvm::activate_process_allocator();
    if (activation.allocator == nullptr) {
      return failure(UVMALLOC_ERROR_NOT_USABLE, "{}", activation.reason);
    }
    *out = handle_of(activation.allocator);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_set_budget(uvmalloc_allocator* allocator,
                                    std::uint64_t most_bytes) noexcept {
  return with(allocator, __func__, [&](auto& own) { own.limits().set_budget(most_bytes); });
}

uvmalloc_status uvmalloc_set_device_limit(uvmalloc_allocator* allocator, int device,
                                          std::uint64_t most_bytes) noexcept {
  return with(allocator, __func__, [&](auto& own, const char* function) {
    require_device(function, own, device);
    own.limits().set_device_limit(device, most_bytes);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_add_pressure_callback(uvmalloc_allocator* allocator,
                                               uvmalloc_pressure_callback callback,
                                               void* argument) noexcept {
  if (callback == nullptr) return null_argument(__func__, "callback");
  return with(allocator, __func__, [&](auto& own) {
    own.limits().add_pressure_callback([=] { return callback(argument) != 0; });
  });
}

uvmalloc_status uvmalloc_device_count(const uvmalloc_allocator* allocator, int* out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  *out = 0;
  return with(allocator, __func__,
              [&](auto& own) { *out = own.inspection().runtime().device_count(); });
}

// ---- memory

uvmalloc_status uvmalloc_allocate(uvmalloc_allocator* allocator, int facade, int device,
                                  std::size_t size_bytes, std::size_t alignment_bytes,
                                  uvmalloc_stream stream, void** out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  *out = nullptr;
  const void* const caller = __builtin_return_address(0);
  return with(allocator, __func__, [&](auto& own, const char* function) {
    if (facade < UVMALLOC_HOST || facade > UVMALLOC_DEVICE) {
      throw std::invalid_argument(
          fmt::format("{}: the memory kind is {}; accepted: UVMALLOC_HOST, _PINNED, _DEVICE",
                      function, facade));
    }
    require_device(function, own, device);
    const auto kind = static_cast<Facade>(facade);
    *out = alignment_bytes == 0
               ? own.allocate(kind, device, size_bytes, stream)
               : own.allocate_aligned(kind, device, size_bytes, alignment_bytes, stream);
    if (own.tracing().wants_call_sites()) own.tracing().caller(*out, caller);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_free(uvmalloc_allocator* allocator, void* address) noexcept {
  return with(allocator, __func__, [&](auto& own, const char* function) {
    switch (own.free(address)) {
      case uvm::FreeResult::kFreed:
        return UVMALLOC_OK;
      case uvm::FreeResult::kNotOurs:
        return not_ours(function, address);
      case uvm::FreeResult::kDouble:
        return failure(UVMALLOC_ERROR_DOUBLE_FREE, "{}: {} is free already", function, address);
      case uvm::FreeResult::kInterior:
        return failure(UVMALLOC_ERROR_INTERIOR, "{}: {} is not the start of its block", function,
                       address);
    }
    return failure(UVMALLOC_ERROR_INTERNAL, "{}: an unknown result", function);
  });
}

uvmalloc_status uvmalloc_record_use(uvmalloc_allocator* allocator, const void* address, int device,
                                    uvmalloc_stream stream) noexcept {
  return with(allocator, __func__, [&](auto& own, const char* function) {
    require_device(function, own, device);
    if (own.record_use(address, device, stream)) return UVMALLOC_OK;
    return not_ours(function, address);
  });
}

// Throws if the access is not valid.
static std::uint8_t access_of(const char* function, int access) {
  constexpr int kOnce = uvm::live::kOnce;
  if ((access & ~kOnce) < 1 || (access & ~kOnce) > 3) {
    throw std::invalid_argument(fmt::format(
        "{}: the access is {}; accepted: 1 (read), 2 (write), 3 (both), and 4 more where "
        "each byte is touched once",
        function, access));
  }
  return static_cast<std::uint8_t>(access);
}

uvmalloc_status uvmalloc_note_use(uvmalloc_allocator* allocator, const void* address,
                                  size_t size_bytes, uvmalloc_stream stream, int access) noexcept {
  return with(allocator, __func__, [&](auto& own, const char* function) {
    if (own.kernel_uses().note(address, size_bytes, stream, access_of(function, access)))
      return UVMALLOC_OK;
    return not_ours(function, address);
  });
}

uvmalloc_status uvmalloc_note_uses(uvmalloc_allocator* allocator, const uvmalloc_use* uses,
                                   size_t count, uvmalloc_stream stream, int launch) noexcept {
  return with(allocator, __func__, [&](auto& own, const char* function) {
    if (launch != UVMALLOC_LAUNCH_KERNEL && launch != UVMALLOC_LAUNCH_GRAPH) {
      throw std::invalid_argument(fmt::format(
          "{}: the launch is {}; accepted: 0 (a kernel), 1 (a graph)", function, launch));
    }
    if (uses == nullptr && count != 0)
      throw std::invalid_argument(fmt::format("{}: uses is NULL, count is {}", function, count));
    std::vector<uvm::live::UseRange> ranges;
    for (std::size_t i = 0; i < count; ++i) {
      ranges.push_back({reinterpret_cast<std::uintptr_t>(uses[i].address), uses[i].size_bytes,
                        access_of(function, uses[i].access)});
    }
    const bool is_graph = launch == UVMALLOC_LAUNCH_GRAPH;
    const void* foreign =
        own.kernel_uses().note(stream, is_graph ? uvm::live::joined_uses(ranges) : ranges,
                               is_graph ? uvm::live::Launch::kGraph : uvm::live::Launch::kKernel);
    return foreign == nullptr ? UVMALLOC_OK : not_ours(function, foreign);
  });
}

uvmalloc_status uvmalloc_step_boundary(uvmalloc_allocator* allocator) noexcept {
  return with(allocator, __func__, [&](auto& own) { own.kernel_uses().step_boundary(); });
}

uvmalloc_status uvmalloc_forget_stream(uvmalloc_allocator* allocator, int device,
                                       uvmalloc_stream stream) noexcept {
  return with(allocator, __func__, [&](auto& own, const char* function) {
    require_device(function, own, device);
    own.streams().forget(device, stream);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_wait_for_uses(uvmalloc_allocator* allocator,
                                       const void* address) noexcept {
  return with(allocator, __func__, [&](auto& own, const char* function) {
    const auto block = own.find(address);
    if (!block || !block->live) return not_ours(function, address);
    own.streams().wait_for_uses(address);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_move(uvmalloc_allocator* allocator, void* address, int destination,
                              uvmalloc_stream stream, int wait) noexcept {
  return with(allocator, __func__, [&](auto& own, const char* function) {
    const bool to_host = destination == UVMALLOC_PLACE_HOST;
    if (!to_host) require_device(function, own, destination);
    const auto block = own.find(address);
    if (!block || !block->live) return not_ours(function, address);
    if (to_host && !block->location.is_device()) {
      // The block is on the host already; the stream may have written to it in place.
      own.record_use(address, block->device, stream);
      if (wait != 0) own.streams().wait_for_uses(address);
      return UVMALLOC_OK;
    }
    const uvm::MoveRequest move{.source = block->location,
                                .destination = to_host ? Place::host() : Place::device(destination),
                                .stream_device = to_host ? block->location.index : destination,
                                .stream = stream,
                                .wait = wait != 0,
                                .held = false};
    if (own.move(address, move) != nullptr) return UVMALLOC_OK;
    return not_ours(function, address);
  });
}

uvmalloc_status uvmalloc_release_cached(uvmalloc_allocator* allocator) noexcept {
  return with(allocator, __func__, [&](auto& own) { own.release_cached(); });
}

uvmalloc_status uvmalloc_decay(uvmalloc_allocator* allocator) noexcept {
  return with(allocator, __func__,
              [&](auto& own) { own.limits().decay(std::chrono::steady_clock::now()); });
}

// ---- information

uvmalloc_status uvmalloc_describe(const uvmalloc_allocator* allocator, const void* address,
                                  uvmalloc_block* out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  if (out->struct_bytes < kFirstBlockBytes) {
    return too_small(__func__, out->struct_bytes, kFirstBlockBytes);
  }
  return with(allocator, __func__, [&](auto& own, const char* function) {
    const auto block = own.find(address);
    if (!block) return not_ours(function, address);
    fill(out, {.struct_bytes = 0,
               .base = block->base,
               .size_bytes = block->size_bytes,
               .requested_bytes = block->requested_bytes,
               .facade = static_cast<std::int32_t>(block->facade),
               .device = block->device,
               .place = number_of(block->location),
               .live = block->live,
               .movable = block->movable});
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_get_residency(const uvmalloc_allocator* allocator, const void* address,
                                       size_t size_bytes, int place, int exact,
                                       uint64_t* out_bytes) noexcept {
  if (out_bytes == nullptr) return null_argument(__func__, "out_bytes");
  *out_bytes = 0;
  return with(allocator, __func__, [&](auto& own, const char* function) {
    if (size_bytes == 0)
      return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}: size_bytes is 0", function);
    if (place != UVMALLOC_PLACE_HOST && place != UVMALLOC_PLACE_NOWHERE)
      require_device(function, own, place);
    const uvm::Inspection inspection = own.inspection();
    if (inspection.in_forked_child() || !own.find(address)) return not_ours(function, address);
    for (const auto& [at, bytes] : exact != 0 ? inspection.exact_residency(address, size_bytes)
                                              : inspection.residency(address, size_bytes)) {
      if (number_of(at) == place) *out_bytes = bytes;
    }
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_get_statistics(const uvmalloc_allocator* allocator,
                                        uvmalloc_statistics* out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  if (out->struct_bytes < kFirstStatisticsBytes) {
    return too_small(__func__, out->struct_bytes, kFirstStatisticsBytes);
  }
  return with(allocator, __func__, [&](auto& own) {
    const uvm::Statistics all = own.statistics();
    auto of = [&](Facade facade) -> uvmalloc_facade_statistics {
      const auto index = static_cast<std::size_t>(facade);
      const uvm::Gauge& bytes = all.facade_bytes[index];
      return {.allocations = all.allocations[index],
              .cache_hits = all.cache_hits[index],
              .live_bytes = bytes.current,
              .peak_bytes = bytes.peak,
              .allocated_bytes = bytes.increased};
    };
    const uvm::HintCounters& hints = own.inspection().hints();
    fill(out, {.struct_bytes = 0,
               .host = of(Facade::kHost),
               .pinned = of(Facade::kPinned),
               .device = of(Facade::kDevice),
               .live_bytes = all.live_bytes.current,
               .peak_bytes = all.live_bytes.peak,
               .touched_bytes = all.touched_bytes.current,
               .span_bytes = all.span_bytes.current,
               .budget_bytes = all.budget_bytes,
               .moves_to_devices = all.moves.host_to_device + all.moves.device_to_device,
               .moves_to_host = all.moves.device_to_host,
               .moved_bytes = all.moves.bytes,
               .prefetches = hints.of(uvm::HintKind::kPrefetch).sent.load(),
               .advice = hints.of(uvm::HintKind::kAdvise).sent.load(),
               .out_of_memory = all.out_of_memory});
  });
}

uvmalloc_status uvmalloc_reset_peaks(uvmalloc_allocator* allocator) noexcept {
  return with(allocator, __func__, [&](auto& own) {
    for (Facade facade : {Facade::kHost, Facade::kPinned, Facade::kDevice}) {
      for (int device = 0; device < own.inspection().runtime().device_count(); ++device) {
        own.reset_peaks(facade, device);
      }
    }
  });
}

uvmalloc_status uvmalloc_start_trace(uvmalloc_allocator* allocator, const char* file) noexcept {
  if (file == nullptr) return null_argument(__func__, "file");
  return with(allocator, __func__, [&](auto& own, const char* function) {
    const std::string why_not = own.tracing().start(file);
    if (why_not.empty()) return UVMALLOC_OK;
    return failure(UVMALLOC_ERROR_NOT_USABLE, "{}: {}", function, why_not);
  });
}

uvmalloc_status uvmalloc_stop_trace(uvmalloc_allocator* allocator) noexcept {
  return with(allocator, __func__, [](auto& own) { own.tracing().stop(); });
}

uvmalloc_status uvmalloc_mark_trace(uvmalloc_allocator* allocator, const char* text) noexcept {
  if (text == nullptr) return null_argument(__func__, "text");
  if (*text == '\0')
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}: the text is empty", __func__);
  return with(allocator, __func__, [&](auto& own) { own.tracing().mark(text); });
}
