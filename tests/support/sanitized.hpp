// How much a test does in a build with a sanitizer, which is many times slower: a test of many
// random steps takes fewer steps. Tests of memory and time in the long run need no sanitizer.
#pragma once

namespace uvm::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

constexpr int steps(int usual, int sanitized) {
  return kIsSanitized ? sanitized : usual;
}

}  // namespace uvm::testing
