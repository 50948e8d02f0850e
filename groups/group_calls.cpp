// The C interface of groups.
#include <uvmalloc/uvmalloc_groups.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

#include <uvmalloc/allocator.hpp>
#include <uvmalloc/groups.hpp>
#include "allocator/process/c_interface.hpp"

namespace {

using uvm::CachingManagedAllocator;
using uvm::DeviceStream;
using uvm::Facade;
using uvm::GroupCopies;
using uvm::GroupNumber;
using uvm::Groups;
using uvm::GroupState;
using uvm::c_interface::failure;
using uvm::c_interface::guarded;
using uvm::c_interface::not_ours;
using uvm::c_interface::null_argument;
using uvm::c_interface::too_small;

static_assert(static_cast<int>(GroupState::kAwake) == UVMALLOC_GROUP_AWAKE);
static_assert(static_cast<int>(GroupState::kAsleep) == UVMALLOC_GROUP_ASLEEP);
static_assert(static_cast<int>(GroupState::kDiscarded) == UVMALLOC_GROUP_DISCARDED);
static_assert(static_cast<int>(GroupState::kInFile) == UVMALLOC_GROUP_IN_FILE);
static_assert(static_cast<int>(GroupCopies::kAuto) == UVMALLOC_COPIES_AUTO);
static_assert(static_cast<int>(GroupCopies::kKept) == UVMALLOC_COPIES_KEPT);
static_assert(static_cast<int>(GroupCopies::kNone) == UVMALLOC_COPIES_NONE);

// The size of the first version of each structure. These sizes never change.
constexpr std::size_t kFirstOptionsBytes = offsetof(uvmalloc_group_options, floor_bytes);
constexpr std::size_t kFirstInfoBytes = offsetof(uvmalloc_group_info, idle_sleeps);
constexpr std::size_t kSecondInfoBytes = offsetof(uvmalloc_group_info, spill_bytes);

template <class Body>
uvmalloc_status with(uvmalloc_allocator* allocator, const char* function, Body body) noexcept {
  if (allocator == nullptr) return null_argument(function, "allocator");
  return guarded([&]() -> uvmalloc_status {
    try {
      return body(*Groups::of(*reinterpret_cast<CachingManagedAllocator*>(allocator)));
    } catch (const std::out_of_range& error) {
      return failure(UVMALLOC_ERROR_NO_DEVICE, "{}: {}", function, error.what());
    }
  });
}

uvmalloc_status bad_flags(const char* function, int flags, int accepted) {
  return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}: the flags are {}; accepted: 0, {}", function,
                 flags, accepted);
}

}  // namespace

