// Device memory shared by processes: the importer maps the pages of the exporter's memfd.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include "sim/engine/machine.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

constexpr const char* kDeviceMemfd = "uvmsim-device";

// Opens the other process's memfd. Returns -1 if there is no such memfd.
int open_memfd(const SharedMemory& shared) {
  const std::string path =
      "/proc/" + std::to_string(shared.process) + "/fd/" + std::to_string(shared.memfd);
  std::array<char, 64> target{};
  if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) return -1;
  if (std::string(target.data()).find(kDeviceMemfd) == std::string::npos) return -1;
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

}  // namespace

Status Machine::export_memory(const void* address, SharedMemory* out) {
  const std::lock_guard lock(mutex_);
  const AllocationRecord* record = allocations_.find(reinterpret_cast<std::uintptr_t>(address));
  if (record == nullptr) return Status::kInvalidValue;
  const Allocation& allocation = record->allocation;
  if (!allocation.is_shareable()) return Status::kInvalidValue;
  *out = {getpid(), device_only_.memfd(), device_only_.offset_of(allocation.address),
          allocation.size_bytes, allocation.id};
  return Status::kOk;
}

Status Machine::import_memory(int device, const SharedMemory& shared, void** out) {
  if (shared.process == getpid()) return Status::kInvalidContext;
  const std::lock_guard lock(mutex_);
  const std::pair key{shared.process, shared.id};
  if (const auto known = imports_.find(key); known != imports_.end()) {
    ++known->second.uses;
    *out = known->second.address;
    return Status::kOk;
  }
  const int memfd = open_memfd(shared);
  if (memfd < 0) return Status::kNotFound;
  const std::uintptr_t address = device_only_.allocate(shared.size_bytes);
  const std::size_t bytes = round_up(shared.size_bytes, kPageBytes);
  const bool is_shown = address != 0 && device_only_.show(address, bytes, memfd, shared.offset);
  close(memfd);
  if (!is_shown) {
    if (address != 0) device_only_.free(address, shared.size_bytes);
    return Status::kOutOfMemory;
  }
  *out = reinterpret_cast<void*>(address);
  Allocation allocation = describe(MemoryKind::kDevice, *out, shared.size_bytes, device, 0);
  allocation.imported = true;
  allocations_.add({.allocation = allocation, .placement = nullptr});
  imports_.emplace(key, Import{*out, 1});
  return Status::kOk;
}

Status Machine::close_imported(void* address) {
  const std::lock_guard lock(mutex_);
  for (auto it = imports_.begin(); it != imports_.end(); ++it) {
    if (it->second.address != address) continue;
    if (--it->second.uses != 0) return Status::kOk;
    const auto user = reinterpret_cast<std::uintptr_t>(address);
    const Allocation allocation = allocations_.find(user)->allocation;
    timeline_.wait_until(timeline_.device_completion_ns(allocation.device));
    // If the range cannot map its own pages again, its addresses are never reused.
    if (device_only_.show_own(user, round_up(allocation.size_bytes, kPageBytes)))
      device_only_.free(user, allocation.size_bytes);
    allocations_.remove(user);
    imports_.erase(it);
    return Status::kOk;
  }
  return Status::kInvalidValue;
}

}  // namespace uvmsim
