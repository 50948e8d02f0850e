#include "allocator/placement/live_planner.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <uvmalloc/errors.hpp>
#include "hints/oversubscription/policy.hpp"
#include "runtime/log.hpp"

namespace uvm {

using live::BlockExtent;
using live::LiveFigures;

namespace {

std::string slowdown_text(double slowdown) {
  constexpr double kMostTold = 10;
  return slowdown > kMostTold ? "10 or more" : fmt::format("{:.1f}", slowdown);
}

}  // namespace

LivePlanner::LivePlanner(Machine& machine, HeapState& state,
                         const sharing::DeviceSharing& device_sharing, SpillLimit& spill_limit)
    : machine_(machine),
      state_(state),
      sharing_(device_sharing),
      spill_limit_(spill_limit),
      policy_(live::make_live_policy(machine.configuration.policy)),
      fails_(static_cast<std::size_t>(machine.device_count())),
      plans_(static_cast<std::size_t>(machine.device_count())) {}

LivePlanner::~LivePlanner() = default;

void LivePlanner::set_listener(Listener listener) {
  // A forked child plans nothing, and a thread that exists only in the parent may hold the lock.
  if (machine_.in_forked_child()) return;
  const RankedGuard lock(sending_);
  if (listener_ && wants_uses()) listener_(false);
  listener_ = std::move(listener);
  if (listener_ && wants_uses()) listener_(true);
}

void LivePlanner::set_wanted_by_groups(bool wanted) noexcept {
  if (machine_.in_forked_child()) return;
  const RankedGuard lock(sending_);
  is_wanted_by_groups_ = wanted;
  tell_listener();
}

void LivePlanner::begin(const std::vector<int>& devices) noexcept {
  if (policy_ == nullptr || machine_.in_forked_child()) return;
  try {
    const RankedGuard lock(sending_);
    for (const int device : devices) {
      // On this device a prefetch waits for its copy, so planned moves would block the program.
      if (machine_.device(device).capabilities.prefetch_blocks) continue;
      if (plan_of(device) == nullptr) {
        auto plan = std::make_unique<DevicePlan>(
            machine_, state_, *policy_, plan_lock_,
            [this](int other) { return plan_of(other) != nullptr; }, spill_limit_.most_slowdown(),
            device);
        const RankedGuard decision(plan_lock_);
        plans_[static_cast<std::size_t>(device)] = std::move(plan);
      }
      look_at_peers();
      if (watches_.exchange(true, std::memory_order_relaxed)) continue;
      log(LogLevel::kInfo, "device {} has less memory than the program uses: moves are planned",
          device);
      tell_listener();
    }
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "moves are not planned: {}", error.what());
  }
}

void LivePlanner::look_at_peers() {
  for (auto& plan : plans_) {
    if (plan != nullptr) plan->look_at_peers();
  }
}

// If host memory runs out, the pages stay on the peers until the driver needs the room.
void LivePlanner::end_plan(std::unique_ptr<DevicePlan>& plan) noexcept {
  try {
    plan->leave_peers();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "pages that were moved to other devices stay there: {}", error.what());
  }
  fails_[static_cast<std::size_t>(plan->device())].store(false, std::memory_order_relaxed);
  std::unique_ptr<DevicePlan> ended;
  {
    const RankedGuard lock(plan_lock_);
    ended_ += plan->figures();
    ended = std::move(plan);
  }
  ended.reset();
  const auto is_there = [](const auto& other) { return other != nullptr; };
  if (std::ranges::any_of(plans_, is_there)) return;
  watches_.store(false, std::memory_order_relaxed);
  tell_listener();
}

void LivePlanner::end_all() noexcept {
  for (auto& plan : plans_) {
    if (plan != nullptr) end_plan(plan);
  }
}

void LivePlanner::tell_listener() noexcept {
  const bool wants = is_watching() || is_wanted_by_groups_;
  if (wants_uses_.exchange(wants, std::memory_order_relaxed) == wants) return;
  try {
    if (listener_) listener_(wants);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "PyTorch's operators cannot be observed to plan moves: {}",
        error.what());
  }
}

