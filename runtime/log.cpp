#include "runtime/log.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <string>

#include "runtime/ranked.hpp"

namespace uvm {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kWarning};

}  // namespace

void set_log_level(LogLevel level) {
  current_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() {
  return current_level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view text) noexcept {
  detail::log_formatted(level, "{}", fmt::make_format_args(text));
}

void detail::log_formatted(LogLevel level, fmt::string_view format,
                           fmt::format_args arguments) noexcept {
  if (level > log_level() || level == LogLevel::kOff) return;
  if (holds_rank_from(LockRank::kArena)) {
    forget_ranks();
    log_formatted(level, format, arguments);
    log_line(LogLevel::kError, "the line above is written with a lock of the allocator held");
    std::abort();
  }
  constexpr std::string_view kPrefix = "uvmalloc: ";
  constexpr std::string_view kCut = "...";
  constexpr std::size_t kMostTextBytes = kMostLineBytes - kPrefix.size() - 1;
  char line[kMostLineBytes];
  char* const text = std::copy(kPrefix.begin(), kPrefix.end(), line);
  std::size_t size_bytes = 0;
  try {
    size_bytes = fmt::vformat_to_n(text, kMostTextBytes, format, arguments).size;
  } catch (...) {
    return;  // formatting this type needs memory, and none is left
  }
  if (size_bytes > kMostTextBytes) {
    size_bytes = kMostTextBytes;
    std::copy(kCut.begin(), kCut.end(), text + size_bytes - kCut.size());
  }
  text[size_bytes] = '\n';
  // A line that cannot be written is lost.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line, kPrefix.size() + size_bytes + 1);
}

namespace {

constinit std::mutex said_mutex;

// Remembers the key, and returns whether it is new.
bool is_first(std::string_view key) {
  // Leaked, so that it is usable while the process exits.
  static std::set<std::string, std::less<>>* const said = new std::set<std::string, std::less<>>;
  std::lock_guard lock(said_mutex);
  return said->emplace(key).second;
}

}  // namespace

std::string format_size(std::size_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  if (value == std::floor(value)) return fmt::format("{:.0f} {}", value, kUnits[unit]);
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

void lock_log_for_fork() noexcept {
  said_mutex.lock();
}
void unlock_log_after_fork() noexcept {
  said_mutex.unlock();
}

void log_once(LogLevel level, std::string_view key, std::string_view text) noexcept {
  if (level > log_level()) return;  // the key stays new until a line is logged
  try {
    if (!is_first(key)) return;
  } catch (const std::bad_alloc&) {
  }
  log_line(level, text);
}

}  // namespace uvm
