#include "allocator/trace/trace_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/errno_guard.hpp"
#include "allocator/base/own_file.hpp"

namespace uvm {
namespace {

constexpr const char* kNoFile = "is not a regular file";

std::string with_process_number(std::string file) {
  const std::string number = std::to_string(getpid());
  for (std::size_t at = file.find("%p"); at != std::string::npos; at = file.find("%p", at)) {
    file.replace(at, 2, number);
    at += number.size();
  }
  return file;
}

// Blocks SIGXFSZ in its scope, because a write beyond RLIMIT_FSIZE raises it, which would end the
// program. The program's own handling of the signal does not change.
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

  // Removes the pending signal that a write raised when it failed with EFBIG.
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

// Makes a new file with that name and locks the file. Removes an existing file of that name instead
// of emptying it, because the existing file may have another name too. Removes only regular files:
// a pipe or a device belongs to the user. Returns -1 on failure, with the reason in `*why_not`. An
// empty reason means that another process traces to that file.
int make_trace(const OwnFile& place, struct stat* opened, std::string* why_not) {
  constexpr int kMostAttempts = 100;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const int made = place.create();
    const bool is_there = made < 0 && errno == EEXIST;
    const int descriptor = is_there ? place.open_existing() : made;
    if (descriptor < 0 && errno == ENOENT && is_there) continue;  // another process has removed it
    if (descriptor < 0) {
      // ENXIO: a pipe without a reader, or a socket.
      *why_not = errno == ENXIO ? kNoFile : "cannot be opened: " + own_file_error(errno);
      return -1;
    }
    if (fstat(descriptor, opened) != 0 || !S_ISREG(opened->st_mode)) {
      close(descriptor);
      *why_not = kNoFile;
      return -1;
    }
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(descriptor);
      return -1;
    }
    // If the file has no name any more, another process replaced it before it was locked.
    const bool has_name = fstat(descriptor, opened) == 0 && opened->st_nlink > 0;
    if (has_name && !is_there) return descriptor;
    const bool is_removed = !has_name || place.remove();
    const int error = errno;
    close(descriptor);
    if (!is_removed) {
      *why_not = fmt::format("cannot be replaced: {}", std::strerror(error));
      return -1;
    }
  }
  *why_not = "is replaced by other programs again and again";
  return -1;
}

// Makes `*file`. If another process traces to it, adds the process ID to the name. Returns -1 on
// failure, with the reason in `*why_not`.
int open_trace(std::string* file, struct stat* opened, std::string* why_not) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const OwnFile place(*file);
    const int descriptor = make_trace(place, opened, why_not);
    if (descriptor >= 0 || !why_not->empty()) return descriptor;
    *file += "." + std::to_string(getpid());
  }
  *why_not = "other processes trace there";
  return -1;
}

std::size_t round_up_to_8(std::size_t size_bytes) {
  return (size_bytes + 7) / 8 * 8;
}

// Cuts the text to the size of a chunk, at the end of a character if the text is UTF-8, else
// anywhere.
std::string_view cut_text(std::string_view text) {
  auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u;
  };
  if (text.size() <= kMostTraceTextBytes) return text;
  std::size_t size = kMostTraceTextBytes;
  while (kMostTraceTextBytes - size < 3 && continues(size)) --size;
  return text.substr(0, continues(size) ? kMostTraceTextBytes : size);
}

}  // namespace

std::string TraceFile::open(const std::string& name, const std::vector<TraceDevice>& devices) {
  if (is_open()) return fmt::format("trace {}: already tracing to {}", name, name_);
  written_bytes_ = 0;
  texts_ = dropped_ = 0;
  sites_.clear();
  sites_of_code_.clear();
  last_text_.clear();
  last_text_.reserve(kMostTraceTextBytes);
  name_ = with_process_number(name);
  const std::string header = make_header(devices);
  struct stat opened {};
  std::string why_not;
  descriptor_ = open_trace(&name_, &opened, &why_not);
  if (descriptor_ < 0) return fmt::format("trace {}: {}", name_, why_not);
  device_ = opened.st_dev;
  number_ = opened.st_ino;
  if (!write_all(header.data(), header.size())) {
    const int error = errno;
    ::close(std::exchange(descriptor_, -1));
    return fmt::format("trace {}: cannot be written: {}", name_, std::strerror(error));
  }
  written_bytes_ = static_cast<off_t>(header.size());
  return "";
}

