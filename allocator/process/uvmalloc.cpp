#include <uvmalloc/uvmalloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/allocator/process/aligned_allocation.hpp>
#include <uvmalloc/allocator/process/process_allocator.hpp>
#include <uvmalloc/runtime/external/external_runtime.hpp>
#include <uvmalloc/runtime/registry.hpp>

namespace {

using uvm::CachingManagedAllocator;
using uvm::Facade;
using uvm::Place;

static_assert(static_cast<int>(Facade::kHost) == UVMALLOC_HOST);
static_assert(static_cast<int>(Facade::kPinned) == UVMALLOC_PINNED);
static_assert(static_cast<int>(Facade::kDevice) == UVMALLOC_DEVICE);

// What the first version of each structure held; never changes.
constexpr std::size_t kFirstOptionsBytes =
    offsetof(uvmalloc_options, span_bytes) + sizeof(uvmalloc_options::span_bytes);
constexpr std::size_t kFirstBlockBytes =
    offsetof(uvmalloc_block, movable) + sizeof(uvmalloc_block::movable);
constexpr std::size_t kFirstStatisticsBytes =
    offsetof(uvmalloc_statistics, out_of_memory) + sizeof(uvmalloc_statistics::out_of_memory);

// No structure of this interface will ever be as large: a number that was never set, of which as
// many bytes would be looked at.
constexpr std::size_t kMostOptionsBytes = 4096;

// Without a destructor: exit handlers and other threads' last destructors may still fail and ask.
constexpr std::size_t kLastErrorBytes = 4096;
thread_local char last_error[kLastErrorBytes];

// Keeps what there is to say, cut to the room there is; where even that finds no memory, nothing.
template <class... Arguments>
uvmalloc_status failure(uvmalloc_status status, fmt::format_string<Arguments...> format,
                        Arguments&&... arguments) noexcept {
  try {
    const auto end = fmt::format_to_n(last_error, kLastErrorBytes - 1, format,
                                      std::forward<Arguments>(arguments)...);
    *end.out = '\0';
  } catch (...) {
    last_error[0] = '\0';
  }
  return status;
}

// Runs the body of a function of the interface; what it throws becomes a status.
template <class Body>
uvmalloc_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc& error) {
    return failure(UVMALLOC_ERROR_OUT_OF_MEMORY, "{}", error.what());
  } catch (const std::invalid_argument& error) {
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}", error.what());
  } catch (const std::runtime_error& error) {
    return failure(UVMALLOC_ERROR_NOT_USABLE, "{}", error.what());
  } catch (const std::exception& error) {
    return failure(UVMALLOC_ERROR_INTERNAL, "{}", error.what());
  } catch (...) {
    return failure(UVMALLOC_ERROR_INTERNAL, "an unknown exception");
  }
}

uvmalloc_status null_argument(const char* function, const char* argument) {
  return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}: {} is NULL", function, argument);
}

uvmalloc_status not_ours(const char* function, const void* address) {
  return failure(UVMALLOC_ERROR_NOT_OURS, "{}: {} is in no block of this allocator", function,
                 address);
}

uvmalloc_status no_device(const char* function, int device, int count) {
  return failure(UVMALLOC_ERROR_NO_DEVICE, "{}: device {} does not exist; there are {}", function,
                 device, count);
}

uvmalloc_status too_small(const char* function, std::size_t struct_bytes, std::size_t least) {
  return failure(UVMALLOC_ERROR_INVALID_ARGUMENT,
                 "{}: struct_bytes is {}; it is the size of the structure, {} at least", function,
                 struct_bytes, least);
}

CachingManagedAllocator* own(uvmalloc_allocator* handle) {
  return reinterpret_cast<CachingManagedAllocator*>(handle);
}
const CachingManagedAllocator* own(const uvmalloc_allocator* handle) {
  return reinterpret_cast<const CachingManagedAllocator*>(handle);
}
uvmalloc_allocator* handle_of(CachingManagedAllocator* allocator) {
  return reinterpret_cast<uvmalloc_allocator*>(allocator);
}

