// The events that one thread has recorded but not yet written, packed as in a chunk of the file
// (trace_format.hpp). The thread fills the buffer without a lock. stop() may read it on another
// thread, because everything below `used_` is complete.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "allocator/base/fibonacci_hash.hpp"
#include "allocator/trace/trace_event.hpp"
#include "allocator/trace/trace_format.hpp"

namespace uvm {

class TraceRecorder;

class TraceBuffer {
 public:
  static constexpr std::size_t kNoModel = kPackedModelsPerChunk;

  TraceBuffer(TraceRecorder* owner, std::uint32_t number, std::uint32_t system_number)
      : recorder(owner), thread(number), system_thread(system_number) {}

  TraceRecorder* const recorder;
  const std::uint32_t thread;
  const std::uint32_t system_thread;
  // The generation of the trace to which the events belong.
  std::atomic<std::uint32_t> generation{0};

  void clear() {
    used_.store(0, std::memory_order_relaxed);
    sets_.fill({kNoModel, kNoModel});
  }

  // Adds an event of a block as one word, if the buffer contains an equal event (a model). Returns
  // false if the buffer has no model, if the time since the last event does not fit, or if the
  // buffer is full.
  bool append_like_before(bool is_free, TraceTime at, const TraceBlock& block) noexcept {
    const std::size_t model = model_at(trace_word(block.address));
    if (!is_alike(models_[model], block)) return false;
    const std::uint32_t used = used_.load(std::memory_order_relaxed);
    const std::uint32_t count = used & kCountMask;
    const std::int64_t since_last = time_since_last(at);
    if (count == kPackedWordsPerChunk || !PackedTraceEvent::holds(since_last)) [[unlikely]]
      return false;
    words_[count] = {since_last, is_free, model};
    last_time_ = at;
    used_.store(used + 1, std::memory_order_release);
    return true;
  }

  // Returns the model of the block, or kNoModel if the buffer has none.
  std::size_t model_of(const TraceBlock& block) const {
    const std::size_t known = model_at(trace_word(block.address));
    return is_alike(models_[known], block) ? known : kNoModel;
  }
  void remember(const void* address, std::size_t model) {
    Set& set = sets_[slot_of(trace_word(address))];
    if (models_[set[0]].address != trace_word(address)) set[1] = set[0];
    set[0] = static_cast<std::uint16_t>(model);
  }

  bool has_room(TraceTime at, std::size_t model) const {
    const std::uint32_t used = used_.load(std::memory_order_relaxed);
    return (used & kCountMask) + 2 <= kPackedWordsPerChunk &&
           (model != kNoModel || used >> kModelsShift != kPackedModelsPerChunk) &&
           PackedTraceEvent::holds_with_pause(time_since_last(at));
  }
  // Adds an event like `model`. If `model` is kNoModel, the event becomes a model itself. Returns
  // the event's model. The caller has checked has_room().
  std::size_t append(const TraceEvent& event, bool is_free, std::size_t model) noexcept;

  // Returns the complete events. Any thread may call this.
  struct Events {
    std::span<const TraceEvent> models;
    std::span<const PackedTraceEvent> words;
  };
  Events events() const noexcept {
    const std::uint32_t used = used_.load(std::memory_order_acquire);
    return {{models_, used >> kModelsShift}, {words_, used & kCountMask}};
  }

 private:
  static constexpr int kSetBits = 9;
  static constexpr int kModelsShift = 16;
  static constexpr std::uint32_t kCountMask = (1u << kModelsShift) - 1;
  static_assert(kPackedWordsPerChunk <= kCountMask);

  static bool is_alike(const TraceEvent& model, const TraceBlock& block) {
    return model.address == trace_word(block.address) &&
           model.size_bytes == block.requested_bytes && model.extra == block.block_bytes &&
           model.stream == trace_word(block.stream) &&
           model.facade == static_cast<std::uint8_t>(block.facade) && model.device == block.device;
  }
  static std::size_t slot_of(std::uint64_t address) { return fibonacci_slot<kSetBits>(address); }
  // Returns the model at that address if one is known, else any other model.
  std::size_t model_at(std::uint64_t address) const {
    const Set& set = sets_[slot_of(address)];
    return models_[set[0]].address == address ? set[0] : set[1];
  }
  std::int64_t time_since_last(TraceTime at) const {
    return static_cast<std::int64_t>(at - last_time_);
  }

  // The number of words in the low 16 bits, and the number of models above them.
  std::atomic<std::uint32_t> used_{0};
  TraceTime last_time_ = 0;  // the time of the last event
  // The latest models, by a hash of the block's address. A set holds two, the newer first.
  using Set = std::array<std::uint16_t, 2>;
  std::array<Set, 1u << kSetBits> sets_{};
  TraceEvent models_[kPackedModelsPerChunk + 1];  // the last one is empty: it matches no block
  PackedTraceEvent words_[kPackedWordsPerChunk];
};
static_assert(sizeof(TraceBuffer) <= 64u << 10);

inline std::size_t TraceBuffer::append(const TraceEvent& event, bool is_free,
                                       std::size_t model) noexcept {
  const std::uint32_t used = used_.load(std::memory_order_relaxed);
  if (used == 0) last_time_ = event.time;
  const std::int64_t since_last = time_since_last(event.time);
  std::uint32_t count = used & kCountMask;
  if (!PackedTraceEvent::holds(since_last)) words_[count++] = PackedTraceEvent::pause(since_last);
  std::uint32_t models = used >> kModelsShift;
  if (model == kNoModel) {
    model = models++;
    models_[model] = event;
  }
  words_[count++] = {PackedTraceEvent::less_pause(since_last), is_free, model};
  last_time_ = event.time;
  used_.store(count | models << kModelsShift, std::memory_order_release);
  return model;
}

}  // namespace uvm