void TraceFile::close() noexcept {
  TraceChunkHeader end;
  end.kind = TraceChunkKind::kEnd;
  end.value = dropped_;
  write_chunk(end, {});
  if (is_open()) ::close(std::exchange(descriptor_, -1));
}

void TraceFile::abandon() noexcept {
  if (is_ours()) ::close(descriptor_);
  descriptor_ = -1;
}

std::optional<TraceFile::Line> TraceFile::take_line() noexcept {
  return std::exchange(line_, std::nullopt);
}

void TraceFile::write_events(const TraceBuffer& buffer) noexcept {
  const auto [models, words] = buffer.events();
  if (words.empty()) return;
  TraceChunkHeader header;
  header.kind = TraceChunkKind::kPacked;
  header.count = static_cast<std::uint32_t>(words.size());
  header.value = models.size();
  header.thread = buffer.thread;
  header.system_thread = buffer.system_thread;
  if (!write_chunk(header, std::as_bytes(models), std::as_bytes(words))) {
    dropped_ += static_cast<std::uint64_t>(
        std::ranges::count_if(words, [](PackedTraceEvent word) { return !word.is_pause(); }));
  }
}

void TraceFile::write_live_blocks(std::vector<TraceEvent>* events) noexcept {
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

std::string TraceFile::make_header(const std::vector<TraceDevice>& devices) {
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

std::uint64_t TraceFile::write_text(std::string_view text) noexcept {
  if (!is_open()) return 0;
  text = cut_text(text);
  // If the same text was written last, as for a repeated failure, its number is returned.
  if (texts_ != 0 && text == last_text_) return texts_;
  TraceChunkHeader header;
  header.kind = TraceChunkKind::kText;
  header.count = static_cast<std::uint32_t>(text.size());
  header.value = texts_ + 1;
  if (!write_chunk(header, std::as_bytes(std::span(text)))) return 0;
  last_text_.assign(text);  // the capacity suffices, so this does not allocate
  return ++texts_;
}

std::uint64_t TraceFile::write_site(std::string_view site) noexcept {
  if (!is_open()) return 0;
  if (const auto known = sites_.find(site); known != sites_.end()) return known->second;
  const std::uint64_t text = write_text(site);
  try {
    if (text != 0) sites_.emplace(site, text);
  } catch (const std::bad_alloc&) {  // the text will be written again
  }
  return text;
}

std::uint64_t TraceFile::site_of(const void* caller) const noexcept {
  const auto known = sites_of_code_.find(caller);
  return known != sites_of_code_.end() ? known->second : 0;
}

void TraceFile::remember_site(const void* caller, std::uint64_t text) noexcept {
  try {
    if (text != 0) sites_of_code_.emplace(caller, text);
  } catch (const std::bad_alloc&) {
  }
}

// Writes a chunk. Returns false if that fails; the file is then as it was before.
bool TraceFile::write_chunk(const TraceChunkHeader& header, std::span<const std::byte> content,
                            std::span<const std::byte> more) noexcept {
  if (!is_open()) return false;
  if (!is_ours()) {
    lose();
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
    line_ = {"trace " + name_,
             fmt::format("the trace {} cannot be written ({}): events are left out and counted",
                         name_, std::strerror(error))};
  } catch (const std::exception&) {  // no memory for the line
  }
  return false;
}

// Returns whether the descriptor still refers to this file. A program that closes descriptors it
// does not own may since have opened another file with the same number.
bool TraceFile::is_ours() const noexcept {
  struct stat now {};
  return is_open() && fstat(descriptor_, &now) == 0 && now.st_dev == device_ &&
         now.st_ino == number_;
}

void TraceFile::lose() noexcept {
  descriptor_ = -1;
  try {
    line_ = {"", fmt::format("the trace {} ends early: the program has closed its file", name_)};
  } catch (const std::exception&) {  // no memory for the line
  }
}

bool TraceFile::write_all(const void* content, std::size_t size_bytes) noexcept {
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
