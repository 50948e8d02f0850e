#include "allocator/trace/trace_recorder.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/errno_guard.hpp"
#include "allocator/trace/code_site.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

// Returns a number that no recorder has used, because a thread's slot may belong to a destroyed
// recorder.
std::uint32_t next_generation() {
  static std::atomic<std::uint32_t> last{0};
  const std::uint32_t next = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return next != 0 && next != ~0u ? next : next_generation();
}

}  // namespace

constinit thread_local TraceRecorder::Slot TraceRecorder::slot_;

TraceRecorder::~TraceRecorder() {
  stop();
  if (key_made_) pthread_key_delete(thread_key_);
}

// ---- starting and stopping

std::string TraceRecorder::start(const std::string& file, const std::vector<Device>& devices,
                                 const LiveBlocks& live_blocks) {
  if (in_child()) return fmt::format("trace {}: a forked child cannot be traced", file);
  if (std::string why_not = open(file, devices); !why_not.empty()) return why_not;
  std::vector<TraceEvent> live;
  // From `begin` until the live blocks are written, no other thread can write to the file.
  std::unique_lock lock(mutex_, std::defer_lock);
  const Begin begin = [&]() UVM_NOT_ANALYSED {
    lock.lock();
    if (file_.is_open()) generation_.store(next_generation(), std::memory_order_release);
  };
  try {
    if (live_blocks) {
      live_blocks(
          [&](const TraceBlock& block) {
            TraceEvent& event = live.emplace_back(trace_event(TraceKind::kAllocate, 0, block));
            event.flags = kTraceAlreadyLive;
          },
          begin);
    }
    if (!lock.owns_lock()) begin();
  } catch (...) {
    if (lock.owns_lock()) lock.unlock();
    stop();
    throw;
  }
  if (!file_.is_open()) return fmt::format("trace {}: another thread has ended it", file);
  file_.write_live_blocks(&live);
  lock.release();
  unlock_and_say();
  return "";
}

std::string TraceRecorder::open(const std::string& file, const std::vector<Device>& devices) {
  const RankedGuard lock(mutex_);
  if (!key_made_ && pthread_key_create(&thread_key_, thread_ended) != 0) {
    return fmt::format("trace {}: the process has no thread-specific key left", file);
  }
  key_made_ = true;
  std::string why_not = file_.open(file, devices);
  if (why_not.empty()) process_ = getpid();
  return why_not;
}

void TraceRecorder::unlock_and_say() noexcept {
  if (!file_.is_open()) generation_.store(0, std::memory_order_relaxed);
  const std::optional<TraceFile::Line> line = file_.take_line();
  mutex_.unlock();
  if (!line) return;
  if (line->once.empty()) {
    log_line(LogLevel::kWarning, line->text);
  } else {
    log_once(LogLevel::kWarning, line->once, line->text);
  }
}

void TraceRecorder::stop() noexcept {
  ErrnoGuard errno_guard;
  if (in_child()) {
    after_fork_in_child();
    return;
  }
  const Locked lock(*this);
  if (!file_.is_open()) return;
  const std::uint32_t generation = generation_.exchange(0, std::memory_order_relaxed);
  for (const auto& buffer : buffers_) {
    if (buffer->generation.load(std::memory_order_relaxed) == generation) {
      file_.write_events(*buffer);
    }
  }
  file_.close();
}

void TraceRecorder::after_fork_in_child() noexcept {
  // Takes no lock, because a thread of the parent may have held the mutex at the fork.
  generation_.store(0, std::memory_order_relaxed);
  file_.abandon();
}

bool TraceRecorder::in_child() const noexcept {
  const pid_t started = process_.load(std::memory_order_relaxed);
  return started != 0 && started != getpid();
}

std::string TraceRecorder::file() const {
  const RankedGuard lock(mutex_);
  return file_.name();
}

std::uint64_t TraceRecorder::dropped() const {
  const RankedGuard lock(mutex_);
  return file_.dropped();
}

// ---- events

void TraceRecorder::allocated_at(TraceTime at, const void* address,
                                 std::string_view site) noexcept {
  if (at == 0 || in_child()) return;
  ErrnoGuard errno_guard;
  TraceEvent event = trace_event(TraceKind::kSite, at, kNoPlace, address, 0, nullptr);
  {
    const Locked lock(*this);
    event.extra = file_.write_site(site);
  }
  if (event.extra != 0) append(event);
}

