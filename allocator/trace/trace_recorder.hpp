// Writes what the allocator does to a file, for `uvmalloc trace` and for replay. Each thread fills
// a buffer of its own, without a lock; a full one is written by the thread that filled it. Owned by
// the allocator; every member function may be called from any thread, with any lock of the
// allocator held, and none but start() and mark() allocates beyond a thread's first buffer. The
// mutex guards the file and the list of buffers and is taken once in thousands of events.
//
// A trace replays if times are taken while the block is held: by a free before anybody else can get
// the block, by an allocation after it has the block. The simplest is under the pool's lock:
//
//   TraceTime at = trace_.now();    // under the lock; 0 while the recorder is off
//   ...                             // the lock is released
//   trace_.allocated(at, block);    // does nothing where `at` is 0
//
// Memory: 64 KiB for each thread that has recorded anything and still lives. Where the file cannot
// be written, events are dropped and counted, one line says so, and the program goes on: no signal
// reaches it and no write waits. A trace whose file the program has closed ends. A forked child
// records nothing. What a killed process, or one that leaves by _exit, had in its buffers is
// lost.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/allocator/base/fibonacci_hash.hpp>
#include <uvmalloc/allocator/trace/trace_clock.hpp>
#include <uvmalloc/allocator/trace/trace_event.hpp>
#include <uvmalloc/allocator/trace/trace_format.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

class TraceRecorder {
 public:
  TraceRecorder() = default;
  explicit TraceRecorder(TraceClock clock) : clock_(clock) {}
  // Stops. No other thread records any more, nor ends at this moment.
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  struct Device {
    std::string name;
    std::uint64_t capacity_bytes = 0;
  };
  using BlockSink = std::function<void(const TraceBlock&)>;
  // Calls the sink for each live block and then `begin`; called once, before start() returns, from
  // its thread. For an exact list it does both with the locks held under which now() is called:
  // neither touches the file.
  using Begin = std::function<void()>;
  using LiveBlocks = std::function<void(const BlockSink&, const Begin&)>;

  // Begins a trace in `file`, whose former content is lost; "%p" in the name is the process number.
  // Where another process is tracing to that file, ".<process number>" is added. Blocks that
  // `live_blocks` lists come first, marked as already live. Returns an empty string, or in one line
  // why not: only a regular file will do. What throws leaves no trace running.
  std::string start(const std::string& file, const std::vector<Device>& devices,
                    const LiveBlocks& live_blocks = {});

  // Writes what is in the buffers and ends the file. What other threads are recording at this
  // moment may be left out.
  void stop() noexcept;

  // In a forked child: off for good. The parent's file is left alone also where nobody calls this.
  void after_fork_in_child() noexcept;

  bool enabled() const noexcept { return generation_.load(std::memory_order_relaxed) != 0; }
  TraceTime now() const noexcept { return enabled() ? clock_.read() : 0; }

  // Each does nothing where `at` is 0.

  void allocated(TraceTime at, const TraceBlock& block) noexcept {
    if (at != 0) append(false, at, block);
  }
  void freed(TraceTime at, const TraceBlock& block) noexcept {
    if (at != 0) append(true, at, block);
  }
  void used(TraceTime at, const void* address, int device, StreamHandle stream) noexcept {
    if (at != 0) append(trace_event(TraceKind::kUse, at, device, address, 0, stream));
  }
  void moved(TraceTime at, const void* address, std::size_t size_bytes, Place source,
             Place destination, StreamHandle stream) noexcept;
  void advised(TraceTime at, int device, const void* address, std::size_t size_bytes, Advice advice,
               Place place) noexcept;
  void prefetched(TraceTime at, int device, const void* address, std::size_t size_bytes,
                  Place destination, StreamHandle stream) noexcept;
  void discarded(TraceTime at, int device, const void* address, std::size_t size_bytes,
                 StreamHandle stream) noexcept;
  void stream_seen(TraceTime at, int device, StreamHandle stream) noexcept;
  void stream_gone(TraceTime at, int device, StreamHandle stream) noexcept;
  // A request that could not be met: `request` has no address.
  void out_of_memory(TraceTime at, const TraceBlock& request, const RuntimeStatus& status) noexcept;
  // A driver call about a range; address nullptr and size 0 where it is about none.
  void call_failed(TraceTime at, int device, const void* address, std::size_t size_bytes,
                   const RuntimeStatus& status) noexcept;
  // Cut to kMostTraceTextBytes, at the end of a character.
  void mark(std::string_view text) noexcept;

  std::string file() const;       // of the trace that runs or ran last
  std::uint64_t dropped() const;  // events that could not be written

 private:
  static constexpr std::size_t kNoModel = kPackedModelsPerChunk;

  struct ThreadBuffer {
    static constexpr int kSetBits = 9;

    TraceRecorder* recorder = nullptr;
    std::uint32_t thread = 0;
    std::uint32_t system_thread = 0;
    // The trace that the events belong to.
    std::atomic<std::uint32_t> generation{0};
    // How many words, and above them how many models: stop() reads what is below them from another
    // thread.
    std::atomic<std::uint32_t> used{0};
    TraceTime last_time = 0;  // of the last event
    // By a block's address the model that was last made for one there; two addresses find room in
    // a set, the newer one first.
    using Set = std::array<std::uint16_t, 2>;
    std::array<Set, 1u << kSetBits> sets{};
    TraceEvent models[kPackedModelsPerChunk + 1];  // the last is like no block
    PackedTraceEvent words[kPackedWordsPerChunk];

