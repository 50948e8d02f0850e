#include "tools/oversubscription/move_timing.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace uvm::plan {
namespace {

// A block without contents takes its chunk this long before its use, if kernels run on time.
// Earlier, it would occupy a chunk unnecessarily; later, its kernel would wait for the driver.
constexpr std::uint64_t kEmptyArrivalLeadNs = 200'000;
// Dropping the device's copy of an unchanged block (Leaving::kUnchanged) blocks the host. So
// it happens this many kernels after the last use, while enqueued kernels run.
constexpr std::size_t kKernelsBehind = 3;

// Times that differ by less than 1/kEqualTimes count as equal. Predictions are not more precise,
// because they ignore the host's calls.
constexpr std::uint64_t kEqualTimes = 10;

std::uint64_t copy_ns(std::uint64_t bytes, double bytes_per_ns) {
  return bytes_per_ns == 0 ? 0
                           : static_cast<std::uint64_t>(static_cast<double>(bytes) / bytes_per_ns);
}

// Simulates kernels, two copy lanes and the driver in virtual time.
//
// Chunks have labels. Move i may take a chunk with a label of i or more; the victim of move i
// releases label i. If a move takes a larger label, the move that owned the larger label gets this
// move's label. So if a move is sent early, every move with an earlier need still has a chunk.
class Clock {
 public:
  Clock(const UseOrder& order, const MoveSchedule& schedule, const MoveCosts& costs)
      : order_(order), moves_(schedule.moves), costs_(costs), state_(moves_.size()) {
    timing_.chunk_from.assign(moves_.size(), kFreeChunk);
    starts_ns_.push_back(0);
    for (std::size_t kernel = 0; kernel < order.kernels.size(); ++kernel)
      starts_ns_.push_back(starts_ns_.back() + kernel_ns(kernel));
    leaving_after_.resize(order.kernels.size() + 1);
    last_leaving_.assign(order.block_count, kNone);
    for (std::size_t i = 0; i < moves_.size(); ++i) {
      const Move& move = moves_[i];
      state_[i].owner = state_[i].label = i;
      state_[i].waits_for = last_leaving_[move.block];
      if (state_[i].waits_for != kNone) state_[state_[i].waits_for].returning = i;
      if (move.leaving == Leaving::kNothing) {
        give_chunk(i, kFreeChunk);
        continue;
      }
      leaving_after_[leaves_after(move)].push_back(i);
      last_leaving_[move.victim] = i;
    }
    open_new_arrivals();
  }

