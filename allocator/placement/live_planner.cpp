#include "allocator/placement/live_planner.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <uvmalloc/errors.hpp>
#include "allocator/placement/peer_room.hpp"
#include "hints/live/device_clock.hpp"
#include "hints/live/live_plan.hpp"
#include "hints/live/move_lanes.hpp"
#include "hints/live/policy.hpp"
#include "runtime/log.hpp"

namespace uvm {

using live::BlockExtent;
using live::LiveFigures;
using live::UseLog;

namespace {

std::string slowdown_text(double slowdown) {
  constexpr double kMostTold = 10;
  return slowdown > kMostTold ? "10 or more" : fmt::format("{:.1f}", slowdown);
}

}  // namespace

// The plan of one device, with the parts that the plan needs.
class LivePlanner::DevicePlan final : public live::MoveSink {
 public:
  DevicePlan(LivePlanner& owner, int device)
      : owner_(owner),
        device_(device),
        log_([&owner](std::uintptr_t address) { return owner.block_at(address); }),
        learner_(log_),
        lanes_(owner.machine_.runtime, owner.machine_.events, owner.machine_.figure_store.hints(),
               device, owner.machine_.device(device).capabilities.batches,
               [this](std::uintptr_t page) { return is_in_span_of_next(page); }),
        plan_(log_, learner_, *owner.policy_, *this, chunks()),
        peers_(owner.machine_, owner.state_, device),
        clock_(owner.machine_.runtime, device),
        thrashing_(owner.spill_limit_.most_slowdown()) {
    measure_peers();
    send_moves();
  }
  ~DevicePlan() override { put_back_free_pages(); }
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  void allocated(const BlockExtent& block, bool is_used_here, const DeviceStream& stream) {
    const live::RecordId id = log_.allocated(block.address, block.size_bytes);
    if (id == live::kNoRecord || !is_used_here) return;
    lanes_.begin(stream, log_.newest() + 1);
    plan_.block_allocated(id);
    send_moves();
  }
  void freed(std::uintptr_t address) {
    BlockExtent block = log_.freed(address);
    // The log does not have small blocks, but even a small block may reach into the next page.
    if (block.size_bytes == 0) block = {address, policy::kLeastLoggedBytes};
    plan_.block_freed(block);
  }

  void note_uses(const DeviceStream& stream, std::span<const live::UseRange> uses,
                 live::Launch launch) {
    if (log_.add_kernel(uses, launch) == live::kBeforeLog) {
      lanes_.begin(stream, log_.newest() + 1);
      plan_.before_unlogged_kernel();
      send_moves();
      return;
    }
    learner_.kernel_added();
    lanes_.begin_kernel(stream, log_.newest());
    clock_.begin(stream);
    look_around();
    plan_.before_kernel(launch);
    send_moves();
    judge_step();
  }
  void step_boundary() { learner_.step_boundary(); }

  // The peers' own needs come first: pages that no longer fit on a peer move to the host.
  void look_at_peers() {
    peers_.each([this](int peer, std::size_t pages) {
      plan_.set_peer_room(peer, owner_.plan_of(peer) == nullptr ? pages : 0);
    });
  }
  void leave_peers() {
    peers_.each([this](int peer, std::size_t) { plan_.set_peer_room(peer, 0); });
    send_moves();
  }
  // Sends what the plan has decided.
  void send_moves() {
    sending_.clear();
    std::swap(moves_, sending_);
    lanes_.send(sending_);
    plan_.set_round(lanes_.sends_batches() ? policy::kRoundPages : 1);
    put_back_free_pages();
  }

  void leave_device(const DeviceStream& stream) {
    lanes_.begin(stream, log_.newest() + 1);
    plan_.leave_device();
    send_moves();
    lanes_.wait_until_left();
  }

  // Returns whether no page has moved for long and all device memory of the program, used or
  // cached, fits again. It must fit, because nobody reports uses of pages on the host after that.
  bool is_over() {
    if (calm_kernels_ < policy::kCalmKernels) return false;
    calm_kernels_ = 0;  // the next check follows after another kCalmKernels
    const HeapGuard heap(owner_.state_);
    return heap->book.reserved_bytes(Facade::kDevice, device_) <= plan_.chunks() * kPageBytes;
  }
  int device() const { return device_; }
  live::ThrashDetector& thrashing() { return thrashing_; }
  const LiveFigures& figures() const { return plan_.figures(); }
  void correct_places(std::uintptr_t first, std::vector<Place>* places) const {
    for (std::size_t i = 0; i < places->size(); ++i) {
      const Place place = plan_.place_of(first + i, Place::device(device_));
      if (place != Place::nowhere()) (*places)[i] = place;
    }
  }
  void abandon() noexcept {
    lanes_.abandon();
    clock_.abandon();
  }

