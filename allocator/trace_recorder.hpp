// Writes what the allocator does to a file, for `uvmalloc trace` and for replay. Each thread fills
// a buffer of its own, without a lock; a full one is written by the thread that filled it. Owned by
// the allocator; every member function may be called from any thread, with any lock of the
// allocator held, and none but start() and mark() allocates beyond a thread's first buffer. The
// mutex guards the file and the list of buffers and is taken once in kTraceEventsPerChunk events.
//
// A trace replays if times are taken while the block is held: by a free before anybody else can get
// the block, by an allocation after it has the block. The simplest is under the pool's lock:
//
//   TraceTime at = trace_.now();    // under the lock; 0 while the recorder is off
//   ...                             // the lock is released
//   trace_.allocated(at, block);    // does nothing where `at` is 0
//
// Memory: 64 KiB for each thread that has recorded anything and still lives. Where the file cannot
// be written, events are dropped and counted, one line says so, and the program goes on. A forked
// child records nothing. What a killed process, or one that leaves by _exit, had in its buffers is
// lost.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/allocator/trace_clock.hpp>
#include <uvmalloc/allocator/trace_event.hpp>
#include <uvmalloc/allocator/trace_format.hpp>

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
  // Calls the sink for each live block; called once, before start() returns, from its thread.
  using LiveBlocks = std::function<void(const BlockSink&)>;

  // Begins a trace in `file`, whose former content is lost; "%p" in the name is the process number.
  // Where another process is tracing to that file, ".<process number>" is added. Blocks that
  // `live_blocks` lists come first, marked as already live. For an exact list, call it with the
  // locks held under which now() is called. Returns an empty string, or in one line why not.
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
    if (at != 0) append(trace_event(TraceKind::kAllocate, at, block));
  }
  void freed(TraceTime at, const TraceBlock& block) noexcept {
    if (at != 0) append(trace_event(TraceKind::kFree, at, block));
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
  // Cut to kMostTraceTextBytes.
  void mark(std::string_view text) noexcept;

  std::string file() const;       // of the trace that runs or ran last
  std::uint64_t dropped() const;  // events that could not be written

 private:
  struct ThreadBuffer {
    TraceRecorder* recorder = nullptr;
    std::uint32_t thread = 0;
    std::uint32_t system_thread = 0;
    // The trace that the events belong to.
    std::atomic<std::uint32_t> generation{0};
    std::atomic<std::uint32_t> used{0};
    TraceEvent events[kTraceEventsPerChunk];
  };

  void append(const TraceEvent& event) noexcept {
    const std::uint32_t generation = generation_.load(std::memory_order_acquire);
    if (generation == 0) return;
    auto* buffer = static_cast<ThreadBuffer*>(pthread_getspecific(thread_key_));
    if (buffer == nullptr || buffer->generation.load(std::memory_order_relaxed) != generation ||
        buffer->used.load(std::memory_order_relaxed) == kTraceEventsPerChunk) [[unlikely]] {
      buffer = make_room(generation);
      if (buffer == nullptr) return;
    }
    const std::uint32_t used = buffer->used.load(std::memory_order_relaxed);
    buffer->events[used] = event;
    // stop() reads the events below it from another thread.
    buffer->used.store(used + 1, std::memory_order_release);
  }

  bool in_child() const noexcept;
  ThreadBuffer* make_room(std::uint32_t generation) noexcept;
  ThreadBuffer* add_buffer() noexcept;
  static void thread_ended(void* buffer) noexcept;
  void write_events(const ThreadBuffer& buffer) noexcept;
  bool write_header(const std::vector<Device>& devices);
  void write_live_blocks(std::vector<TraceEvent>* events) noexcept;
  std::uint64_t write_text(std::string_view text) noexcept;
  bool write_chunk(const TraceChunkHeader& header, const void* content,
                   std::size_t size_bytes) noexcept;
  bool write_all(const void* content, std::size_t size_bytes) noexcept;
  std::uint64_t failure_text(const RuntimeStatus& status) noexcept;

  const TraceClock clock_;
  std::atomic<std::uint32_t> generation_{0};  // of the trace that runs; 0: off
  std::atomic<pid_t> process_{0};             // the one that started the first trace
  pthread_key_t thread_key_ = 0;              // a thread's buffer; made by the first start()

  mutable std::mutex mutex_;  // guards everything below
  bool key_made_ = false;
  std::uint32_t last_generation_ = 0;
  std::vector<std::unique_ptr<ThreadBuffer>> buffers_;
  std::uint32_t threads_ = 0;
  std::string last_text_;
  std::uint64_t texts_ = 0;
  std::uint64_t dropped_ = 0;
  std::string file_;
  int descriptor_ = -1;
  off_t written_bytes_ = 0;  // of the header and whole chunks
  TraceTime start_time_ = 0;
};

}  // namespace uvm
