// One line at a time on stderr, prefixed "uvmalloc: ", by one write(2) so that lines of several
// processes do not mix. Safe in any process and thread, before main and while exiting; allocates
// only to format.
#pragma once

#include <string_view>

#include <fmt/format.h>

#include <uvmalloc/runtime/log_level.hpp>

namespace uvm {

// Lines above this level are dropped. kWarning until set.
void set_log_level(LogLevel level);
LogLevel log_level();

void log_line(LogLevel level, std::string_view text);

template <class... Arguments>
void log(LogLevel level, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (level > log_level()) return;
  log_line(level, fmt::format(format, std::forward<Arguments>(arguments)...));
}

// The same, but at most once in this process for each `key`.
void log_once(LogLevel level, std::string_view key, std::string_view text);

}  // namespace uvm
