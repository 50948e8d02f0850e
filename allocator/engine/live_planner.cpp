#include <uvmalloc/allocator/engine/live_planner.hpp>

#include <algorithm>
#include <chrono>
#include <exception>

#include <fmt/format.h>

#include <uvmalloc/allocator/engine/peer_room.hpp>
#include <uvmalloc/allocator/errors.hpp>
#include <uvmalloc/hints/live/live_plan.hpp>
#include <uvmalloc/hints/live/move_lanes.hpp>
#include <uvmalloc/hints/live/thrash_detector.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm {

using live::BlockExtent;
using live::LiveFigures;
using live::UseLog;

// The plan of one device with the services that it uses.
class LivePlanner::DevicePlan final : public live::MoveSink {
 public:
  DevicePlan(LivePlanner& owner, int device)
      : owner_(owner),
        device_(device),
        log_([&owner](std::uintptr_t address) { return owner.block_at(address); }),
        learner_(log_),
        lanes_(owner.machine_.runtime, owner.machine_.events, owner.machine_.figure_store.hints(),
               device),
        plan_(log_, learner_, *owner.policy_, *this, chunks()),
        peers_(owner.machine_, owner.state_, device) {
    measure_peers();
  }

  void allocated(const BlockExtent& block, bool is_used_here, const DeviceStream& stream) {
    const live::RecordId id = log_.allocated(block.address, block.size_bytes);
    if (id == live::kNoRecord || !is_used_here) return;
    lanes_.begin(stream, log_.newest() + 1);
    plan_.block_allocated(id);
  }
  void freed(std::uintptr_t address) {
    BlockExtent block = log_.freed(address);
    // The block's size is not known: it may end in the next page.
    if (block.size_bytes == 0) block = {address, UseLog::kLeastBlockBytes};
    plan_.block_freed(block);
  }

  void note_uses(const DeviceStream& stream, std::span<const live::UseRange> uses,
                 live::Launch launch) {
    if (log_.add_kernel(uses, launch) == live::kBeforeLog) {
      lanes_.begin(stream, log_.newest() + 1);
      plan_.before_unlogged_kernel();
      return;
    }
    learner_.kernel_added();
    lanes_.begin_kernel(stream, log_.newest());
    look_around();
    plan_.before_kernel(launch);
    judge_step();
  }
  void step_boundary() { learner_.step_boundary(); }

  // The peers' own needs come first: pages that have no room there any more go to the host.
  void look_at_peers() {
    peers_.each([this](int peer, std::size_t pages) {
      plan_.set_peer_room(peer, owner_.plan_of(peer) == nullptr ? pages : 0);
    });
  }
  void leave_peers() {
    peers_.each([this](int peer, std::size_t) { plan_.set_peer_room(peer, 0); });
  }

  void leave_device(const DeviceStream& stream) {
    lanes_.begin(stream, log_.newest() + 1);
    plan_.leave_device();
    lanes_.wait_until_left();
  }

  bool is_over() const { return calm_kernels_ >= kCalmKernels; }
  std::optional<live::ThrashDetector::Alarm> take_alarm() { return thrashing_.take_alarm(); }
  const LiveFigures& figures() const { return plan_.figures(); }
  void abandon() noexcept { lanes_.abandon(); }

  // ---- MoveSink
  void evict(std::uintptr_t page, live::KernelNumber last_use) override {
    leave(page, Place::host(), last_use);
  }
  void evict_to_peer(std::uintptr_t page, int peer, live::KernelNumber last_use) override {
    leave(page, Place::device(peer), last_use);
  }
  void leave_peer(std::uintptr_t page) override {
    if (owner_.state_.is_ours(start_of_page(page))) lanes_.leave_peer(page);
  }
  void keep_copy(std::uintptr_t page) override {
    if (owner_.state_.is_ours(start_of_page(page))) lanes_.keep_copy(page);
  }
  void end_copy(std::uintptr_t page) override { lanes_.end_copy(page); }
  void use_in_place(std::uintptr_t page, live::KernelNumber last_use) override {
    if (owner_.state_.is_ours(start_of_page(page))) lanes_.use_in_place(page, last_use);
  }
  void end_in_place(std::uintptr_t page) override { lanes_.end_in_place(page); }
  void drop(std::uintptr_t page, live::KernelNumber last_use) override {
    lanes_.drop(page, last_use);
  }
  void hold_arrivals() override { lanes_.hold_arrivals(); }
  void bring(std::uintptr_t page, live::Arrival arrival) override {
    const bool discards = owner_.machine_.device(device_).capabilities.discard;
    lanes_.to_device(page, discards ? arrival : live::Arrival::kCopied);
  }
  void wait_for(std::uintptr_t page) override { lanes_.wait_for(page); }

