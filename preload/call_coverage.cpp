#include "preload/call_coverage.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "allocator/process/process_allocator.hpp"
#include "preload/policy.hpp"

namespace uvm::preload {
namespace {

std::array<std::array<std::atomic<std::uint64_t>, kOutcomes>, kCalls> counts;

struct Lookups {
  std::mutex mutex;
  std::map<std::string, int> by_file;
};
Lookups& lookups() {
  static auto* const all = new Lookups;
  return *all;
}

InterposedCalls coverage() {
  InterposedCalls out;
  for (std::size_t call = 0; call < kCalls; ++call) {
    std::array<std::uint64_t, kOutcomes> now{};
    bool is_used = false;
    for (std::size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      now[outcome] = counts[call][outcome].load(std::memory_order_relaxed);
      is_used |= now[outcome] != 0;
    }
    if (is_used)
      out.calls.push_back({intercepted_calls[call].name, now[0], now[1], now[2], now[3], now[4]});
  }
  const std::lock_guard lock(lookups().mutex);
  for (const auto& [file, count] : lookups().by_file) {
    if (count >= policy::kLookupsOfARuntime) out.static_runtimes.push_back(file);
  }
  return out;
}

}  // namespace

void count(Call call, Outcome outcome) noexcept {
  counts[call][static_cast<std::size_t>(outcome)].fetch_add(1, std::memory_order_relaxed);
}

void note_lookup(const void* caller) noexcept {
  Dl_info found{};
  if (dladdr(caller, &found) == 0 || found.dli_fname == nullptr) return;
  try {
    const std::lock_guard lock(lookups().mutex);
    ++lookups().by_file[found.dli_fname];
  } catch (const std::bad_alloc&) {
    // Out of memory: the report omits the file.
  }
}

void report_coverage() {
  set_interposed_calls(coverage);
}

}  // namespace uvm::preload
