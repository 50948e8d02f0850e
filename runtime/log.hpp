// Lines on stderr, prefixed "uvmalloc: ". Each is one write(2), so that lines of several processes
// do not mix. Safe in any process and thread, before main, at exit and without memory: a line is
// built in a fixed buffer, and cut at kMostLineBytes.
//
// The reader of the lines may stall the writer. So no line is written with the lock of an arena or
// a later one held (LockRank); builds without NDEBUG abort otherwise.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <uvmalloc/log_level.hpp>

namespace uvm {

// Lines above this level are dropped. kWarning until set.
void set_log_level(LogLevel level);
LogLevel log_level();

// With the prefix and the end of the line.
inline constexpr std::size_t kMostLineBytes = 2048;

void log_line(LogLevel level, std::string_view text) noexcept;

namespace detail {
void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept;
}  // namespace detail

template <class... Arguments>
void log(LogLevel level, fmt::format_string<Arguments...> format,
         Arguments&&... arguments) noexcept {
  detail::log_formatted(level, format, fmt::make_format_args(arguments...));
}

// The same, but at most once in this process for each `key`. Without memory to remember the key,
// each time.
void log_once(LogLevel level, std::string_view key, std::string_view text) noexcept;

// For a line: "1.5 GiB", "512 B".
std::string format_size(std::size_t bytes);

// Around a fork: no thread adds a key meanwhile.
void lock_log_for_fork() noexcept;
void unlock_log_after_fork() noexcept;

}  // namespace uvm
