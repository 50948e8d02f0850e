#include <uvmalloc/allocator/trace/trace_recorder.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/runtime/log.hpp>

namespace uvm {
namespace {

// The program's memory calls must not change what it reads from errno.
class ErrnoGuard {
 public:
  ErrnoGuard() = default;
  ~ErrnoGuard() { errno = saved_; }
  ErrnoGuard(const ErrnoGuard&) = delete;
  ErrnoGuard& operator=(const ErrnoGuard&) = delete;

 private:
  const int saved_ = errno;
};

std::string with_process_number(std::string file) {
  const std::string number = std::to_string(getpid());
  for (std::size_t at = file.find("%p"); at != std::string::npos; at = file.find("%p", at)) {
    file.replace(at, 2, number);
    at += number.size();
  }
  return file;
}

// The program is not to end where a file may not grow any more (RLIMIT_FSIZE): the signal that says
// so is kept from it while this lives, and the one that a write has caused is taken back. What the
// program has made of the signal stays as it is.
class WithoutSizeSignal {
 public:
  WithoutSizeSignal() noexcept {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
    sigset_t pending;
    if (sigismember(&before_, SIGXFSZ) == 1 && sigpending(&pending) == 0) {
      was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    }
  }
  ~WithoutSizeSignal() {
    const ErrnoGuard errno_guard;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSizeSignal(const WithoutSizeSignal&) = delete;
  WithoutSizeSignal& operator=(const WithoutSizeSignal&) = delete;

  // After a write that has failed for that reason.
  void take_back() noexcept {
    if (was_pending_) return;
    const ErrnoGuard errno_guard;
    constexpr timespec kAtOnce{};
    while (sigtimedwait(&signal_, nullptr, &kAtOnce) < 0 && errno == EINTR) {
    }
  }

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_ = false;
};

// Opens and locks `*file`, or a name with the process number where another process traces there.
// -1 and why in `*why_not` where that fails. Only what can always be written at once: a pipe whose
// reader waits or goes would stop or end the program.
int open_trace(std::string* file, struct stat* opened, std::string* why_not) {
  const char* const kNoFile = "is not a regular file";
  for (int attempt = 0; attempt < 2; ++attempt) {
    int descriptor =
        open(file->c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (descriptor < 0) {
      // ENXIO: of a pipe that nobody reads, or a socket.
      *why_not =
          errno == ENXIO ? kNoFile : fmt::format("cannot be opened: {}", std::strerror(errno));
      return -1;
    }
    if (fstat(descriptor, opened) != 0 || !S_ISREG(opened->st_mode)) {
      close(descriptor);
      *why_not = kNoFile;
      return -1;
    }
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
      // What was there would be taken for the end of the trace.
      if (ftruncate(descriptor, 0) == 0) return descriptor;
      const int error = errno;
      close(descriptor);
      *why_not = fmt::format("cannot be emptied: {}", std::strerror(error));
      return -1;
    }
    close(descriptor);
    *file += "." + std::to_string(getpid());
  }
  *why_not = "other processes trace there";
  return -1;
}

std::size_t round_up_to_8(std::size_t size_bytes) {
  return (size_bytes + 7) / 8 * 8;
}

// As much as a chunk of text holds, up to the end of a character; of what is no UTF-8, every byte.
std::string_view cut_text(std::string_view text) {
  auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u;
  };
  if (text.size() <= kMostTraceTextBytes) return text;
  std::size_t size = kMostTraceTextBytes;
  while (kMostTraceTextBytes - size < 3 && continues(size)) --size;
  return text.substr(0, continues(size) ? kMostTraceTextBytes : size);
}

// Of all recorders: a thread's slot may be left from one that is gone.
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
  // From its begin until the live blocks are written nobody else writes to the file.
  std::unique_lock lock(mutex_, std::defer_lock);
  const Begin begin = [&] {
    lock.lock();
    if (descriptor_ >= 0) generation_.store(next_generation(), std::memory_order_release);
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
  if (descriptor_ < 0) {
    return fmt::format("trace {}: another thread has ended it", file);
  }
  write_live_blocks(&live);
  lock.release();
  unlock_and_say();
  return "";
}

// Makes the file, with its header.
std::string TraceRecorder::open(const std::string& file, const std::vector<Device>& devices) {
  std::lock_guard lock(mutex_);
  if (descriptor_ >= 0) return fmt::format("trace {}: already tracing to {}", file, file_);
  if (!key_made_ && pthread_key_create(&thread_key_, thread_ended) != 0) {
    return fmt::format("trace {}: the process has no thread-specific key left", file);
  }
  key_made_ = true;
  written_bytes_ = 0;
  texts_ = dropped_ = 0;
  last_text_.clear();
  last_text_.reserve(kMostTraceTextBytes);
  file_ = with_process_number(file);
  const std::string header = make_header(devices);
  struct stat opened {};
  std::string why_not;
  descriptor_ = open_trace(&file_, &opened, &why_not);
  if (descriptor_ < 0) return fmt::format("trace {}: {}", file_, why_not);
  device_ = opened.st_dev;
  number_ = opened.st_ino;
  process_ = getpid();
  if (!write_all(header.data(), header.size())) {
    const int error = errno;
    close(std::exchange(descriptor_, -1));
    return fmt::format("trace {}: cannot be written: {}", file_, std::strerror(error));
  }
  written_bytes_ = static_cast<off_t>(header.size());
  return "";
}

void TraceRecorder::unlock_and_say() noexcept {
  const std::optional<Line> line = std::exchange(line_, std::nullopt);
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
  if (descriptor_ >= 0) {
    const std::uint32_t generation = generation_.exchange(0, std::memory_order_relaxed);
    for (const auto& buffer : buffers_) {
      if (buffer->generation.load(std::memory_order_relaxed) == generation) write_events(*buffer);
    }
    TraceChunkHeader end;
    end.kind = TraceChunkKind::kEnd;
    end.value = dropped_;
    write_chunk(end, {});
  }
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

void TraceRecorder::after_fork_in_child() noexcept {
  // No lock: a thread of the parent may have held the mutex. The descriptor shares the parent's
  // lock on the file, so it is closed.
  generation_.store(0, std::memory_order_relaxed);
  if (has_file()) close(descriptor_);
  descriptor_ = -1;
}

bool TraceRecorder::in_child() const noexcept {
  const pid_t started = process_.load(std::memory_order_relaxed);
  return started != 0 && started != getpid();
}

std::string TraceRecorder::file() const {
  std::lock_guard lock(mutex_);
  return file_;
}

std::uint64_t TraceRecorder::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

// ---- events

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

void TraceRecorder::mark(std::string_view text) noexcept {
  TraceEvent event;
  event.time = now();
  if (event.time == 0 || in_child()) return;
  ErrnoGuard errno_guard;
  {
    const Locked lock(*this);
    event.extra = write_text(cut_text(text));
  }
  append(event);
}

std::uint64_t TraceRecorder::failure_text(const RuntimeStatus& status) noexcept {
  if (in_child()) return 0;
  ErrnoGuard errno_guard;
  char text[256];
  std::size_t size_bytes = 0;
  try {
    // As RuntimeStatus::text(), which allocates.
    size_bytes = fmt::format_to_n(text, sizeof(text), "{}: {} ({})", status.call,
                                  status.native_name, status.native_code)
                     .size;
  } catch (const std::exception&) {
    return 0;
  }
  const Locked lock(*this);
  return write_text({text, std::min(size_bytes, sizeof(text))});
}

// ---- buffers

// A block's first event in its chunk, or one after a pause.
void TraceRecorder::append_block(bool is_free, TraceTime at, const TraceBlock& block) noexcept {
  const std::uint64_t address = trace_word(block.address);
  std::size_t model = kNoModel;
  if (slot_.generation == generation_.load(std::memory_order_acquire)) {
    const std::size_t known = slot_.buffer->model_at(address);
    if (alike(slot_.buffer->models[known], block)) model = known;
  }
  model = append_slowly(trace_event(TraceKind::kAllocate, at, block), is_free, model);
  if (model == kNoModel) return;
  slot_.buffer->remember(address, model);
}

// `model`: what the event is like, kNoModel: it becomes a model itself. Returns its model, kNoModel
// where the event is dropped.
std::size_t TraceRecorder::append_slowly(const TraceEvent& event, bool is_free,
                                         std::size_t model) noexcept {
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (generation == 0) return kNoModel;
  ThreadBuffer* buffer = slot_.generation == generation ? slot_.buffer : nullptr;
  std::uint32_t used = buffer == nullptr ? 0 : buffer->used.load(std::memory_order_relaxed);
  if (buffer == nullptr || (used & kCountMask) + 2 > kPackedWordsPerChunk ||
      (model == kNoModel && used >> kModelsShift == kPackedModelsPerChunk) ||
      !PackedTraceEvent::holds_with_pause(buffer->since_last(event.time))) {
    buffer = make_room(generation);
    if (buffer == nullptr) return kNoModel;
    used = 0;
    model = kNoModel;
  }
  if (used == 0) buffer->last_time = event.time;
  const std::int64_t since_last = buffer->since_last(event.time);
  std::uint32_t count = used & kCountMask;
  if (!PackedTraceEvent::holds(since_last)) {
    buffer->words[count++] = PackedTraceEvent::pause(since_last);
  }
  std::uint32_t models = used >> kModelsShift;
  if (model == kNoModel) {
    model = models++;
    buffer->models[model] = event;
  }
  buffer->words[count++] = {PackedTraceEvent::less_pause(since_last), is_free, model};
  buffer->last_time = event.time;
  buffer->used.store(count | models << kModelsShift, std::memory_order_release);
  return model;
}

// This thread has no buffer yet, or one of a former trace, or a full one: makes it empty. nullptr:
// the event is dropped.
TraceRecorder::ThreadBuffer* TraceRecorder::make_room(std::uint32_t generation) noexcept {
  ErrnoGuard errno_guard;
  if (in_child()) {
    after_fork_in_child();
    return nullptr;
  }
  auto* buffer = static_cast<ThreadBuffer*>(pthread_getspecific(thread_key_));
  const Locked lock(*this);
  if (generation_.load(std::memory_order_relaxed) != generation) return nullptr;
  if (buffer == nullptr) buffer = add_buffer();
  if (buffer == nullptr) {
    ++dropped_;
    return nullptr;
  }
  if (buffer->generation.load(std::memory_order_relaxed) == generation) write_events(*buffer);
  if (generation_.load(std::memory_order_relaxed) != generation) {
    ++dropped_;
    return nullptr;
  }
  buffer->used.store(0, std::memory_order_relaxed);
  buffer->sets.fill({kNoModel, kNoModel});
  buffer->generation.store(generation, std::memory_order_relaxed);
  slot_ = {generation, buffer};
  return buffer;
}

// With the mutex.
TraceRecorder::ThreadBuffer* TraceRecorder::add_buffer() noexcept {
  try {
    auto buffer = std::make_unique<ThreadBuffer>();
    buffer->recorder = this;
    buffer->thread = ++threads_;
    buffer->system_thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
    if (pthread_setspecific(thread_key_, buffer.get()) != 0) return nullptr;
    buffers_.push_back(std::move(buffer));
    return buffers_.back().get();
  } catch (const std::bad_alloc&) {
    pthread_setspecific(thread_key_, nullptr);
    return nullptr;
  }
}

// A thread that records after this, while it ends, gets another buffer.
void TraceRecorder::thread_ended(void* argument) noexcept {
  auto* buffer = static_cast<ThreadBuffer*>(argument);
  TraceRecorder* recorder = buffer->recorder;
  if (slot_.buffer == buffer) slot_ = {};
  if (recorder->in_child()) return;
  const Locked lock(*recorder);
  const std::uint32_t generation = recorder->generation_.load(std::memory_order_relaxed);
  if (generation != 0 && buffer->generation.load(std::memory_order_relaxed) == generation) {
    recorder->write_events(*buffer);
  }
  std::erase_if(recorder->buffers_, [&](const auto& each) { return each.get() == buffer; });
}

// ---- the file, with the mutex

void TraceRecorder::write_events(const ThreadBuffer& buffer) noexcept {
  const std::uint32_t used = buffer.used.load(std::memory_order_acquire);
  if (used == 0) return;
  TraceChunkHeader header;
  header.kind = TraceChunkKind::kPacked;
  header.count = used & kCountMask;
  header.value = used >> kModelsShift;
  header.thread = buffer.thread;
  header.system_thread = buffer.system_thread;
  const std::span<const PackedTraceEvent> words(buffer.words, header.count);
  if (!write_chunk(header, std::as_bytes(std::span(buffer.models, header.value)),
                   std::as_bytes(words))) {
    dropped_ += static_cast<std::uint64_t>(
        std::ranges::count_if(words, [](PackedTraceEvent word) { return !word.is_pause(); }));
  }
}

void TraceRecorder::write_live_blocks(std::vector<TraceEvent>* events) noexcept {
  for (std::size_t first = 0; first < events->size(); first += kTraceEventsPerChunk) {
    TraceChunkHeader header;
    header.count =
        static_cast<std::uint32_t>(std::min(kTraceEventsPerChunk, events->size() - first));
    for (std::size_t i = 0; i < header.count; ++i) (*events)[first + i].time = start_time_;
    if (!write_chunk(header, std::as_bytes(std::span(*events).subspan(first, header.count)))) {
      dropped_ += header.count;
    }
  }
}

std::string TraceRecorder::make_header(const std::vector<Device>& devices) {
  const std::string_view program = program_invocation_short_name;
  const std::size_t count = std::min(devices.size(), kMostTraceDevices);
  TraceFileHeader header;
  header.process = static_cast<std::uint64_t>(getpid());
  header.clock = clock_.kind();
  header.device_count = static_cast<std::uint32_t>(count);
  header.program_bytes = static_cast<std::uint32_t>(program.size());
  std::size_t total =
      sizeof(header) + count * sizeof(TraceFileDevice) + round_up_to_8(program.size());
  header.header_bytes = static_cast<std::uint32_t>(total);
  header.start_time_of_day_ns = static_cast<std::int64_t>(TraceClock::nanoseconds(CLOCK_REALTIME));
  header.start_time = start_time_ = clock_.read();
  header.start_monotonic_ns = TraceClock::monotonic_ns();
  std::string bytes(total, '\0');
  char* to = bytes.data();
  std::memcpy(to, &header, sizeof(header));
  to += sizeof(header);
  for (std::size_t i = 0; i < count; ++i, to += sizeof(TraceFileDevice)) {
    TraceFileDevice device;
    device.capacity_bytes = devices[i].capacity_bytes;
    devices[i].name.copy(device.name.data(), device.name.size() - 1);
    std::memcpy(to, &device, sizeof(device));
  }
  program.copy(to, program.size());
  return bytes;
}

// Returns the number of the text, 0 where it could not be written.
std::uint64_t TraceRecorder::write_text(std::string_view text) noexcept {
  if (descriptor_ < 0) return 0;
  // A failure that repeats has one text.
  if (texts_ != 0 && text == last_text_) return texts_;
  TraceChunkHeader header;
  header.kind = TraceChunkKind::kText;
  header.count = static_cast<std::uint32_t>(text.size());
  header.value = texts_ + 1;
  if (!write_chunk(header, std::as_bytes(std::span(text)))) return 0;
  last_text_.assign(text);  // has room: no allocation
  return ++texts_;
}

// False: the file is as it was before.
bool TraceRecorder::write_chunk(const TraceChunkHeader& header, std::span<const std::byte> content,
                                std::span<const std::byte> more) noexcept {
  if (descriptor_ < 0) return false;
  if (!has_file()) {
    lose_file();
    return false;
  }
  TraceChunkHeader stamped = header;
  stamped.time = clock_.read();
  stamped.monotonic_ns = TraceClock::monotonic_ns();
  const std::size_t size_bytes = content.size() + more.size();
  constexpr char kPadding[8] = {};
  if (write_all(&stamped, sizeof(stamped)) && write_all(content.data(), content.size()) &&
      write_all(more.data(), more.size()) &&
      write_all(kPadding, round_up_to_8(size_bytes) - size_bytes)) {
    written_bytes_ += static_cast<off_t>(sizeof(stamped) + round_up_to_8(size_bytes));
    return true;
  }
  const int error = errno;
  if (ftruncate(descriptor_, written_bytes_) == 0) lseek(descriptor_, written_bytes_, SEEK_SET);
  try {
    line_ = {"trace " + file_,
             fmt::format("the trace {} cannot be written ({}): events are left out and counted",
                         file_, std::strerror(error))};
  } catch (const std::exception&) {  // no memory for the line
  }
  return false;
}

// Programs that close descriptors which are not theirs may have another file under this number.
bool TraceRecorder::has_file() const noexcept {
  struct stat now {};
  return descriptor_ >= 0 && fstat(descriptor_, &now) == 0 && now.st_dev == device_ &&
         now.st_ino == number_;
}

void TraceRecorder::lose_file() noexcept {
  descriptor_ = -1;
  generation_.store(0, std::memory_order_relaxed);
  try {
    line_ = {"", fmt::format("the trace {} ends early: the program has closed its file", file_)};
  } catch (const std::exception&) {  // no memory for the line
  }
}

bool TraceRecorder::write_all(const void* content, std::size_t size_bytes) noexcept {
  WithoutSizeSignal no_signal;
  const char* from = static_cast<const char*>(content);
  while (size_bytes != 0) {
    ssize_t written = write(descriptor_, from, size_bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = ENOSPC;
      if (errno == EFBIG) no_signal.take_back();
      return false;
    }
    from += written;
    size_bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace uvm