bool has_device(const CachingManagedAllocator& allocator, int device) {
  return device >= 0 && device < allocator.runtime().device_count();
}

std::int32_t number_of(Place place) {
  if (place.is_device()) return place.index;
  return place.is_host() ? UVMALLOC_PLACE_HOST : UVMALLOC_PLACE_NOWHERE;
}

// The caller's structure as this version knows it: members that an older caller lacks are zero.
// None where a newer caller has set one that is not known here.
std::optional<uvmalloc_options> known_options(const uvmalloc_options* given) {
  uvmalloc_options options{};
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const std::size_t common = std::min(given->struct_bytes, sizeof options);
  if (std::any_of(bytes + common, bytes + given->struct_bytes, [](auto byte) { return byte != 0; }))
    return std::nullopt;
  std::memcpy(&options, bytes, common);
  return options;
}

std::optional<uvm::Policy> policy_of(std::int32_t policy) {
  switch (policy) {
    case UVMALLOC_POLICY_AUTO:
      return uvm::Policy::kAuto;
    case UVMALLOC_POLICY_DRIVER:
      return uvm::Policy::kDriver;
  }
  return std::nullopt;
}

// As much of `all` as the caller's structure holds, whose struct_bytes is large enough.
template <class Structure>
void fill(Structure* out, Structure all) {
  all.struct_bytes = std::min(out->struct_bytes, sizeof all);
  std::memcpy(out, &all, all.struct_bytes);
}

std::int64_t copy_out(const std::string& text, char* buffer, std::size_t capacity_bytes) {
  if (buffer != nullptr && capacity_bytes != 0) {
    const std::size_t count = std::min(text.size(), capacity_bytes - 1);
    std::memcpy(buffer, text.data(), count);
    buffer[count] = '\0';
  }
  return static_cast<std::int64_t>(text.size()) + 1;
}

// copy_out() of what `make` returns, or -1.
template <class Make>
std::int64_t text_out(Make make, char* buffer, std::size_t capacity_bytes) {
  std::int64_t needed = -1;
  guarded([&] {
    needed = copy_out(make(), buffer, capacity_bytes);
    return UVMALLOC_OK;
  });
  return needed;
}

}  // namespace

// ---- version and errors

const char* uvmalloc_version(void) noexcept {
  return uvm::version();
}

int uvmalloc_version_number(void) noexcept {
  return UVMALLOC_VERSION_NUMBER;
}

const char* uvmalloc_status_name(int status) noexcept {
  switch (status) {
    case UVMALLOC_OK:
      return "UVMALLOC_OK";
    case UVMALLOC_ERROR_INVALID_ARGUMENT:
      return "UVMALLOC_ERROR_INVALID_ARGUMENT";
    case UVMALLOC_ERROR_OUT_OF_MEMORY:
      return "UVMALLOC_ERROR_OUT_OF_MEMORY";
    case UVMALLOC_ERROR_NO_DEVICE:
      return "UVMALLOC_ERROR_NO_DEVICE";
    case UVMALLOC_ERROR_NOT_USABLE:
      return "UVMALLOC_ERROR_NOT_USABLE";
    case UVMALLOC_ERROR_NOT_OURS:
      return "UVMALLOC_ERROR_NOT_OURS";
    case UVMALLOC_ERROR_DOUBLE_FREE:
      return "UVMALLOC_ERROR_DOUBLE_FREE";
    case UVMALLOC_ERROR_INTERIOR:
      return "UVMALLOC_ERROR_INTERIOR";
    case UVMALLOC_ERROR_INTERNAL:
      return "UVMALLOC_ERROR_INTERNAL";
  }
  return "unknown status";
}

const char* uvmalloc_last_error(void) noexcept {
  return last_error;
}

// ---- allocators

