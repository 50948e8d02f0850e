// Returns the message of the exception that a call throws.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace uvm::testing {

inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace uvm::testing
