#include "allocator/counters/figure_store.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <uvmalloc/uvmalloc.h>
#include "allocator/base/cache_lines.hpp"
#include "allocator/base/descriptor.hpp"
#include "allocator/base/own_file.hpp"

namespace uvm {
namespace {

constexpr std::size_t kPage = 4096;                // alignment of a mapping and unit of its size
constexpr off_t kMostFileBytes = off_t{64} << 20;  // a store for 500 devices is smaller
constexpr std::string_view kFormat = "uvmalloc-fig-1";

constexpr std::size_t rounded_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

template <std::size_t kSize>
void copy_text(std::string_view text, std::array<char, kSize>* out) {
  out->fill('\0');
  std::memcpy(out->data(), text.data(), std::min(text.size(), kSize - 1));
}

template <std::size_t kSize>
std::string_view text_in(const std::array<char, kSize>& bytes) {
  return {bytes.data(), strnlen(bytes.data(), kSize)};
}

Figures::OfHints copy_of(const HintCounters::Kind& kind) {
  Figures::OfHints out{kind.sent.load(), kind.bytes.load(), kind.failed.load(), {}};
  for (std::size_t reason = 0; reason < kSkipReasons; ++reason) {
    out.skipped[reason] = kind.skipped[reason].load();
  }
  return out;
}

// Reserves the whole file and returns whether that worked. Without this, a later write to a mapped
// page would kill the process on a full file system or beyond its limit on file sizes.
bool has_room(int descriptor, std::size_t size_bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur < size_bytes) return false;
  return posix_fallocate(descriptor, 0, static_cast<off_t>(size_bytes)) == 0;
}

// A copy of a file in memory, with the alignment of a store.
struct FileContent {
  struct Free {
    void operator()(char* bytes) const { ::operator delete(bytes, std::align_val_t(kPage)); }
  };
  std::unique_ptr<char, Free> memory;  // nullptr if the file cannot be read
  std::size_t size_bytes = 0;
};

// Reads a regular file up to the size that the file has when opened, and pads the copy with zeros
// to `least_bytes`. Other kinds of file are not read, because another user may have put anything at
// that path, for example a pipe without a writer.
FileContent content_of(const std::string& file, std::size_t least_bytes) {
  FileContent content;
  const Descriptor descriptor(open(file.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat found {};
  if (!descriptor.is_open() || fstat(descriptor.get(), &found) != 0 || !S_ISREG(found.st_mode) ||
      found.st_size > kMostFileBytes) {
    return content;
  }
  const auto size_bytes = static_cast<std::size_t>(found.st_size);
  const std::size_t room_bytes = std::max(size_bytes, least_bytes);
  content.memory.reset(static_cast<char*>(::operator new(room_bytes, std::align_val_t(kPage))));
  std::memset(content.memory.get(), 0, room_bytes);
  ssize_t now = 1;
  while (now > 0 && content.size_bytes < size_bytes) {
    now = read(descriptor.get(), content.memory.get() + content.size_bytes,
               size_bytes - content.size_bytes);
    if (now > 0) content.size_bytes += static_cast<std::size_t>(now);
  }
  return content;
}

}  // namespace

FigureStore::Layout::Layout(std::size_t counters) {
  peaks = rounded_up(sizeof(Fixed), kCacheLinePair);
  thread_counts = rounded_up(peaks + counters * sizeof(PeakTracker::Peaks), kCacheLinePair);
  size_bytes =
      rounded_up(thread_counts + (1 + kThreads) * counters * sizeof(ThreadCounters), kPage);
}

FigureStore::FigureStore(std::size_t counters) : counters_(counters), layout_(counters) {
  map_ordinary();
  make_parts();
}

FigureStore::FigureStore(std::size_t counters, const std::string& file)
    : counters_(counters), layout_(counters) {
  if (file.empty() || !map_file(file)) map_ordinary();
  make_parts();
}

FigureStore::~FigureStore() {
  munmap(mapped_, layout_.size_bytes);
}

void FigureStore::map_ordinary() {
  void* mapped =
      mmap(nullptr, layout_.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  mapped_ = static_cast<char*>(mapped);
}

bool FigureStore::map_file(const std::string& file) {
  file_ = file;
  const int descriptor = OwnFile(file).create();
  if (descriptor < 0) {
    file_.clear();
    return false;
  }
  void* mapped = MAP_FAILED;
  if (has_room(descriptor, layout_.size_bytes)) {
    mapped = mmap(nullptr, layout_.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  // The mapping does not need the descriptor. A program that closes unknown descriptors could close
  // this one and reuse its number for another file.
  ::close(descriptor);
  if (mapped == MAP_FAILED) {
    remove_file();
    return false;
  }
  mapped_ = static_cast<char*>(mapped);
  return true;
}

void FigureStore::make_parts() {
  fixed_ = new (mapped_) Fixed{};
  peaks_ = new (mapped_ + layout_.peaks) PeakTracker::Peaks[counters_]{};
  thread_counts_ =
      new (mapped_ + layout_.thread_counts) ThreadCounters[(1 + kThreads) * counters_]{};
  Header& header = fixed_->header;
  header.size_bytes = layout_.size_bytes;
  header.fixed_bytes = sizeof(Fixed);
  header.counters = counters_;
  copy_text(UVMALLOC_VERSION, &header.version);
  copy_text(kFormat, &header.format);  // last, because readers accept the file once this is set
}

void FigureStore::remove_file() noexcept {
  if (!file_.empty()) unlink(file_.c_str());
  file_.clear();
}

void FigureStore::leave_to_parent() noexcept {
  if (file_.empty()) return;
  file_.clear();
  void* copy =
      mmap(nullptr, layout_.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;  // then the child changes the parent's figures
  std::memcpy(copy, mapped_, layout_.size_bytes);
  mremap(copy, layout_.size_bytes, layout_.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, mapped_);
}

bool FigureStore::describe(std::string_view text) noexcept {
  if (text.size() >= fixed_->about.size()) return false;
  copy_text(text, &fixed_->about);
  return true;
}

FigureStore::ThreadCounts::ThreadCounts(ThreadCounts&& other) noexcept
    : thread_counts_(other.thread_counts_),
      taken_(std::exchange(other.taken_, nullptr)),
      own_(std::move(other.own_)) {
  other.thread_counts_ = {};
}

FigureStore::ThreadCounts::~ThreadCounts() {
  if (taken_ == nullptr) return;
  std::fill(thread_counts_.begin(), thread_counts_.end(), ThreadCounters{});
  taken_->store(false, std::memory_order_release);
}

FigureStore::ThreadCounts FigureStore::take_thread_counts() {
  ThreadCounts out;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    if (taken_[thread].exchange(true, std::memory_order_acquire)) continue;
    out.taken_ = &taken_[thread];
    out.thread_counts_ = {thread_counts_ + (1 + thread) * counters_, counters_};
    return out;
  }
  out.own_ = std::make_unique<ThreadCounters[]>(counters_);
  out.thread_counts_ = {out.own_.get(), counters_};
  ++fixed_->threads_left_out;
  return out;
}

Figures FigureStore::figures_of(const Fixed& fixed, const PeakTracker::Peaks* peaks,
                                const SumOfCounter& sum) {
  Figures out;
  out.about = text_in(fixed.about);
  out.totals = fixed.totals;
  const std::size_t devices = fixed.header.counters / kFacades;
  std::int64_t live_bytes = 0;
  for (std::size_t counter = 0; counter < devices * kFacades; ++counter) {
    const ThreadCounters counts = sum(counter);
    Amounts live = counts.live(ThreadCounters::kAll);
    live.bytes = std::max<std::int64_t>(live.bytes, 0);  // negative if threads were left out
    const Amounts total = counts.total(ThreadCounters::kAll);
    Figures::OfFacade& facade = out.facades[counter / devices];
    facade.allocations += static_cast<std::uint64_t>(total.blocks);
    facade.allocated_bytes += static_cast<std::uint64_t>(total.bytes);
    facade.live_bytes += static_cast<std::uint64_t>(live.bytes);
    facade.peak_bytes += static_cast<std::uint64_t>(
        std::max(peaks[counter].peaks[ThreadCounters::kAll].bytes, live.bytes));
    for (std::size_t of = 0; of < kSizeClasses; ++of) facade.cache_hits += counts.hits(of);
    live_bytes += live.bytes;
  }
  out.peak_bytes = static_cast<std::uint64_t>(std::max(fixed.peak_live_bytes, live_bytes));
  for (std::size_t kind = 0; kind < kHintKinds; ++kind) {
    out.hints[kind] = copy_of(fixed.hints.of(static_cast<HintKind>(kind)));
  }
  out.calls = CountingRuntime::named(fixed.calls);
  out.unmanaged_host_allocations = fixed.unmanaged_host.allocations.load();
  out.unmanaged_host_bytes = fixed.unmanaged_host.bytes.load();
  for (const GroupLine& group : fixed.groups) {
    if (!group.is_used.load(std::memory_order_acquire)) break;
    out.groups.push_back({std::string(text_in(group.name)), group.state.load(),
                          group.page_bytes.load(), group.device_bytes.load(),
                          group.file_bytes.load(), group.sleeps.load(), group.wakes.load()});
  }
  out.threads_left_out = fixed.threads_left_out.load();
  return out;
}

Figures FigureStore::read(const SumOfCounter& sum) const {
  return figures_of(*fixed_, peaks_, sum);
}

bool FigureStore::is_ours(const Fixed& fixed, std::size_t size_bytes) {
  const Header& header = fixed.header;
  return text_in(header.format) == kFormat && text_in(header.version) == UVMALLOC_VERSION &&
         header.fixed_bytes == sizeof(Fixed) && header.size_bytes == size_bytes &&
         header.counters <= size_bytes / sizeof(ThreadCounters) &&
         header.counters % kFacades == 0 && Layout(header.counters).size_bytes == size_bytes;
}

std::optional<Figures> FigureStore::read_file(const std::string& file, std::string* why_not) {
  const FileContent content = content_of(file, sizeof(Fixed));
  if (content.memory == nullptr) {
    *why_not = "it cannot be read";
    return std::nullopt;
  }
  const char* const copy = content.memory.get();
  const auto& fixed = *reinterpret_cast<const Fixed*>(copy);
  if (!is_ours(fixed, content.size_bytes)) {
    *why_not = "it was not written by this version of uvmalloc";
    return std::nullopt;
  }
  const Layout layout(fixed.header.counters);
  const auto* peaks = reinterpret_cast<const PeakTracker::Peaks*>(copy + layout.peaks);
  const auto* thread_counts = reinterpret_cast<const ThreadCounters*>(copy + layout.thread_counts);
  return figures_of(fixed, peaks, [&](std::size_t counter) {
    ThreadCounters sum;
    for (std::size_t thread = 0; thread <= kThreads; ++thread) {
      sum.absorb(thread_counts[thread * fixed.header.counters + counter]);
    }
    return sum;
  });
}

}  // namespace uvm