  // ---- MoveSink
  void evict(std::uintptr_t page, live::KernelNumber last_use) override {
    if (is_ours(page)) moves_.leave(page, Place::host(), last_use);
  }
  void evict_to_peer(std::uintptr_t page, int peer, live::KernelNumber last_use) override {
    if (is_ours(page)) moves_.leave(page, Place::device(peer), last_use);
  }
  void leave_peer(std::uintptr_t page) override {
    if (is_ours(page)) moves_.leave_peer(page);
  }
  void keep_copy(std::uintptr_t page) override {
    if (is_ours(page)) moves_.keep_copy(page);
  }
  void end_copy(std::uintptr_t page) override { moves_.end_copy(page); }
  void use_in_place(std::uintptr_t page, live::KernelNumber last_use) override {
    if (is_ours(page)) moves_.use_in_place(page, last_use);
  }
  void end_in_place(std::uintptr_t page) override { moves_.end_in_place(page); }
  void drop(std::uintptr_t page, live::KernelNumber last_use) override {
    moves_.drop(page, last_use);
  }
  void hold_arrivals() override { moves_.hold_arrivals(); }
  void bring(std::uintptr_t page, live::Arrival arrival, live::KernelNumber need) override {
    const bool discards = owner_.machine_.device(device_).capabilities.discard;
    moves_.bring(page, discards ? arrival : live::Arrival::kCopied, need);
  }
  void end_group() override { moves_.end_group(); }
  void wait_for(std::uintptr_t page) override { moves_.wait_for(page); }
  bool is_settled(std::uintptr_t page, live::KernelNumber last_use) override {
    return lanes_.is_settled(page, last_use);
  }

  // Takes the page out of its pool until the discard is sent, so that no request gets the page.
  live::Discarded discard(std::uintptr_t page, live::KernelNumber freed) override {
    using live::Discarded;
    if (!owner_.machine_.device(device_).capabilities.discard) return Discarded::kRefused;
    free_pages_.reserve(free_pages_.size() + 1);
    const HeapGuard heap(owner_.state_);
    char* address = start_of_page(page);
    const Block* there = heap->pools.directory().find(address);
    if (there == nullptr || there->kind != BlockKind::kPacked) return Discarded::kRefused;
    const StreamKey key = heap->pools.at(there->pool).key;
    if (key.facade != Facade::kDevice || key.private_pool != 0) return Discarded::kRefused;
    const DeviceStream user = key.device_stream();
    if (user.device != device_ || !user.can_be_named()) return Discarded::kRefused;
    PageBlock* block = heap->pools.take_at(address, kPageBytes);
    if (block == nullptr) return Discarded::kInUse;
    free_pages_.push_back(block);
    moves_.discard(page, user, freed);
    return Discarded::kYes;
  }

 private:
  // Returns the pages that fit on the device. Read often, because the program may change its limit.
  std::size_t chunks() const {
    const HeapGuard heap(owner_.state_);
    const std::size_t limit_bytes = heap->device_limits[static_cast<std::size_t>(device_)];
    const std::size_t pages =
        std::min(heap->planner.soft_budget_bytes(device_), limit_bytes) / kPageBytes;
    return std::max<std::size_t>(1, pages - std::min(pages, taken_pages_));
  }

  // The next part of the program's touched memory, in the order of addresses. No pages: the round
  // is complete.
  struct Part {
    char* begin = nullptr;
    std::size_t pages = 0;
  };
  Part next_part() {
    const HeapGuard heap(owner_.state_);
    const Span* next = nullptr;
    for (const auto& span : heap->spans.spans()) {
      const bool is_left = compared_until_ < span->base + span->size_bytes;
      if (is_left && (next == nullptr || span->base < next->base)) next = span.get();
    }
    if (next == nullptr) {
      compared_until_ = nullptr;
      return {};
    }
    const auto& touched = next->touched;
    const std::size_t from =
        compared_until_ < next->base
            ? 0
            : static_cast<std::size_t>(compared_until_ - next->base) / kPageBytes;
    const auto begin =
        std::find(touched.begin() + static_cast<std::ptrdiff_t>(from), touched.end(), true);
    if (begin == touched.end()) {
      compared_until_ = next->base + next->size_bytes;
      return {next->base, 0};
    }
    const auto left = static_cast<std::size_t>(touched.end() - begin);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(left, policy::kComparedPages));
    Part part;
    part.begin = next->base + (begin - touched.begin()) * static_cast<std::ptrdiff_t>(kPageBytes);
    part.pages = static_cast<std::size_t>(end - begin);
    while (!*(begin + static_cast<std::ptrdiff_t>(part.pages) - 1)) --part.pages;
    compared_until_ = part.begin + part.pages * kPageBytes;
    return part;
  }

