// Records the allocator's events in a file, for `uvmalloc trace` and for replay. Each thread fills
// its own buffer without a lock, and writes the buffer when it is full.
//
// Any thread may call any member function. Any lock of the allocator may be held, except during
// allocated_at() and allocated_by(). Only these two, start(), mark() and a thread's first event
// allocate. The mutex guards the file and the list of buffers. It is taken once in thousands of
// events, and for each call site.
//
// A trace replays correctly if each time is taken while the thread holds the block: for a free,
// before another thread can get the block; for an allocation, after the thread has it. The simplest
// way is to take the time under the pool's lock:
//
//   TraceTime at = trace_.now();    // under the lock; 0 while the recorder is off
//   ...                             // the lock is released
//   trace_.allocated(at, block);    // does nothing if `at` is 0
//
// Memory: 64 KiB for each live thread that has recorded an event. If the file cannot be written,
// events are dropped and counted, one line in the log says so, and the program continues: it gets
// no signal and never waits for the file. If the program closes the file, the trace ends. A forked
// child records nothing. If a process is killed or ends by _exit, events in its buffers are lost.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/types.hpp>
#include "allocator/trace/trace_buffer.hpp"
#include "allocator/trace/trace_clock.hpp"
#include "allocator/trace/trace_file.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class TraceRecorder {
 public:
  TraceRecorder() = default;
  explicit TraceRecorder(TraceClock clock) : clock_(clock) {}
  // Stops the trace. No other thread may still record, or be about to end.
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  using Device = TraceDevice;
  using BlockSink = std::function<void(const TraceBlock&)>;
  // Calls the sink for each live block, and then `begin`. start() calls this once. For an exact
  // list, this function holds the locks under which now() is called. Neither call touches the file.
  using Begin = std::function<void()>;
  using LiveBlocks = std::function<void(const BlockSink&, const Begin&)>;

  // Begins a trace in `file`, which only this user may read. An existing regular file is replaced.
  // "%p" in the name stands for the process ID. If another process traces to that file, ".<process
  // ID>" is added to the name. Blocks that `live_blocks` lists come first, marked as live. Returns
  // an empty string, or one line that says why no trace began. If it throws, no trace runs.
  std::string start(const std::string& file, const std::vector<Device>& devices,
                    const LiveBlocks& live_blocks = {}) UVM_NOT_ANALYSED;

  // Writes the buffers and ends the file. Events that other threads record meanwhile may be lost.
  void stop() noexcept;

  // Called in a forked child: stops recording there. The parent's file is safe even without this.
  void after_fork_in_child() noexcept UVM_NOT_ANALYSED;

  bool enabled() const noexcept { return generation_.load(std::memory_order_relaxed) != 0; }
  TraceTime now() const noexcept { return enabled() ? clock_.read() : 0; }

  // These functions do nothing if `at` is 0.

  void allocated(TraceTime at, const TraceBlock& block) noexcept {
    if (at != 0) append(false, at, block);
  }
  void freed(TraceTime at, const TraceBlock& block) noexcept {
    if (at != 0) append(true, at, block);
  }
  // Names the place in the program that allocated the live block at `address`. Called after
  // allocated() of the block, on the same thread. `site` is a string; `caller` is a return address.
  void allocated_at(TraceTime at, const void* address, std::string_view site) noexcept;
  void allocated_by(TraceTime at, const void* address, const void* caller) noexcept;
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
  // Records a request that could not be served. `request` has no address.
  void out_of_memory(TraceTime at, const TraceBlock& request, const RuntimeStatus& status) noexcept;
  // Records a driver call that failed. Without a range, `address` is nullptr and the size 0.
  void call_failed(TraceTime at, int device, const void* address, std::size_t size_bytes,
                   const RuntimeStatus& status) noexcept;
  // Records a kernel, a copy or a fill. `type` is TraceEvent::detail, the unit of `amount`.
  void kernel_started(TraceTime at, int device, StreamHandle stream, std::uint64_t amount,
                      std::uint8_t type, std::span<const TracedRange> ranges) noexcept;
  // Record that the runtime records an event on a stream, and that a stream or the host waits.
  void signalled(TraceTime at, int device, StreamHandle stream, const void* signal) noexcept;
  void waited(TraceTime at, int device, StreamHandle stream, const void* signal,
              TraceWait wait) noexcept;
  // Writes a string of the program, cut to kMostTraceTextBytes at the end of a character.
  void mark(std::string_view text) noexcept;

  std::string file() const;       // the name of the current or latest trace
  std::uint64_t dropped() const;  // events that could not be written

 private:
  // A thread's buffer, and the generation of its trace. Each trace of the process has another
  // generation.
  struct Slot {
    std::uint32_t generation = kNoGeneration;
    TraceBuffer* buffer = nullptr;
  };
  static constexpr std::uint32_t kNoGeneration = ~0u;

  void append(bool is_free, TraceTime at, const TraceBlock& block) noexcept {
    if (slot_.generation == generation_.load(std::memory_order_acquire) &&
        slot_.buffer->append_like_before(is_free, at, block)) [[likely]] {
      return;
    }
    append_block(is_free, at, block);
  }
  void append_block(bool is_free, TraceTime at, const TraceBlock& block) noexcept;
  std::size_t append(const TraceEvent& event, bool is_free = false,
                     std::size_t model = TraceBuffer::kNoModel) noexcept;

  // Holds the mutex. Lines about the file are logged after the mutex is released.
  class UVM_SCOPED_CAPABILITY Locked {
   public:
    explicit Locked(TraceRecorder& recorder) UVM_ACQUIRE(recorder.mutex_) : recorder_(recorder) {
      recorder_.mutex_.lock();
    }
    ~Locked() UVM_RELEASE() { recorder_.unlock_and_say(); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    TraceRecorder& recorder_;
  };
  void unlock_and_say() noexcept UVM_RELEASE(mutex_);

  bool in_child() const noexcept;
  std::string open(const std::string& file, const std::vector<Device>& devices);
  TraceBuffer* make_room(std::uint32_t generation) noexcept;
  TraceBuffer* add_buffer() noexcept UVM_REQUIRES(mutex_);
  static void thread_ended(void* buffer) noexcept;
  std::uint64_t failure_text(const RuntimeStatus& status) noexcept;

  static constinit thread_local Slot slot_;

  const TraceClock clock_;
  std::atomic<std::uint32_t> generation_{0};  // the generation of the current trace; 0: off
  std::atomic<pid_t> process_{0};             // the process that started the latest trace
  pthread_key_t thread_key_ = 0;              // each thread's buffer; made by the first start()

  mutable Ranked<std::mutex, LockRank::kTrace> mutex_;
  bool key_made_ UVM_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<TraceBuffer>> buffers_ UVM_GUARDED_BY(mutex_);
  std::uint32_t threads_ UVM_GUARDED_BY(mutex_) = 0;
  TraceFile file_ UVM_GUARDED_BY(mutex_){clock_};
};

}  // namespace uvm