// With the plan lock held.
void LivePlanner::note_frees() {
  frees_.take(&noted_frees_);
  for (auto& plan : plans_) {
    if (plan == nullptr) continue;
    for (const std::uintptr_t address : noted_frees_) plan->freed(address);
  }
}

// Calls `act` under the sending lock, after the frees so far. If `act` throws because host memory
// runs out, planning stops.
template <class Act>
void LivePlanner::act(Act act) noexcept {
  if (!is_watching() || machine_.in_forked_child()) return;
  const RankedGuard lock(sending_);
  try {
    if (free_failed_.exchange(false, std::memory_order_relaxed)) throw std::bad_alloc();
    if (!frees_.is_empty()) {
      const RankedGuard decision(plan_lock_);
      note_frees();
    }
    act();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "moves are not planned any more: {}", error.what());
    end_all();
  }
}

void LivePlanner::end() noexcept {
  act([this] { end_all(); });
}

DevicePlan* LivePlanner::plan_of(int device) {
  const auto index = static_cast<std::size_t>(device);
  return index < plans_.size() ? plans_[index].get() : nullptr;
}

void LivePlanner::allocated(const void* address, Facade facade, int device, std::size_t size_bytes,
                            StreamHandle stream) noexcept {
  if (size_bytes < policy::kLeastLoggedBytes || state_.is_capturing()) return;
  act([&]() UVM_NOT_ANALYSED {
    const BlockExtent block{address_of(address), size_bytes};
    for (std::size_t each = 0; each < plans_.size(); ++each) {
      if (plans_[each] == nullptr) continue;
      const DeviceStream user = DeviceStream::named(static_cast<int>(each), stream);
      const bool is_used_here = facade == Facade::kDevice && user.device == device;
      plans_[each]->allocated(block, is_used_here && machine_.events.may_wait(user), user);
    }
    if (facade == Facade::kDevice && plan_of(device) == nullptr) look_at_peers();
  });
}

// A program that frees many blocks without a kernel between does a part of the next decision's
// work, if no decision is under way.
void LivePlanner::freed(const void* address) noexcept UVM_NOT_ANALYSED {
  if (!is_watching() || machine_.in_forked_child()) return;
  try {
    if (frees_.add(address_of(address)) < policy::kMostWaitingFrees) return;
    const std::unique_lock lock(plan_lock_, std::try_to_lock);
    if (lock.owns_lock()) note_frees();
  } catch (const std::exception&) {
    free_failed_.store(true, std::memory_order_relaxed);
  }
}

void LivePlanner::note_uses(int device, StreamHandle stream, std::span<const live::UseRange> uses,
                            live::Launch launch) noexcept {
  if (state_.is_capturing()) return;
  std::optional<live::ThrashDetector::Verdict> verdict;
  act([&]() UVM_NOT_ANALYSED {
    DevicePlan* plan = plan_of(device);
    const DeviceStream user = DeviceStream::named(device, stream);
    if (plan == nullptr || !machine_.events.may_wait(user)) return;
    plan->note_uses(user, uses, launch);
    verdict = plan->thrashing().take_verdict();
    if (plan->is_over() && !sharing_.is_crowded(device))
      end_plan(plans_[static_cast<std::size_t>(device)]);
  });
  if (verdict) react_to(device, *verdict);
}

void LivePlanner::leave_device(int device, StreamHandle stream) noexcept {
  act([&]() UVM_NOT_ANALYSED {
    DevicePlan* plan = plan_of(device);
    const DeviceStream user = DeviceStream::named(device, stream);
    if (plan != nullptr && machine_.events.may_wait(user)) plan->leave_device(user);
  });
}