  // Compares some pages with the driver's answer, if the driver gives one.
  void compare_pages() {
    if (!owner_.machine_.device(device_).capabilities.finds_pages) return;
    std::size_t compared = 0;
    for (int call = 0; call < policy::kCompareCalls && compared < policy::kComparedPages; ++call) {
      Part part = next_part();
      while (part.begin != nullptr && part.pages == 0) part = next_part();
      if (part.begin == nullptr) return end_round();
      compare(part);
      compared += part.pages;
    }
  }

  void compare(const Part& part) {
    std::vector<Place> places(part.pages);
    // The span may have been freed meanwhile. Then the driver refuses the range.
    const RuntimeStatus status = owner_.machine_.runtime.find_pages(
        device_, part.begin, part.pages * kPageBytes, kPageBytes, places.data());
    if (!status.ok()) return;
    std::vector<bool> are_here(part.pages);
    std::transform(places.begin(), places.end(), are_here.begin(),
                   [&](Place place) { return place == Place::device(device_); });
    const std::uintptr_t first = address_of(part.begin) / kPageBytes;
    const auto corrections = plan_.correct(first, are_here);
    expected_pages_ += corrections.expected;
    found_pages_ += corrections.found;
    const HeapGuard heap(owner_.state_);
    for (const std::uintptr_t page : corrections.pages) {
      char* const address = start_of_page(page);
      if (owner_.state_.is_ours(address))
        heap->ledger.set(address, kPageBytes, places[page - first]);
    }
  }

  // Fewer pages than expected mean that another program has taken memory of the device: the plan
  // does without that memory. It tries a quarter of it again after some rounds that find all pages,
  // and after twice as many each time that pages get lost again.
  void end_round() {
    const std::size_t found = std::exchange(found_pages_, 0);
    const std::size_t expected = std::exchange(expected_pages_, 0);
    {
      const HeapGuard heap(owner_.state_);
      heap->book.figures().believed_bytes = expected * kPageBytes;
      heap->book.figures().real_bytes = found * kPageBytes;
    }
    if (found + expected / policy::kMissingParts < expected) {
      taken_pages_ += expected - found;
      rounds_to_try_ = std::min(2 * rounds_to_try_, policy::kMostRoundsToTry);
      good_rounds_ = 0;
    } else if (taken_pages_ == 0) {
      rounds_to_try_ = 1;
    } else if (++good_rounds_ >= rounds_to_try_) {
      taken_pages_ -= std::max<std::size_t>(1, taken_pages_ / 4);
      good_rounds_ = 0;
    }
  }

  bool is_in_span_of_next(std::uintptr_t page) const {
    const HeapGuard heap(owner_.state_);
    const PageDirectory& directory = heap->pools.directory();
    const Block* block = directory.find(start_of_page(page));
    const Block* next = directory.find(start_of_page(page + 1));
    return block != nullptr && next != nullptr &&
           directory.span_of(*block) == directory.span_of(*next);
  }
  bool is_ours(std::uintptr_t page) const { return owner_.state_.is_ours(start_of_page(page)); }

  void put_back_free_pages() noexcept {
    if (free_pages_.empty()) return;
    const HeapGuard heap(owner_.state_);
    for (PageBlock* block : free_pages_) heap->pools.put(block, heap->pools.at(block->pool));
    free_pages_.clear();
  }