    // Of any block where none at that address is known.
    std::size_t model_at(std::uint64_t address) const {
      const Set& set = sets[fibonacci_slot<kSetBits>(address)];
      return models[set[0]].address == address ? set[0] : set[1];
    }
    void remember(std::uint64_t address, std::size_t model) {
      Set& set = sets[fibonacci_slot<kSetBits>(address)];
      if (models[set[0]].address != address) set[1] = set[0];
      set[0] = static_cast<std::uint16_t>(model);
    }
    std::int64_t since_last(TraceTime at) const {
      return static_cast<std::int64_t>(at - last_time);
    }
  };
  static constexpr int kModelsShift = 16;
  static constexpr std::uint32_t kCountMask = (1u << kModelsShift) - 1;
  static_assert(kPackedWordsPerChunk <= kCountMask);
  static_assert(sizeof(ThreadBuffer) <= 64u << 10);

  // A thread's buffer of the trace with that generation, which no other trace of the process has.
  struct Slot {
    std::uint32_t generation = kNoGeneration;
    ThreadBuffer* buffer = nullptr;
  };
  static constexpr std::uint32_t kNoGeneration = ~0u;

  static bool alike(const TraceEvent& model, const TraceBlock& block) {
    return model.address == trace_word(block.address) &&
           model.size_bytes == block.requested_bytes && model.extra == block.block_bytes &&
           model.stream == trace_word(block.stream) &&
           model.facade == static_cast<std::uint8_t>(block.facade) && model.device == block.device;
  }

  void append(bool is_free, TraceTime at, const TraceBlock& block) noexcept {
    if (slot_.generation == generation_.load(std::memory_order_acquire)) [[likely]] {
      ThreadBuffer& buffer = *slot_.buffer;
      const std::size_t model = buffer.model_at(trace_word(block.address));
      if (alike(buffer.models[model], block) && append_packed(&buffer, is_free, at, model))
          [[likely]] {
        return;
      }
    }
    append_block(is_free, at, block);
  }
  // An event of a model's block; false: that takes more than one word, or there is no room.
  static bool append_packed(ThreadBuffer* buffer, bool is_free, TraceTime at,
                            std::size_t model) noexcept {
    const std::uint32_t used = buffer->used.load(std::memory_order_relaxed);
    const std::uint32_t count = used & kCountMask;
    const std::int64_t since_last = buffer->since_last(at);
    if (count == kPackedWordsPerChunk || !PackedTraceEvent::holds(since_last)) [[unlikely]]
      return false;
    buffer->words[count] = {since_last, is_free, model};
    buffer->last_time = at;
    buffer->used.store(used + 1, std::memory_order_release);
    return true;
  }
  void append_block(bool is_free, TraceTime at, const TraceBlock& block) noexcept;
  void append(const TraceEvent& event) noexcept { append_slowly(event, false, kNoModel); }
  std::size_t append_slowly(const TraceEvent& event, bool is_free, std::size_t model) noexcept;

  // Has the mutex. Lines about the file are written when it is free again.
  class Locked {
   public:
    explicit Locked(TraceRecorder& recorder) : recorder_(recorder) { recorder_.mutex_.lock(); }
    ~Locked() { recorder_.unlock_and_say(); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    TraceRecorder& recorder_;
  };
  struct Line {
    std::string once;  // its key; empty: it is written each time
    std::string text;
  };
  void unlock_and_say() noexcept;

  bool in_child() const noexcept;
  std::string open(const std::string& file, const std::vector<Device>& devices);
  ThreadBuffer* make_room(std::uint32_t generation) noexcept;
  ThreadBuffer* add_buffer() noexcept;
  static void thread_ended(void* buffer) noexcept;
  void write_events(const ThreadBuffer& buffer) noexcept;
  std::string make_header(const std::vector<Device>& devices);
  bool has_file() const noexcept;
  void lose_file() noexcept;
  void write_live_blocks(std::vector<TraceEvent>* events) noexcept;
  std::uint64_t write_text(std::string_view text) noexcept;
  bool write_chunk(const TraceChunkHeader& header, std::span<const std::byte> content,
                   std::span<const std::byte> more = {}) noexcept;
  bool write_all(const void* content, std::size_t size_bytes) noexcept;
  std::uint64_t failure_text(const RuntimeStatus& status) noexcept;

  static constinit thread_local Slot slot_;

  const TraceClock clock_;
  std::atomic<std::uint32_t> generation_{0};  // of the trace that runs; 0: off
  std::atomic<pid_t> process_{0};             // the one that started the first trace
  pthread_key_t thread_key_ = 0;              // a thread's buffer; made by the first start()

  mutable Ranked<std::mutex, LockRank::kTrace> mutex_;  // guards everything below
  bool key_made_ = false;
  std::vector<std::unique_ptr<ThreadBuffer>> buffers_;
  std::uint32_t threads_ = 0;
  std::string last_text_;
  std::uint64_t texts_ = 0;
  std::uint64_t dropped_ = 0;
  std::string file_;
  int descriptor_ = -1;
  dev_t device_ = 0;  // with the number: which file that is
  ino_t number_ = 0;
  off_t written_bytes_ = 0;  // of the header and whole chunks
  TraceTime start_time_ = 0;
  std::optional<Line> line_;  // to be written
};

}  // namespace uvm