  // The page leaves its pool meanwhile, so that nobody allocates it.
  live::Discarded discard(std::uintptr_t page, live::KernelNumber freed) override {
    using live::Discarded;
    if (!owner_.machine_.device(device_).capabilities.discard) return Discarded::kRefused;
    RunBlock* block = nullptr;
    StreamKey key;
    {
      const HeapGuard heap(owner_.state_);
      char* address = start_of_page(page);
      const Block* there = heap->pools.directory().find(address);
      if (there == nullptr || there->kind != BlockKind::kPacked) return Discarded::kRefused;
      key = heap->pools.at(there->pool).key;
      if (key.facade != Facade::kDevice || key.private_pool != 0) return Discarded::kRefused;
      block = heap->pools.take_at(address, kPageBytes);
    }
    if (block == nullptr) return Discarded::kInUse;
    const bool is_discarded = lanes_.discard(page, key.device_stream(), freed);
    const HeapGuard heap(owner_.state_);
    heap->pools.put(block, heap->pools.at(block->pool));
    return is_discarded ? Discarded::kYes : Discarded::kRefused;
  }

 private:
  // Without a move for so many kernels the plan ends.
  static constexpr std::uint64_t kCalmKernels = 8192;
  // Kernels between two looks at the device's limit and at what the peers' budgets have left, and
  // between two looks at the driver's figures of peers.
  static constexpr std::uint64_t kLookKernels = 64;
  static constexpr std::uint64_t kMeasureKernels = 1024;

  // A program may lower its limit while it runs.
  std::size_t chunks() const {
    const HeapGuard heap(owner_.state_);
    const std::size_t limit_bytes = heap->device_limits[static_cast<std::size_t>(device_)];
    return std::min(heap->planner.soft_budget_bytes(device_), limit_bytes) / kPageBytes;
  }

  void leave(std::uintptr_t page, Place place, live::KernelNumber last_use) {
    if (owner_.state_.is_ours(start_of_page(page))) lanes_.leave(page, place, last_use);
  }

  void look_around() {
    const std::uint64_t kernels = plan_.figures().kernels + 1;
    if (kernels % kLookKernels != 0) return;
    if (const std::size_t now = chunks(); now != plan_.chunks()) plan_.set_chunks(now);
    if (kernels % kMeasureKernels == 0) {
      plan_.end_peer_period();
      measure_peers();
    } else {
      look_at_peers();
    }
  }
  void measure_peers() {
    peers_.measure([this](int peer) { return plan_.pages_of_peer(peer); });
    look_at_peers();
  }

  void judge_step() {
    const LiveFigures& now = plan_.figures();
    const std::uint64_t moved = now.brought_pages + now.evicted_pages + now.missing_pages;
    calm_kernels_ = moved == moved_pages_ ? calm_kernels_ + 1 : 0;
    moved_pages_ = moved;
    thrashing_.kernel_added(learner_.step_kernels(), moved * kPageBytes,
                            owner_.machine_.runtime.now());
  }

  LivePlanner& owner_;
  const int device_;
  UseLog log_;
  live::StepLearner learner_;
  live::MoveLanes lanes_;
  live::LivePlan plan_;
  PeerRoom peers_;
  live::ThrashDetector thrashing_;
  std::uint64_t moved_pages_ = 0;
  std::uint64_t calm_kernels_ = 0;
};

LivePlanner::LivePlanner(Machine& machine, HeapState& state, const DeviceSharing& sharing)
    : machine_(machine),
      state_(state),
      sharing_(sharing),
      policy_(live::make_live_policy(machine.configuration.policy)),
      plans_(static_cast<std::size_t>(machine.device_count())) {}

LivePlanner::~LivePlanner() = default;

void LivePlanner::set_listener(Listener listener) {
  const RankedGuard lock(mutex_);
  if (listener_ && is_watching()) listener_(false);
  listener_ = std::move(listener);
  if (listener_ && is_watching()) listener_(true);
}

void LivePlanner::begin(const std::vector<int>& devices) noexcept {
  if (policy_ == nullptr || machine_.in_forked_child()) return;
  try {
    const RankedGuard lock(mutex_);
    for (const int device : devices) {
      // A prefetch that waits for its copy would hold up the program.
      if (machine_.device(device).capabilities.prefetch_blocks) continue;
      auto& plan = plans_[static_cast<std::size_t>(device)];
      if (plan == nullptr) plan = std::make_unique<DevicePlan>(*this, device);
      look_at_peers_with_lock();
      if (watches_.exchange(true, std::memory_order_relaxed)) continue;
      log(LogLevel::kInfo, "device {} has less memory than the program uses: moves are planned",
          device);
      if (listener_) listener_(true);
    }
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "moves are not planned: {}", error.what());
  }
}

void LivePlanner::look_at_peers_with_lock() {
  for (auto& plan : plans_) {
    if (plan != nullptr) plan->look_at_peers();
  }
}

void LivePlanner::end_with_lock() noexcept {
  for (auto& plan : plans_) {
    if (plan == nullptr) continue;
    plan->leave_peers();
    ended_ += plan->figures();
    plan.reset();
  }
  watches_.store(false, std::memory_order_relaxed);
  if (listener_) listener_(false);
}

