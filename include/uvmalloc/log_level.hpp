// The level of lines on stderr. Not in log.hpp, so that public headers need no formatting library.
#pragma once

namespace uvm {

enum class LogLevel : unsigned char { kOff, kError, kWarning, kInfo, kDebug };

}  // namespace uvm
