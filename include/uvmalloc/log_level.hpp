// The level of log lines on stderr. Separate from log.hpp, so that public headers need no
// formatting library.
#pragma once

namespace uvm {

enum class LogLevel : unsigned char { kOff, kError, kWarning, kInfo, kDebug };

}  // namespace uvm