// Without memory for the plan there is none.
template <class Act>
void LivePlanner::act(Act act) noexcept {
  if (!is_watching() || machine_.in_forked_child()) return;
  const RankedGuard lock(mutex_);
  try {
    act();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "moves are not planned any more: {}", error.what());
    end_with_lock();
  }
}

void LivePlanner::end() noexcept {
  act([&]() UVM_NOT_ANALYSED { end_with_lock(); });
}

LivePlanner::DevicePlan* LivePlanner::plan_of(int device) {
  const auto index = static_cast<std::size_t>(device);
  return index < plans_.size() ? plans_[index].get() : nullptr;
}

BlockExtent LivePlanner::block_at(std::uintptr_t address) const {
  const HeapGuard heap(state_);
  const Block* block = heap->live_block(reinterpret_cast<const void*>(address));
  if (block == nullptr) return {};
  return {address_of(block->address()), block->requested_bytes()};
}

void LivePlanner::allocated(const void* address, Facade facade, int device, std::size_t size_bytes,
                            StreamHandle stream) noexcept {
  if (size_bytes < UseLog::kLeastBlockBytes || state_.is_capturing()) return;
  act([&]() UVM_NOT_ANALYSED {
    const BlockExtent block{address_of(address), size_bytes};
    for (std::size_t each = 0; each < plans_.size(); ++each) {
      if (plans_[each] == nullptr) continue;
      const DeviceStream user = DeviceStream::named(static_cast<int>(each), stream);
      const bool is_used_here = facade == Facade::kDevice && user.device == device;
      plans_[each]->allocated(block, is_used_here && machine_.events.may_wait(user), user);
    }
    if (facade == Facade::kDevice && plan_of(device) == nullptr) look_at_peers_with_lock();
  });
}

void LivePlanner::freed(const void* address) noexcept {
  act([&]() UVM_NOT_ANALYSED {
    for (auto& plan : plans_) {
      if (plan != nullptr) plan->freed(address_of(address));
    }
  });
}

void LivePlanner::note_uses(int device, StreamHandle stream, std::span<const live::UseRange> uses,
                            live::Launch launch) noexcept {
  if (state_.is_capturing()) return;
  act([&]() UVM_NOT_ANALYSED {
    DevicePlan* plan = plan_of(device);
    const DeviceStream user = DeviceStream::named(device, stream);
    if (plan == nullptr || !machine_.events.may_wait(user)) return;
    plan->note_uses(user, uses, launch);
    if (const auto alarm = plan->take_alarm()) react_to_thrashing(alarm->moved_bytes, alarm->share);
    if (plan->is_over() && !sharing_.is_crowded(device)) end_with_lock();
  });
}

void LivePlanner::leave_device(int device, StreamHandle stream) noexcept {
  act([&]() UVM_NOT_ANALYSED {
    DevicePlan* plan = plan_of(device);
    const DeviceStream user = DeviceStream::named(device, stream);
    if (plan != nullptr && machine_.events.may_wait(user)) plan->leave_device(user);
  });
}

void LivePlanner::react_to_thrashing(std::uint64_t moved_bytes, double share) {
  const Thrashing wanted = machine_.configuration.thrashing;
  if (wanted == Thrashing::kIgnore) return;
  if (wanted == Thrashing::kFail) {
    fails_.store(true, std::memory_order_relaxed);
    return;
  }
  log(LogLevel::kWarning,
      "each step, or 1024 kernels, moves {} and spends about {:.0f} % of its time on that: the "
      "device has too little memory for it. Smaller batches help; {}=fail raises an out-of-memory "
      "error instead",
      format_size(moved_bytes), 100 * share,
      machine_.configuration.name_of("UVMALLOC_THRASHING", "thrashing"));
}

void LivePlanner::step_boundary() noexcept {
  act([&]() UVM_NOT_ANALYSED {
    for (auto& plan : plans_) {
      if (plan != nullptr) plan->step_boundary();
    }
  });
}

void LivePlanner::check_thrashing(std::size_t requested_bytes) {
  if (!fails_.exchange(false, std::memory_order_relaxed)) return;
  throw OutOfMemoryError(
      requested_bytes,
      fmt::format("the device has less memory than a step uses, and most of the step's time goes "
                  "into moving memory; {}=warn goes on instead",
                  machine_.configuration.name_of("UVMALLOC_THRASHING", "thrashing")),
      true);
}

LiveFigures LivePlanner::figures() const {
  const RankedGuard lock(mutex_);
  LiveFigures sum = ended_;
  for (const auto& plan : plans_) {
    if (plan != nullptr) sum += plan->figures();
  }
  return sum;
}

void LivePlanner::abandon() noexcept UVM_NOT_ANALYSED {
  for (auto& plan : plans_) {
    if (plan != nullptr) plan->abandon();
  }
}

}  // namespace uvm