uvmalloc_status uvmalloc_create(const uvmalloc_options* options,
                                uvmalloc_allocator** out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  *out = nullptr;
  return guarded([&] {
    uvm::Configuration configuration;
    if (options != nullptr) {
      if (options->struct_bytes < kFirstOptionsBytes) {
        return too_small("uvmalloc_create", options->struct_bytes, kFirstOptionsBytes);
      }
      if (options->struct_bytes > kMostOptionsBytes) {
        return failure(UVMALLOC_ERROR_INVALID_ARGUMENT,
                       "uvmalloc_create: struct_bytes is {}; it is the size of the structure, {} "
                       "at most",
                       options->struct_bytes, kMostOptionsBytes);
      }
      const std::optional<uvmalloc_options> known = known_options(options);
      if (!known) {
        throw std::invalid_argument("uvmalloc_create: an option is set that this version lacks");
      }
      const std::optional<uvm::Policy> policy = policy_of(known->policy);
      if (!policy) throw std::invalid_argument("uvmalloc_create: there is no such policy");
      configuration.policy = *policy;
      if (known->runtime != nullptr) configuration.runtime = known->runtime;
      if (known->budget_bytes != 0) configuration.budget_bytes = known->budget_bytes;
      if (known->reserve_bytes != 0) configuration.reserve_bytes = known->reserve_bytes;
      if (known->span_bytes != 0) configuration.span_bytes = known->span_bytes;
      if (known->device_budget_bytes != 0) {
        configuration.device_budget_bytes = known->device_budget_bytes;
      }
      if (!std::isfinite(known->decay_seconds) || known->decay_seconds < 0) {
        throw std::invalid_argument(
            fmt::format("uvmalloc_create: decay_seconds is {}; accepted: seconds from 0 on",
                        known->decay_seconds));
      }
      configuration.decay_seconds = known->decay_seconds;
    }
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
  if (own(allocator) == uvm::process_allocator()) {
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT,
                   "uvmalloc_destroy: the process's allocator is never destroyed");
  }
  delete own(allocator);
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

uvmalloc_status uvmalloc_set_device_limit(uvmalloc_allocator* allocator, int device,
                                          std::uint64_t most_bytes) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    if (!has_device(*own(allocator), device)) {
      return no_device("uvmalloc_set_device_limit", device,
                       own(allocator)->runtime().device_count());
    }
    own(allocator)->set_device_limit(device, most_bytes);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_add_pressure_callback(uvmalloc_allocator* allocator,
                                               uvmalloc_pressure_callback callback,
                                               void* argument) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  if (callback == nullptr) return null_argument(__func__, "callback");
  return guarded([&] {
    own(allocator)->add_pressure_callback([=] { return callback(argument) != 0; });
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_device_count(const uvmalloc_allocator* allocator, int* out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  *out = 0;
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  *out = own(allocator)->runtime().device_count();
  return UVMALLOC_OK;
}

// ---- memory

uvmalloc_status uvmalloc_allocate(uvmalloc_allocator* allocator, int facade, int device,
                                  std::size_t size_bytes, std::size_t alignment_bytes,
                                  uvmalloc_stream stream, void** out) noexcept {
  if (out == nullptr) return null_argument(__func__, "out");
  *out = nullptr;
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    if (facade < UVMALLOC_HOST || facade > UVMALLOC_DEVICE) {
      throw std::invalid_argument(fmt::format("uvmalloc_allocate: there is no facade {}", facade));
    }
    if (!has_device(*own(allocator), device)) {
      return no_device("uvmalloc_allocate", device, own(allocator)->runtime().device_count());
    }
    *out = uvm::allocate_aligned(*own(allocator), static_cast<Facade>(facade), device, size_bytes,
                                 alignment_bytes, stream);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_free(uvmalloc_allocator* allocator, void* address) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  switch (own(allocator)->free(address)) {
    case uvm::FreeResult::kFreed:
      return UVMALLOC_OK;
    case uvm::FreeResult::kNotOurs:
      return not_ours(__func__, address);
    case uvm::FreeResult::kDouble:
      return failure(UVMALLOC_ERROR_DOUBLE_FREE, "uvmalloc_free: {} is free already", address);
    case uvm::FreeResult::kInterior:
      return failure(UVMALLOC_ERROR_INTERIOR, "uvmalloc_free: {} is not the start of its block",
                     address);
  }
  return failure(UVMALLOC_ERROR_INTERNAL, "uvmalloc_free: an unknown result");
}

uvmalloc_status uvmalloc_record_use(uvmalloc_allocator* allocator, const void* address, int device,
                                    uvmalloc_stream stream) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    if (!has_device(*own(allocator), device)) {
      return no_device("uvmalloc_record_use", device, own(allocator)->runtime().device_count());
    }
    if (own(allocator)->record_use(address, device, stream)) return UVMALLOC_OK;
    return not_ours("uvmalloc_record_use", address);
  });
}

uvmalloc_status uvmalloc_forget_stream(uvmalloc_allocator* allocator, int device,
                                       uvmalloc_stream stream) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    if (!has_device(*own(allocator), device)) {
      return no_device("uvmalloc_forget_stream", device, own(allocator)->runtime().device_count());
    }
    own(allocator)->forget_stream(device, stream);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_wait_for_uses(uvmalloc_allocator* allocator,
                                       const void* address) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    const auto block = own(allocator)->find(address);
    if (!block || !block->live) return not_ours("uvmalloc_wait_for_uses", address);
    own(allocator)->wait_for_uses(address);
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_move(uvmalloc_allocator* allocator, void* address, int destination,
                              uvmalloc_stream stream, int wait) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    const bool to_host = destination == UVMALLOC_PLACE_HOST;
    if (!to_host && !has_device(*own(allocator), destination)) {
      return no_device("uvmalloc_move", destination, own(allocator)->runtime().device_count());
    }
    const auto block = own(allocator)->find(address);
    if (!block || !block->live) return not_ours("uvmalloc_move", address);
    if (to_host && !block->location.is_device()) {
      // It was there; the stream may have written to it in place.
      own(allocator)->record_use(address, block->device, stream);
      if (wait != 0) own(allocator)->wait_for_uses(address);
      return UVMALLOC_OK;
    }
    const CachingManagedAllocator::Move move{
        .source = block->location,
        .destination = to_host ? Place::host() : Place::device(destination),
        .stream_device = to_host ? block->location.index : destination,
        .stream = stream,
        .wait = wait != 0,
        .held = false};
    if (own(allocator)->move(address, move) != nullptr) return UVMALLOC_OK;
    return not_ours("uvmalloc_move", address);
  });
}

