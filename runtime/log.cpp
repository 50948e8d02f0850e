#include <uvmalloc/runtime/log.hpp>

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <string>

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

void log_line(LogLevel level, std::string_view text) {
  if (level > log_level() || level == LogLevel::kOff) return;
  std::string line = fmt::format("uvmalloc: {}\n", text);
  // A log line that cannot be written has nowhere else to go.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void log_once(LogLevel level, std::string_view key, std::string_view text) {
  static std::mutex* const mutex = new std::mutex;  // leaked: usable while the process exits
  static std::set<std::string, std::less<>>* const said = new std::set<std::string, std::less<>>;
  {
    std::lock_guard lock(*mutex);
    if (!said->emplace(key).second) return;
  }
  log_line(level, text);
}

}  // namespace uvm
