#include <uvmalloc/allocator/engine/device_sharing.hpp>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/hints/arbiter/turn_folder.hpp>
#include <uvmalloc/hints/background_thread.hpp>
#include <uvmalloc/hints/live/live_policy.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm {

using arbiter::SharedTurns;
using arbiter::SharingFigures;
using arbiter::TurnRules;

namespace {

constexpr auto kPeriod = std::chrono::milliseconds(250);

// The same in every program of the machine, whichever devices a program sees.
std::string name_of(const Machine& machine, int device) {
  const DeviceDescription& description = machine.device(device);
  if (!description.bus_address.empty()) return description.bus_address;
  return fmt::format("{}-{}", machine.runtime.name(), device);
}

// Empty, or one clause: kernels do not wait where no moves are planned.
std::string why_without_turns(const Machine& machine, int device) {
  const DevicePlacement& placement = machine.budget.devices[static_cast<std::size_t>(device)];
  if (placement.coherent) return "it uses the host's memory";
  if (machine.device(device).capabilities.prefetch_blocks) return "its prefetches wait for copies";
  if (live::make_live_policy(machine.configuration.policy) == nullptr) {
    return fmt::format("the policy is {}; accepted: auto, planned, lru",
                       to_string(machine.configuration.policy));
  }
  return {};
}

}  // namespace

DeviceSharing::DeviceSharing(Machine& machine, HeapState& state)
    : machine_(machine), state_(state) {
  if (!machine.configuration.share) return;
  turns_.resize(static_cast<std::size_t>(machine.device_count()));
  crowds_.resize(turns_.size());
  for (int device = 0; device < machine.device_count(); ++device) {
    std::string why = why_without_turns(machine, device);
    if (why.empty()) turns_[static_cast<std::size_t>(device)] = join(device, &why);
    if (!why.empty())
      log(LogLevel::kWarning, "programs do not take turns on device {}: {}", device, why);
  }
}

std::unique_ptr<SharedTurns> DeviceSharing::join(int device, std::string* why) const {
  std::string folder = machine_.configuration.share_folder;
  if (folder.empty()) folder = arbiter::turn_folder(secure_getenv("XDG_RUNTIME_DIR"));
  return SharedTurns::join(folder, name_of(machine_, device),
                           TurnRules::for_device(room_bytes(device)), why);
}

std::size_t DeviceSharing::room_bytes(int device) const {
  return machine_.budget.devices[static_cast<std::size_t>(device)].soft_budget_bytes;
}

DeviceSharing::~DeviceSharing() {
  stop();
}

void DeviceSharing::start(Actions actions) {
  if (turns_.empty()) return;
  actions_ = std::move(actions);
  watch_ = std::make_unique<Watch>();
  watch_->thread = start_background_thread([this] { watch(); });
}

void DeviceSharing::stop() noexcept {
  if (watch_ == nullptr) return;
  {
    const std::lock_guard lock(watch_->mutex);
    watch_->stops = true;
  }
  watch_->changed.notify_all();
  if (watch_->thread.joinable()) watch_->thread.join();
  watch_.reset();
}

// The condition counts a thread that waits, which the child does not have, so it is not destroyed.
void DeviceSharing::abandon() noexcept {
  (void)watch_.release();
}

std::vector<SharingFigures> DeviceSharing::figures() const {
  std::vector<SharingFigures> figures;
  for (const auto& turns : turns_)
    figures.push_back(turns == nullptr ? SharingFigures{} : turns->figures());
  return figures;
}

void DeviceSharing::watch() {
  std::unique_lock lock(watch_->mutex);
  while (!watch_->changed.wait_for(lock, kPeriod, [this] { return watch_->stops; })) {
    lock.unlock();
    for (int device = 0; device < machine_.device_count(); ++device) {
      if (SharedTurns* turns = turns_of(device)) look_at(device, *turns);
    }
    lock.lock();
  }
}

void DeviceSharing::look_at(int device, SharedTurns& turns) {
  try {
    const std::size_t held_bytes = publish(device, turns);
    if (turns.is_crowded()) turns.remove_gone_programs();
    Crowd& crowd = crowds_[static_cast<std::size_t>(device)];
    if (held_bytes == 0 || !turns.is_crowded()) {
      crowd.is_there = false;
      return;
    }
    if (!crowd.is_there) {
      actions_.release_cached();
      publish(device, turns);
      if (!turns.is_crowded()) return;
      crowd.is_there = true;
      if (!std::exchange(crowd.is_told, true)) tell(device, turns);
    }
    actions_.plan_moves(device);
  } catch (const std::exception& error) {
    log_once(LogLevel::kWarning, "sharing",
             fmt::format("device {} is not shared well: {}", device, error.what()));
  }
}

std::size_t DeviceSharing::publish(int device, SharedTurns& turns) const {
  std::size_t bytes = 0;
  {
    const HeapGuard heap(state_);
    bytes = heap->ledger.bytes_at(Place::device(device));
  }
  turns.set_held_bytes(bytes);
  return bytes;
}

void DeviceSharing::tell(int device, const SharedTurns& turns) const {
  const SharingFigures figures = turns.figures();
  const std::size_t room = room_bytes(device);
  log(LogLevel::kWarning,
      "{} programs hold {} of device {}, which has {} for them: they take turns of {:.1f} s",
      figures.programs, format_size(figures.held_bytes), device, format_size(room),
      static_cast<double>(TurnRules::for_device(room).turn_ns) / 1e9);
}

}  // namespace uvm
