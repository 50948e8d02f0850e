// Splits texts, such as lists in settings.
#pragma once

#include <algorithm>
#include <string_view>

namespace uvm {

// Calls `visit` for each part of the text until it returns false. Returns whether all returned
// true. An empty text has one part.
template <class Visit>
bool each_part(std::string_view text, char separator, Visit visit) {
  while (true) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (!visit(text.substr(0, end))) return false;
    if (end == text.size()) return true;
    text.remove_prefix(end + 1);
  }
}

}  // namespace uvm