  void look_around() {
    const std::uint64_t kernels = plan_.figures().kernels + 1;
    if (kernels % policy::kLookKernels != 0) return;
    compare_pages();
    if (const std::size_t now = chunks(); now != plan_.chunks()) plan_.set_chunks(now);
    if (kernels % policy::kMeasureKernels == 0) {
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
    thrashing_.kernel_added(learner_.step_kernels(), plan_.copied_pages() * kPageBytes,
                            plan_.chunks() * kPageBytes, clock_);
    if (const auto step = thrashing_.take_step()) plan_.step_took(*step);
  }

  LivePlanner& owner_;
  const int device_;
  std::size_t taken_pages_ = 0;  // by other programs, as far as lost pages show
  UseLog log_;
  live::StepLearner learner_;
  live::MoveList moves_;                // that are not sent yet
  live::MoveList sending_;              // that lanes_ sends, or has sent last
  std::vector<PageBlock*> free_pages_;  // whose discards are not sent yet
  live::MoveLanes lanes_;
  live::LivePlan plan_;
  PeerRoom peers_;
  live::DeviceClock clock_;
  live::ThrashDetector thrashing_;
  std::uint64_t moved_pages_ = 0;
  std::uint64_t calm_kernels_ = 0;
  char* compared_until_ = nullptr;  // in this round
  std::size_t expected_pages_ = 0;  // on the device, in this round
  std::size_t found_pages_ = 0;
  std::size_t good_rounds_ = 0;  // since pages were last lost, or memory was tried again
  std::size_t rounds_to_try_ = 1;
};

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
      // A prefetch that waits for its copy would block the program.
      if (machine_.device(device).capabilities.prefetch_blocks) continue;
      auto& plan = plans_[static_cast<std::size_t>(device)];
      if (plan == nullptr) plan = std::make_unique<DevicePlan>(*this, device);
      look_at_peers_with_lock();
      if (watches_.exchange(true, std::memory_order_relaxed)) continue;
      log(LogLevel::kInfo, "device {} has less memory than the program uses: moves are planned",
          device);
      tell_listener_with_lock(true);
    }
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "moves are not planned: {}", error.what());
  }
}

void LivePlanner::look_at_peers_with_lock() {
  for (auto& plan : plans_) {
    if (plan == nullptr) continue;
    plan->look_at_peers();
    plan->send_moves();
  }
}

// If host memory runs out, the pages stay on the peers until the driver needs the room there.
void LivePlanner::end_with_lock(std::unique_ptr<DevicePlan>& plan) noexcept {
  try {
    plan->leave_peers();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "pages that were moved to other devices stay there: {}", error.what());
  }
  ended_ += plan->figures();
  fails_[static_cast<std::size_t>(plan->device())].store(false, std::memory_order_relaxed);
  plan.reset();
  const auto is_there = [](const auto& other) { return other != nullptr; };
  if (std::ranges::any_of(plans_, is_there)) return;
  watches_.store(false, std::memory_order_relaxed);
  tell_listener_with_lock(false);
}

void LivePlanner::end_all_with_lock() noexcept {
  for (auto& plan : plans_) {
    if (plan != nullptr) end_with_lock(plan);
  }
}

void LivePlanner::tell_listener_with_lock(bool wants_uses) noexcept {
  try {
    if (listener_) listener_(wants_uses);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "PyTorch's operators cannot be observed to plan moves: {}",
        error.what());
  }
}

// Calls `act` under the lock. If `act` throws because host memory runs out, planning stops.
template <class Act>
void LivePlanner::act(Act act) noexcept {
  if (!is_watching() || machine_.in_forked_child()) return;
  const RankedGuard lock(mutex_);
  try {
    act();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "moves are not planned any more: {}", error.what());
    end_all_with_lock();
  }
}

void LivePlanner::end() noexcept {
  act([&]() UVM_NOT_ANALYSED { end_all_with_lock(); });
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
  if (size_bytes < policy::kLeastLoggedBytes || state_.is_capturing()) return;
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
  std::optional<live::ThrashDetector::Verdict> verdict;
  act([&]() UVM_NOT_ANALYSED {
    DevicePlan* plan = plan_of(device);
    const DeviceStream user = DeviceStream::named(device, stream);
    if (plan == nullptr || !machine_.events.may_wait(user)) return;
    plan->note_uses(user, uses, launch);
    verdict = plan->thrashing().take_verdict();
    if (plan->is_over() && !sharing_.is_crowded(device))
      end_with_lock(plans_[static_cast<std::size_t>(device)]);
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

// Called without the planner's lock, because ends_thrashing() takes the interpreter's lock, and the
// thread that holds the interpreter's lock may be waiting for the planner's lock.
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
  std::optional<RankedGuard<decltype(mutex_)>> lock;
  if (!machine_.in_forked_child()) lock.emplace(mutex_);
  LiveFigures sum = ended_;
  for (const auto& plan : plans_) {
    if (plan != nullptr) sum += plan->figures();
  }
  return sum;
}

void LivePlanner::correct_places(const void* first_page,
                                 std::vector<Place>* places) const noexcept UVM_NOT_ANALYSED {
  std::optional<RankedGuard<decltype(mutex_)>> lock;
  if (!machine_.in_forked_child()) lock.emplace(mutex_);
  for (const auto& plan : plans_) {
    if (plan != nullptr) plan->correct_places(address_of(first_page) / kPageBytes, places);
  }
}

void LivePlanner::abandon() noexcept UVM_NOT_ANALYSED {
  for (auto& plan : plans_) {
    if (plan != nullptr) plan->abandon();
  }
}

}  // namespace uvm
