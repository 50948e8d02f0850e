// Writes lines to stderr, prefixed "uvmalloc: ". Each line is one write(2), so that lines of
// several processes do not mix. Safe in any process and thread, before main, at exit and without
// memory: a line is built in a fixed buffer, and cut at kMostLineBytes.
//
// A slow reader of stderr blocks the writer. So a thread that holds a lock of rank kArena or later
// must not write a line; builds without NDEBUG abort if it does.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <uvmalloc/log_level.hpp>

namespace uvm {

// Lines above this level are dropped. The level is kWarning until it is set.
void set_log_level(LogLevel level);
LogLevel log_level();

// Includes the prefix and the newline.
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

// Like log_line(), but at most once in this process for each `key`. If there is no memory to
// remember the key, every call logs.
void log_once(LogLevel level, std::string_view key, std::string_view text) noexcept;

// Returns, for example, "1.50 GiB" or "512 B".
std::string format_size(std::size_t bytes);

// Called around a fork, so that no other thread holds the lock of the keys in the child.
void lock_log_for_fork() noexcept;
void unlock_log_after_fork() noexcept;

}  // namespace uvm
