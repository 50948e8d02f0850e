#include "sim/engine/sharing.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include "sim/engine/machine_state.hpp"
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

Status Sharing::export_memory(const void* address, SharedMemory* out) {
  const auto state = shared_.lock();
  const AllocationRecord* record =
      state->allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (record == nullptr) return Status::kInvalidValue;
  const Allocation& allocation = record->allocation;
  if (!allocation.is_shareable()) return Status::kInvalidValue;
  *out = {getpid(), state->device_only.memfd(), state->device_only.offset_of(allocation.address),
          allocation.size_bytes, allocation.id};
  return Status::kOk;
}

Status Sharing::import_memory(int device, const SharedMemory& shared, void** out) {
  if (shared.process == getpid()) return Status::kInvalidContext;
  const auto state = shared_.lock();
  const std::pair key{shared.process, shared.id};
  if (const auto known = state->imports.find(key); known != state->imports.end()) {
    ++known->second.uses;
    *out = known->second.address;
    return Status::kOk;
  }
  const int memfd = open_memfd(shared);
  if (memfd < 0) return Status::kNotFound;
  const std::uintptr_t address = state->device_only.allocate(shared.size_bytes);
  const std::size_t bytes = round_up(shared.size_bytes, kPageBytes);
  const bool is_shown =
      address != 0 && state->device_only.show(address, bytes, memfd, shared.offset);
  close(memfd);
  if (!is_shown) {
    if (address != 0) state->device_only.free(address, shared.size_bytes);
    return Status::kOutOfMemory;
  }
  *out = reinterpret_cast<void*>(address);
  Allocation allocation = state->describe(MemoryKind::kDevice, *out, shared.size_bytes, device, 0);
  allocation.imported = true;
  state->allocations.add({.allocation = allocation, .placement = nullptr});
  state->imports.emplace(key, MachineState::Import{*out, 1});
  return Status::kOk;
}

Status Sharing::close_imported(void* address) {
  const auto state = shared_.lock();
  for (auto it = state->imports.begin(); it != state->imports.end(); ++it) {
    if (it->second.address != address) continue;
    if (--it->second.uses != 0) return Status::kOk;
    const auto user = reinterpret_cast<std::uintptr_t>(address);
    const Allocation allocation = state->allocations.find(user)->allocation;
    state->timeline.wait_until(state->timeline.device_completion_ns(allocation.device));
    // If the range cannot map its own pages again, its addresses are never reused.
    if (state->device_only.show_own(user, round_up(allocation.size_bytes, kPageBytes)))
      state->device_only.free(user, allocation.size_bytes);
    state->allocations.remove(user);
    state->imports.erase(it);
    return Status::kOk;
  }
  return Status::kInvalidValue;
}

}  // namespace uvmsim
