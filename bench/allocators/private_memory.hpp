// This process's private memory: resident anonymous pages, as the kernel counts them, and live
// bytes of malloc. Neither count includes shared mappings, such as managed memory on the simulated
// machine. Signed, because memory may shrink.
#pragma once

#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

namespace uvm::bench {

struct PrivateMemory {
  std::int64_t anonymous_bytes = 0;
  std::int64_t heap_bytes = 0;

  static PrivateMemory now() {
    std::ifstream rollup("/proc/self/smaps_rollup");
    for (std::string word; rollup >> word;) {
      if (word != "Anonymous:") continue;
      std::int64_t kib = 0;
      rollup >> kib;
      const struct mallinfo2 heap = mallinfo2();
      return {kib * 1024, static_cast<std::int64_t>(heap.uordblks + heap.hblkhd)};
    }
    throw std::runtime_error("/proc/self/smaps_rollup has no line 'Anonymous:'");
  }
  PrivateMemory since(const PrivateMemory& before) const {
    return {anonymous_bytes - before.anonymous_bytes, heap_bytes - before.heap_bytes};
  }
};

}  // namespace uvm::bench
