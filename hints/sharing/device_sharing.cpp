#include "hints/sharing/device_sharing.hpp"

#include <cstdlib>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "hints/policy.hpp"
#include "hints/sharing/turn_folder.hpp"
#include "runtime/log.hpp"

namespace uvm::sharing {

DeviceSharing::DeviceSharing(const std::vector<SharedDevice>& devices, std::string folder) {
  if (devices.empty()) return;
  if (folder.empty()) folder = turn_folder(secure_getenv("XDG_RUNTIME_DIR"));
  by_device_.resize(devices.size());
  for (std::size_t index = 0; index < devices.size(); ++index) {
    const auto& [name, room_bytes] = devices[index];
    if (name.empty()) continue;
    Shared& shared = by_device_[index];
    std::string why;
    shared.room_bytes = room_bytes;
    shared.turns = SharedTurns::join(folder, name, TurnRules::for_device(room_bytes), &why);
    if (shared.turns == nullptr)
      log(LogLevel::kWarning, "programs do not take turns on device {}: {}", index, why);
  }
}

DeviceSharing::~DeviceSharing() {
  stop();
}

void DeviceSharing::start(Actions actions) {
  if (by_device_.empty()) return;
  actions_ = std::move(actions);
  watch_ = std::make_unique<WatchThread>("uvmalloc-turns", [this] {
    look();
    return policy::kHeldBytesPeriod;
  });
  watch_->set_wanted(true);
}

void DeviceSharing::stop() noexcept {
  watch_.reset();
}

void DeviceSharing::abandon() noexcept {
  if (watch_ != nullptr) watch_->abandon();
}

std::vector<SharingFigures> DeviceSharing::figures() const {
  std::vector<SharingFigures> figures;
  for (const Shared& shared : by_device_)
    figures.push_back(shared.turns == nullptr ? SharingFigures{} : shared.turns->figures());
  return figures;
}

void DeviceSharing::look() {
  for (std::size_t device = 0; device < by_device_.size(); ++device) {
    Shared& shared = by_device_[device];
    if (shared.turns != nullptr) look_at(static_cast<int>(device), shared);
  }
}

void DeviceSharing::look_at(int device, Shared& shared) {
  SharedTurns& turns = *shared.turns;
  try {
    const std::size_t held_bytes = publish(device, turns);
    if (turns.is_crowded()) turns.remove_gone_programs();
    if (held_bytes == 0 || !turns.is_crowded()) {
      shared.is_crowded = false;
      return;
    }
    if (!shared.is_crowded) {
      actions_.release_cached();
      publish(device, turns);
      if (!turns.is_crowded()) return;
      shared.is_crowded = true;
      if (!std::exchange(shared.is_logged, true)) log_crowd(device, shared);
    }
    actions_.plan_moves(device);
  } catch (const std::exception& error) {
    log_once(LogLevel::kWarning, "sharing",
             fmt::format("sharing of device {} was interrupted: {}", device, error.what()));
  }
}

void DeviceSharing::publish(int device) const {
  if (const Shared* shared = find(device)) publish(device, *shared->turns);
}

std::size_t DeviceSharing::publish(int device, SharedTurns& turns) const {
  const std::size_t bytes = actions_.held_bytes(device);
  turns.set_held_bytes(bytes);
  return bytes;
}

void DeviceSharing::log_crowd(int device, const Shared& shared) {
  const SharingFigures figures = shared.turns->figures();
  log(LogLevel::kWarning,
      "{} programs use {} of memory of device {}, which has {} for programs, so they take turns of "
      "{:.1f} s",
      figures.programs, format_size(figures.held_bytes), device, format_size(shared.room_bytes),
      static_cast<double>(TurnRules::for_device(shared.room_bytes).turn_ns) / 1e9);
}

}  // namespace uvm::sharing