uvmalloc_status uvmalloc_release_cached(uvmalloc_allocator* allocator) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    own(allocator)->release_cached();
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_decay(uvmalloc_allocator* allocator) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    own(allocator)->decay(std::chrono::steady_clock::now());
    return UVMALLOC_OK;
  });
}

// ---- what is known

uvmalloc_status uvmalloc_describe(const uvmalloc_allocator* allocator, const void* address,
                                  uvmalloc_block* out) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  if (out == nullptr) return null_argument(__func__, "out");
  if (out->struct_bytes < kFirstBlockBytes) {
    return too_small(__func__, out->struct_bytes, kFirstBlockBytes);
  }
  return guarded([&] {
    const auto block = own(allocator)->find(address);
    if (!block) return not_ours("uvmalloc_describe", address);
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

uvmalloc_status uvmalloc_get_statistics(const uvmalloc_allocator* allocator,
                                        uvmalloc_statistics* out) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  if (out == nullptr) return null_argument(__func__, "out");
  if (out->struct_bytes < kFirstStatisticsBytes) {
    return too_small(__func__, out->struct_bytes, kFirstStatisticsBytes);
  }
  return guarded([&] {
    const uvm::Statistics all = own(allocator)->statistics();
    auto of = [&](Facade facade) -> uvmalloc_facade_statistics {
      const auto index = static_cast<std::size_t>(facade);
      const uvm::Gauge& bytes = all.facade_bytes[index];
      return {.allocations = all.allocations[index],
              .cache_hits = all.cache_hits[index],
              .live_bytes = bytes.current,
              .peak_bytes = bytes.peak,
              .allocated_bytes = bytes.increased};
    };
    const uvm::HintCounters& hints = own(allocator)->hints();
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
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_reset_peaks(uvmalloc_allocator* allocator) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  return guarded([&] {
    for (Facade facade : {Facade::kHost, Facade::kPinned, Facade::kDevice}) {
      for (int device = 0; device < own(allocator)->runtime().device_count(); ++device) {
        own(allocator)->reset_peaks(facade, device);
      }
    }
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_start_trace(uvmalloc_allocator* allocator, const char* file) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  if (file == nullptr) return null_argument(__func__, "file");
  return guarded([&] {
    const std::string why_not = own(allocator)->start_trace(file);
    if (why_not.empty()) return UVMALLOC_OK;
    return failure(UVMALLOC_ERROR_NOT_USABLE, "uvmalloc_start_trace: {}", why_not);
  });
}

uvmalloc_status uvmalloc_stop_trace(uvmalloc_allocator* allocator) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  own(allocator)->stop_trace();
  return UVMALLOC_OK;
}

uvmalloc_status uvmalloc_mark_trace(uvmalloc_allocator* allocator, const char* text) noexcept {
  if (allocator == nullptr) return null_argument(__func__, "allocator");
  if (text == nullptr) return null_argument(__func__, "text");
  own(allocator)->mark_trace(text);
  return UVMALLOC_OK;
}

// ---- this process

std::int64_t uvmalloc_report_json(char* buffer, std::size_t capacity_bytes) noexcept {
  return text_out(uvm::report_json, buffer, capacity_bytes);
}

std::int64_t uvmalloc_report_json_of(const char* figures_file, char* buffer,
                                     std::size_t capacity_bytes) noexcept {
  if (figures_file == nullptr) return -1;
  return text_out(
      [&] {
        std::string why_not;
        std::string text = uvm::report_json_of(figures_file, &why_not);
        if (text.empty()) throw std::runtime_error(why_not);
        return text;
      },
      buffer, capacity_bytes);
}

std::int64_t uvmalloc_doctor_json(char* buffer, std::size_t capacity_bytes) noexcept {
  return text_out(uvm::doctor_json, buffer, capacity_bytes);
}

void uvmalloc_trace_mark(const char* text) noexcept {
  uvm::CachingManagedAllocator* allocator = uvm::process_allocator();
  if (allocator != nullptr && text != nullptr) allocator->mark_trace(text);
}

int uvmalloc_set_host_managed(int managed) noexcept {
  const auto memory = managed == 0   ? uvm::HostMemory::kMalloc
                      : managed == 2 ? uvm::HostMemory::kAlwaysManaged
                                     : uvm::HostMemory::kManaged;
  return static_cast<int>(uvm::set_host_memory(memory));
}

int uvmalloc_is_enabled() noexcept {
  try {
    return uvm::is_framework_enabled();
  } catch (...) {
    return 0;  // out of memory while looking
  }
}

int uvmalloc_set_move_on_copy(int on) noexcept {
  const int before = uvmalloc_move_on_copy();
  const uvm::MoveMode configured = uvm::configured_move_mode();
  const auto off = configured == uvm::MoveMode::kAlias ? uvm::MoveMode::kCopyOnWrite : configured;
  uvm::set_move_mode(on != 0 ? uvm::MoveMode::kAlias : off);
  return before;
}

int uvmalloc_move_on_copy() noexcept {
  return uvm::move_mode() == uvm::MoveMode::kAlias;
}

int uvmalloc_set_thread_move_on_copy(int on) noexcept {
  return uvm::set_thread_aliases(on != 0);
}