// Looks the symbol up without the mutex, because another thread may allocate under the loader's
// lock.
void TraceRecorder::allocated_by(TraceTime at, const void* address, const void* caller) noexcept {
  if (at == 0 || in_child()) return;
  ErrnoGuard errno_guard;
  TraceEvent event = trace_event(TraceKind::kSite, at, kNoPlace, address, 0, nullptr);
  {
    const Locked lock(*this);
    event.extra = file_.site_of(caller);
  }
  if (event.extra == 0) {
    try {
      const std::string site = code_site(caller);
      const Locked lock(*this);
      event.extra = file_.write_site(site);
      file_.remember_site(caller, event.extra);
    } catch (const std::exception&) {  // no memory for the string
    }
  }
  if (event.extra != 0) append(event);
}

void TraceRecorder::moved(TraceTime at, const void* address, std::size_t size_bytes, Place source,
                          Place destination, StreamHandle stream) noexcept {
  if (at == 0) return;
  TraceEvent event = trace_event(TraceKind::kMove, at, 0, address, size_bytes, stream);
  event.device = trace_place(source);
  event.place = trace_place(destination);
  append(event);
}

void TraceRecorder::advised(TraceTime at, int device, const void* address, std::size_t size_bytes,
                            Advice advice, Place place) noexcept {
  if (at == 0) return;
  TraceEvent event = trace_event(TraceKind::kAdvise, at, device, address, size_bytes, nullptr);
  event.detail = static_cast<std::uint8_t>(advice);
  event.place = trace_place(place);
  append(event);
}

void TraceRecorder::prefetched(TraceTime at, int device, const void* address,
                               std::size_t size_bytes, Place destination,
                               StreamHandle stream) noexcept {
  if (at == 0) return;
  TraceEvent event = trace_event(TraceKind::kPrefetch, at, device, address, size_bytes, stream);
  event.place = trace_place(destination);
  append(event);
}

void TraceRecorder::discarded(TraceTime at, int device, const void* address, std::size_t size_bytes,
                              StreamHandle stream) noexcept {
  if (at == 0) return;
  append(trace_event(TraceKind::kDiscard, at, device, address, size_bytes, stream));
}

void TraceRecorder::stream_seen(TraceTime at, int device, StreamHandle stream) noexcept {
  if (at == 0) return;
  append(trace_event(TraceKind::kStream, at, device, nullptr, 0, stream));
}

void TraceRecorder::stream_gone(TraceTime at, int device, StreamHandle stream) noexcept {
  if (at == 0) return;
  TraceEvent event = trace_event(TraceKind::kStream, at, device, nullptr, 0, stream);
  event.flags = kTraceGone;
  append(event);
}

void TraceRecorder::out_of_memory(TraceTime at, const TraceBlock& request,
                                  const RuntimeStatus& status) noexcept {
  if (at == 0) return;
  TraceEvent event = trace_event(TraceKind::kFailure, at, request);
  event.address = 0;
  event.detail = static_cast<std::uint8_t>(RuntimeError::kOutOfMemory);
  event.extra = failure_text(status);
  append(event);
}

void TraceRecorder::call_failed(TraceTime at, int device, const void* address,
                                std::size_t size_bytes, const RuntimeStatus& status) noexcept {
  if (at == 0) return;
  TraceEvent event = trace_event(TraceKind::kFailure, at, device, address, size_bytes, nullptr);
  event.detail = static_cast<std::uint8_t>(status.error);
  event.extra = failure_text(status);
  append(event);
}

void TraceRecorder::kernel_started(TraceTime at, int device, StreamHandle stream,
                                   std::uint64_t amount, std::uint8_t type,
                                   std::span<const TracedRange> ranges) noexcept {
  if (at == 0) return;
  TraceEvent kernel = trace_event(TraceKind::kKernel, at, device, nullptr, amount, stream);
  kernel.detail = type;
  kernel.extra = ranges.size();
  append(kernel);
  for (const TracedRange& range : ranges) {
    TraceEvent touch =
        trace_event(TraceKind::kTouch, at, device, range.address, range.size_bytes, stream);
    touch.detail = static_cast<std::uint8_t>(range.access);
    append(touch);
  }
}

void TraceRecorder::signalled(TraceTime at, int device, StreamHandle stream,
                              const void* signal) noexcept {
  if (at == 0) return;
  append(trace_event(TraceKind::kSignal, at, device, signal, 0, stream));
}

void TraceRecorder::waited(TraceTime at, int device, StreamHandle stream, const void* signal,
                           TraceWait wait) noexcept {
  if (at == 0) return;
  TraceEvent event = trace_event(TraceKind::kWait, at, device, signal, 0, stream);
  event.detail = static_cast<std::uint8_t>(wait);
  append(event);
}