  MoveTiming run() {
    for (const std::size_t i : leaving_after_[0]) leaving_.insert(i);
    for (kernel_ = 0; kernel_ < order_.kernels.size(); ++kernel_) {
      open_new_arrivals();
      for (; next_need_ < moves_.size() && moves_[next_need_].need == kernel_; ++next_need_)
        wait_for_arrival(next_need_);
      const std::uint64_t end_ns = now_ns_ + kernel_ns(kernel_);
      is_running_ = true;
      while (step(end_ns)) {
      }
      is_running_ = false;
      for (const std::size_t i : leaving_after_[kernel_ + 1]) leaving_.insert(i);
    }
    timing_.predicted_ns = now_ns_;
    return std::move(timing_);
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct State {
    std::size_t label = 0;             // label of the chunk that its victim releases
    std::size_t owner = 0;             // the move with the victim that releases this label
    std::size_t waits_for = kNone;     // the move that evicted its block
    std::size_t returning = kNone;     // the move that brings its victim back
    std::uint32_t chunk = kFreeChunk;  // chunk of this label: the move that released it
    bool has_left = false;
    bool has_started = false;  // its arrival has started
    bool has_arrived = false;
  };
  struct End {
    std::uint64_t at_ns;
    std::size_t move;
    bool is_arrival;
    auto operator<=>(const End&) const = default;
  };

  std::uint64_t kernel_ns(std::size_t kernel) const {
    return kernel < order_.kernel_ns.size() ? order_.kernel_ns[kernel] : 0;
  }

  static std::size_t leaves_after(const Move& move) {
    if (move.leaving != Leaving::kUnchanged) return move.after;
    return std::min(move.after + kKernelsBehind, move.need);
  }

  void give_chunk(std::size_t label, std::uint32_t from) {
    labels_.insert(label);
    state_[label].chunk = from;
  }

  // Allows move i to start arriving, unless its block is still on the device.
  void open(std::size_t i) {
    if (state_[i].waits_for != kNone && !state_[state_[i].waits_for].has_left) return;
    if (state_[i].has_started) return;
    (moves_[i].arriving_bytes == 0 ? empty_ : arriving_).insert(i);
  }

  // Copies may arrive at any time. Blocks without contents wait until shortly before their use.
  void open_new_arrivals() {
    for (; first_copy_ < moves_.size(); ++first_copy_) {
      if (moves_[first_copy_].arriving_bytes != 0) open(first_copy_);
    }
    for (; first_empty_ < moves_.size(); ++first_empty_) {
      const Move& move = moves_[first_empty_];
      if (starts_ns_[move.need] > starts_ns_[kernel_] + kEmptyArrivalLeadNs) break;
      if (move.arriving_bytes == 0) open(first_empty_);
    }
  }

  void wait_for_arrival(std::size_t i) {
    while (!state_[i].has_arrived) {
      if (!step(std::numeric_limits<std::uint64_t>::max()))
        throw std::logic_error("a move of the schedule waits for a chunk that is never freed");
    }
  }

  // Starts everything that can start now. Then advances to the next time at which something can
  // start, but at most to `until_ns`. Returns false once it has reached `until_ns`.
  bool step(std::uint64_t until_ns) {
    start_moves();
    std::uint64_t next_ns = until_ns;
    if (!ends_.empty()) next_ns = std::min(next_ns, ends_.top().at_ns);
    if (can_leave_later()) next_ns = std::min(next_ns, to_host_ns_);
    if (can_arrive_later()) next_ns = std::min(next_ns, to_device_ns_);
    if (next_ns == std::numeric_limits<std::uint64_t>::max()) return false;
    now_ns_ = std::max(now_ns_, next_ns);
    bool has_ended = false;
    while (!ends_.empty() && ends_.top().at_ns <= now_ns_) {
      const End end = ends_.top();
      ends_.pop();
      end.is_arrival ? arrived(end.move) : left(end.move);
      has_ended = true;
    }
    return has_ended || next_ns != until_ns;
  }

  bool can_leave_later() const { return !leaving_.empty() && to_host_ns_ > now_ns_; }
  bool can_arrive_later() const {
    return !arriving_.empty() && has_chunk_for(*arriving_.begin()) && to_device_ns_ > now_ns_;
  }
  bool has_chunk_for(std::size_t i) const { return !labels_.empty() && *labels_.rbegin() >= i; }

  void start_moves() {
    for (auto at = leaving_.begin(); at != leaving_.end();) {
      const std::uint64_t bytes = moves_[*at].leaving_bytes;
      if (bytes != 0 && to_host_ns_ > now_ns_) {
        ++at;
        continue;
      }
      start_leaving(*at);
      at = leaving_.erase(at);
    }
    while (!empty_.empty() && has_chunk_for(*empty_.begin())) start_arrival(&empty_);
    while (!arriving_.empty() && has_chunk_for(*arriving_.begin()) && to_device_ns_ <= now_ns_)
      start_arrival(&arriving_);
  }

  void send(std::size_t i, bool is_arrival) {
    const std::size_t before = kernel_ + (is_running_ ? 1 : 0);
    timing_.calls.push_back({static_cast<std::uint32_t>(i), is_arrival, before});
  }

  void start_leaving(std::size_t i) {
    const std::uint64_t copy = copy_ns(moves_[i].leaving_bytes, costs_.to_host_bytes_per_ns);
    if (copy != 0) to_host_ns_ = now_ns_ + copy;
    send(i, false);
    const bool is_copied = moves_[i].leaving == Leaving::kCopied;
    ends_.push({now_ns_ + copy + (is_copied ? costs_.leaving_ns : 0), i, false});
  }

  void start_arrival(std::set<std::size_t>* from) {
    const std::size_t i = *from->begin();
    from->erase(from->begin());
    State& state = state_[i];
    state.has_started = true;
    const std::size_t label = *labels_.lower_bound(i);
    labels_.erase(label);
    timing_.chunk_from[i] = state_[label].chunk;
    if (label != i) {
      state_[state.owner].label = label;
      state_[label].owner = state.owner;
    }
    const std::uint64_t copy = copy_ns(moves_[i].arriving_bytes, costs_.to_device_bytes_per_ns);
    if (copy != 0) to_device_ns_ = now_ns_ + copy;
    send(i, true);
    ends_.push({now_ns_ + copy + costs_.arrival_ns, i, true});
  }

  void left(std::size_t i) {
    state_[i].has_left = true;
    give_chunk(state_[i].label, static_cast<std::uint32_t>(i));
    const std::size_t returning = state_[i].returning;
    if (returning < first_empty_ || (returning != kNone && moves_[returning].arriving_bytes != 0))
      open(returning);
  }

  void arrived(std::size_t i) { state_[i].has_arrived = true; }

  const UseOrder& order_;
  const std::vector<Move>& moves_;
  const MoveCosts costs_;
  std::vector<State> state_;
  std::vector<std::uint64_t> starts_ns_;                 // by kernel, if no kernel waits
  std::vector<std::vector<std::size_t>> leaving_after_;  // by number of finished kernels
  std::vector<std::size_t> last_leaving_;                // by block
  std::set<std::size_t> labels_;                         // labels of free chunks
  std::set<std::size_t> leaving_;                        // moves whose victims can be evicted
  std::set<std::size_t> arriving_;                       // moves that can arrive, with a copy
  std::set<std::size_t> empty_;                          // moves that can arrive, without a copy
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t to_host_ns_ = 0;  // the lane is busy until then
  std::uint64_t to_device_ns_ = 0;
  std::size_t kernel_ = 0;
  std::size_t next_need_ = 0;
  std::size_t first_copy_ = 0;
  std::size_t first_empty_ = 0;
  bool is_running_ = false;
  MoveTiming timing_;
};

}  // namespace

MoveTiming on_demand(const MoveSchedule& schedule) {
  MoveTiming timing;
  timing.chunk_from.assign(schedule.moves.size(), kFreeChunk);
  for (std::uint32_t i = 0; i < schedule.moves.size(); ++i) {
    const Move& move = schedule.moves[i];
    if (move.leaving != Leaving::kNothing) {
      timing.calls.push_back({i, false, move.need});
      timing.chunk_from[i] = i;
    }
    timing.calls.push_back({i, true, move.need});
  }
  return timing;
}

MoveTiming ahead_of_need(const UseOrder& order, const MoveSchedule& schedule,
                         const MoveCosts& costs) {
  return Clock(order, schedule, costs).run();
}

TimedSchedule fastest(const UseOrder& order, const ScheduleOptions& options, const MoveCosts& costs,
                      std::span<const VictimChoice* const> choices) {
  std::vector<TimedSchedule> plans;
  for (const VictimChoice* choice : choices) {
    TimedSchedule next;
    next.schedule = schedule_moves(order, options, *choice);
    next.timing = ahead_of_need(order, next.schedule, costs);
    plans.push_back(std::move(next));
  }
  const auto end_ns = [](const TimedSchedule& plan) { return plan.timing.predicted_ns; };
  const std::uint64_t first_ns = end_ns(*std::ranges::min_element(plans, {}, end_ns));
  const auto bytes = [&](const TimedSchedule& plan) {
    const bool is_late = end_ns(plan) > first_ns + first_ns / kEqualTimes;
    const MoveSchedule& moves = plan.schedule;
    return std::tuple(is_late, moves.arriving_bytes + moves.leaving_bytes);
  };
  return std::move(*std::ranges::min_element(plans, {}, bytes));
}

}  // namespace uvm::plan