// Called without the sending lock, because ends_thrashing() takes the interpreter's lock, and the
// thread that holds the interpreter's lock may be waiting for the sending lock.
void LivePlanner::react_to(int device, const live::ThrashDetector::Verdict& verdict) noexcept {
  try {
    const bool fails = verdict.is_too_slow && spill_limit_.ends_thrashing(device);
    fails_[static_cast<std::size_t>(device)].store(fails, std::memory_order_relaxed);
    if (!verdict.is_new || fails || machine_.configuration.thrashing != Thrashing::kWarn) return;
    log(LogLevel::kWarning,
        "device {} has too little memory for the program: {} went to the host and back, and steps "
        "take about {} times as long as with enough memory. Smaller batches help. A search for the "
        "largest batch needs an out-of-memory error: {} raises one",
        device, format_size(verdict.moved_bytes), slowdown_text(verdict.slowdown),
        machine_.configuration.name_of("UVMALLOC_SPILL=2x", "most_slowdown = 2"));
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "device {} has too little memory for the program: {}", device,
        error.what());
  }
}

bool LivePlanner::plans_for(int device) const noexcept UVM_NOT_ANALYSED {
  if (!is_watching() || machine_.in_forked_child()) return false;
  const RankedGuard lock(plan_lock_);
  const auto index = static_cast<std::size_t>(device);
  return index < plans_.size() && plans_[index] != nullptr;
}

std::size_t LivePlanner::move_pages(std::span<const PageSpan> pages, Place destination,
                                    const DeviceStream& stream) noexcept {
  std::size_t brought = 0;
  act([&]() UVM_NOT_ANALYSED {
    if (!machine_.events.may_wait(stream)) return;
    for (auto& plan : plans_) {
      if (plan == nullptr) continue;
      if (destination == Place::device(plan->device())) {
        brought = plan->bring_pages(pages, stream);
      } else {
        plan->leave_pages(pages, stream);
      }
    }
  });
  return brought;
}

std::optional<std::size_t> LivePlanner::make_free_room(const DeviceStream& stream) noexcept {
  std::optional<std::size_t> pages;
  act([&]() UVM_NOT_ANALYSED {
    DevicePlan* plan = plan_of(stream.device);
    if (plan != nullptr && machine_.events.may_wait(stream)) pages = plan->make_free_room(stream);
  });
  return pages;
}

void LivePlanner::step_boundary() noexcept {
  act([&]() UVM_NOT_ANALYSED {
    for (auto& plan : plans_) {
      if (plan != nullptr) plan->step_boundary();
    }
  });
}

void LivePlanner::check_thrashing(int device, std::size_t requested_bytes) {
  if (!fails_[static_cast<std::size_t>(device)].exchange(false, std::memory_order_relaxed)) return;
  act([&]() UVM_NOT_ANALYSED {
    if (DevicePlan* plan = plan_of(device)) plan->thrashing().begin_again();
  });
  spill_limit_.note_error(device);
  throw OutOfMemoryError(
      requested_bytes,
      fmt::format(
          "uvmalloc: out of memory: device {} has less memory than a step uses, and most of "
          "the step's time goes into moving memory. {}",
          device, spill_limit_.way_to_spill()),
      true);
}

// A forked child takes no lock: it has one thread, and its plans do not change.
LiveFigures LivePlanner::figures() const {
  std::optional<RankedGuard<PlanLock>> lock;
  if (!machine_.in_forked_child()) lock.emplace(plan_lock_);
  LiveFigures sum = ended_;
  for (const auto& plan : plans_) {
    if (plan != nullptr) sum += plan->figures();
  }
  return sum;
}

void LivePlanner::correct_places(const void* first_page,
                                 std::vector<Place>* places) const noexcept UVM_NOT_ANALYSED {
  std::optional<RankedGuard<PlanLock>> lock;
  if (!machine_.in_forked_child()) lock.emplace(plan_lock_);
  for (const auto& plan : plans_) {
    if (plan != nullptr) plan->correct_places(page_of(address_of(first_page)), places);
  }
}

void LivePlanner::abandon() noexcept UVM_NOT_ANALYSED {
  for (auto& plan : plans_) {
    if (plan != nullptr) plan->abandon();
  }
}

}  // namespace uvm