void TraceRecorder::mark(std::string_view text) noexcept {
  TraceEvent event;
  event.time = now();
  if (event.time == 0 || in_child()) return;
  ErrnoGuard errno_guard;
  {
    const Locked lock(*this);
    event.extra = file_.write_text(text);
  }
  append(event);
}

std::uint64_t TraceRecorder::failure_text(const RuntimeStatus& status) noexcept {
  if (in_child()) return 0;
  ErrnoGuard errno_guard;
  char text[256];
  std::size_t size_bytes = 0;
  try {
    // The same text as RuntimeStatus::text(), which allocates.
    size_bytes = fmt::format_to_n(text, sizeof(text), "{}: {} ({})", status.call,
                                  status.native_name, status.native_code)
                     .size;
  } catch (const std::exception&) {
    return 0;
  }
  const Locked lock(*this);
  return file_.write_text({text, std::min(size_bytes, sizeof(text))});
}

// ---- buffers

// Adds an event that TraceBuffer::append_like_before() could not add.
void TraceRecorder::append_block(bool is_free, TraceTime at, const TraceBlock& block) noexcept {
  std::size_t model = TraceBuffer::kNoModel;
  if (slot_.generation == generation_.load(std::memory_order_acquire)) {
    model = slot_.buffer->model_of(block);
  }
  model = append(trace_event(TraceKind::kAllocate, at, block), is_free, model);
  if (model != TraceBuffer::kNoModel) slot_.buffer->remember(block.address, model);
}

// Adds an event like `model`; kNoModel: the event becomes a model. Returns the event's model, or
// kNoModel if the event is dropped.
std::size_t TraceRecorder::append(const TraceEvent& event, bool is_free,
                                  std::size_t model) noexcept {
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (generation == 0) return TraceBuffer::kNoModel;
  TraceBuffer* buffer = slot_.generation == generation ? slot_.buffer : nullptr;
  if (buffer == nullptr || !buffer->has_room(event.time, model)) {
    buffer = make_room(generation);
    if (buffer == nullptr) return TraceBuffer::kNoModel;
    model = TraceBuffer::kNoModel;
  }
  return buffer->append(event, is_free, model);
}

// Gives the thread an empty buffer, because it has no buffer, a full one, or one of an earlier
// trace. Returns nullptr if the event must be dropped.
TraceBuffer* TraceRecorder::make_room(std::uint32_t generation) noexcept {
  ErrnoGuard errno_guard;
  if (in_child()) {
    after_fork_in_child();
    return nullptr;
  }
  auto* buffer = static_cast<TraceBuffer*>(pthread_getspecific(thread_key_));
  const Locked lock(*this);
  if (generation_.load(std::memory_order_relaxed) != generation) return nullptr;
  if (buffer == nullptr) buffer = add_buffer();
  if (buffer == nullptr) {
    file_.count_dropped();
    return nullptr;
  }
  if (buffer->generation.load(std::memory_order_relaxed) == generation) file_.write_events(*buffer);
  if (!file_.is_open()) {
    file_.count_dropped();
    return nullptr;
  }
  buffer->clear();
  buffer->generation.store(generation, std::memory_order_relaxed);
  slot_ = {generation, buffer};
  return buffer;
}

TraceBuffer* TraceRecorder::add_buffer() noexcept {
  try {
    auto buffer = std::make_unique<TraceBuffer>(this, ++threads_,
                                                static_cast<std::uint32_t>(syscall(SYS_gettid)));
    if (pthread_setspecific(thread_key_, buffer.get()) != 0) return nullptr;
    buffers_.push_back(std::move(buffer));
    return buffers_.back().get();
  } catch (const std::bad_alloc&) {
    pthread_setspecific(thread_key_, nullptr);
    return nullptr;
  }
}

// If the ending thread records an event after this, it gets another buffer.
void TraceRecorder::thread_ended(void* argument) noexcept {
  auto* buffer = static_cast<TraceBuffer*>(argument);
  TraceRecorder* recorder = buffer->recorder;
  if (slot_.buffer == buffer) slot_ = {};
  if (recorder->in_child()) return;
  const Locked lock(*recorder);
  const std::uint32_t generation = recorder->generation_.load(std::memory_order_relaxed);
  if (generation != 0 && buffer->generation.load(std::memory_order_relaxed) == generation) {
    recorder->file_.write_events(*buffer);
  }
  std::erase_if(recorder->buffers_, [&](const auto& each) { return each.get() == buffer; });
}

}  // namespace uvm