extern "C" {

uvmalloc_status uvmalloc_group_open(uvmalloc_allocator* allocator, const char* name,
                                    uvmalloc_group* out) noexcept {
  const char* function = __func__;
  if (name == nullptr) return null_argument(function, "name");
  if (out == nullptr) return null_argument(function, "out");
  *out = 0;
  return with(allocator, function, [&](Groups& groups) {
    *out = static_cast<uvmalloc_group>(groups.open(name));
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_group_allocate(uvmalloc_allocator* allocator, uvmalloc_group group,
                                        int device, size_t bytes, uvmalloc_stream stream,
                                        void** out) noexcept {
  const char* function = __func__;
  if (out == nullptr) return null_argument(function, "out");
  *out = nullptr;
  return with(allocator, function, [&](Groups& groups) {
    *out = groups.allocate(GroupNumber{group}, Facade::kDevice, bytes,
                           DeviceStream::named(device, stream));
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_group_add(uvmalloc_allocator* allocator, uvmalloc_group group,
                                   const void* address) noexcept {
  const char* function = __func__;
  if (address == nullptr) return null_argument(function, "address");
  return with(allocator, function, [&](Groups& groups) {
    return groups.add(GroupNumber{group}, address) ? UVMALLOC_OK : not_ours(function, address);
  });
}

uvmalloc_status uvmalloc_group_remove(uvmalloc_allocator* allocator, const void* address) noexcept {
  const char* function = __func__;
  return with(allocator, function, [&](Groups& groups) {
    return groups.remove(address) ? UVMALLOC_OK : not_ours(function, address);
  });
}

uvmalloc_status uvmalloc_group_configure(uvmalloc_allocator* allocator, uvmalloc_group group,
                                         const uvmalloc_group_options* options) noexcept {
  const char* function = __func__;
  if (options == nullptr) return null_argument(function, "options");
  if (options->struct_bytes < kFirstOptionsBytes)
    return too_small(function, options->struct_bytes, kFirstOptionsBytes);
  if (options->copies < UVMALLOC_COPIES_AUTO || options->copies > UVMALLOC_COPIES_NONE)
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT,
                   "{}: copies is {}; accepted: 0 (auto), 1 (kept), 2 (none)", function,
                   options->copies);
  if (options->pinned != 0 && options->pinned != 1)
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}: pinned is {}; accepted: 0, 1", function,
                   options->pinned);
  uvmalloc_group_options all{};
  std::memcpy(&all, options, std::min(options->struct_bytes, sizeof all));
  if (static_cast<double>(all.idle_ms) > 1000 * uvm::kMostIdleSeconds)
    return failure(UVMALLOC_ERROR_INVALID_ARGUMENT, "{}: idle_ms is {}; accepted: 0 to 10^12",
                   function, all.idle_ms);
  return with(allocator, function, [&](Groups& groups) {
    groups.set(GroupNumber{group},
               {.priority = options->priority,
                .pinned = options->pinned != 0,
                .floor_bytes = all.floor_bytes,
                .idle = std::chrono::milliseconds(all.idle_ms),
                .limit_bytes = options->limit_bytes == 0 ? SIZE_MAX : options->limit_bytes,
                .copies = static_cast<GroupCopies>(options->copies),
                .file = all.file == nullptr ? "" : all.file});
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_group_sleep(uvmalloc_allocator* allocator, uvmalloc_group group,
                                     int device, uvmalloc_stream stream, int flags,
                                     uint64_t* out_bytes) noexcept {
  const char* function = __func__;
  if (flags != 0 && flags != UVMALLOC_GROUP_DISCARD)
    return bad_flags(function, flags, UVMALLOC_GROUP_DISCARD);
  return with(allocator, function, [&](Groups& groups) {
    const std::size_t bytes =
        groups.sleep(GroupNumber{group}, DeviceStream::named(device, stream), flags != 0);
    if (out_bytes != nullptr) *out_bytes = bytes;
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_group_wake(uvmalloc_allocator* allocator, uvmalloc_group group, int device,
                                    uvmalloc_stream stream, int flags,
                                    uint64_t* out_bytes) noexcept {
  const char* function = __func__;
  if (flags != 0 && flags != UVMALLOC_GROUP_LAZILY)
    return bad_flags(function, flags, UVMALLOC_GROUP_LAZILY);
  return with(allocator, function, [&](Groups& groups) {
    const std::size_t bytes =
        groups.wake(GroupNumber{group}, DeviceStream::named(device, stream), flags != 0);
    if (out_bytes != nullptr) *out_bytes = bytes;
    return UVMALLOC_OK;
  });
}

uvmalloc_status uvmalloc_group_describe(uvmalloc_allocator* allocator, uvmalloc_group group,
                                        uvmalloc_group_info* out) noexcept {
  const char* function = __func__;
  if (out == nullptr) return null_argument(function, "out");
  if (out->struct_bytes < kFirstInfoBytes)
    return too_small(function, out->struct_bytes, kFirstInfoBytes);
  return with(allocator, function, [&](Groups& groups) {
    const uvm::GroupFigures figures = groups.figures(GroupNumber{group});
    out->state = static_cast<int32_t>(figures.state);
    out->blocks = figures.blocks;
    out->bytes = figures.bytes;
    out->page_bytes = figures.page_bytes;
    out->device_bytes = figures.device_bytes;
    out->host_bytes = figures.host_bytes;
    out->sleeps = figures.sleeps;
    out->wakes = figures.wakes;
    out->kept_bytes = figures.kept_bytes;
    out->left_bytes = figures.left_bytes;
    if (out->struct_bytes >= kSecondInfoBytes) out->idle_sleeps = figures.idle_sleeps;
    if (out->struct_bytes < sizeof *out) return UVMALLOC_OK;
    out->spill_bytes = figures.spill_bytes;
    out->file_bytes = figures.file_bytes;
    return UVMALLOC_OK;
  });
}

}  // extern "C"
