// Decides which allocation calls are forwarded although this library serves allocations, by size
// and by caller (UVMALLOC_EXCLUDE).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "preload/policy.hpp"

namespace uvm::preload {

class Exclusions {
 public:
  // `text` is a list, separated by commas: `<SIZE` and `>SIZE` exclude requests below and above a
  // size; `libNAME` excludes calls from libraries with a file name that begins with `libNAME`;
  // `libNAME.so+0x1234` excludes one call site, by its return address within the library. Libraries
  // that register memory with network devices are excluded, unless the first entry is `none`.
  // Appends one line to `errors` for each entry that cannot be parsed.
  Exclusions(std::string_view text, std::vector<std::string>* errors);

  // Return whether to forward a call whose return address is `caller`. Thread-safe; allocate
  // nothing.
  bool excludes_caller(const void* caller) const noexcept;
  bool excludes(std::size_t size_bytes, const void* caller) const noexcept {
    return size_bytes < least_bytes_ || size_bytes > most_bytes_ || excludes_caller(caller);
  }

 private:
  struct CallSite {
    std::string library;
    std::uintptr_t offset = 0;
  };

  bool is_excluded(const void* caller) const noexcept;

  std::size_t least_bytes_ = 0;
  std::size_t most_bytes_ = std::numeric_limits<std::size_t>::max();
  std::vector<std::string> libraries_;
  std::vector<CallSite> call_sites_;
  // A cache of callers. An entry is twice the caller's address, plus 1 if the caller is excluded.
  mutable std::array<std::atomic<std::uint64_t>, policy::kKnownCallers> known_{};
};

}  // namespace uvm::preload
