// Detects pages that migrate back and forth between processors by faults, and decides how to serve
// such a fault: the processor sleeps and then gets the page (throttled), or the page stays in place
// for a while and is used remotely (pinned). Requested moves and evictions clear the record of
// their pages. The rules are those of the modelled driver, uvm_perf_thrashing.c. Guarded by the
// machine's mutex.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "sim/engine/machine_rules.hpp"
#include "sim/engine/page_mask.hpp"

namespace uvmsim {

class Thrashing {
 public:
  explicit Thrashing(const ThrashingRules& rules) : rules_(rules) {}

  struct Answer {
    PageMask throttled;
    PageMask pinned;
  };

  // Call this when a processor faults on pages at another location.
  Answer answer(std::size_t block, const PageMask& pages, std::uint64_t now_ns);

  // Call this after faults have moved the pages.
  void note_migration(std::size_t block, const PageMask& pages, std::uint64_t now_ns);

  void forget(std::size_t block, const PageMask& pages);

 private:
  struct Page {
    std::uint64_t last_ns = 0;
    std::uint64_t pinned_until_ns = 0;
    unsigned migrations = 0;
    unsigned throttles = 0;
  };
  struct Record {
    std::uint64_t last_ns = 0;
    unsigned resets = 0;
    PageMask moved;  // pages of the only migration, until `pages` is filled
    std::unique_ptr<std::array<Page, kPagesPerBlock>> pages;
  };

  void reset_if_quiet(Record& record, std::uint64_t now_ns) const;
  void count_migration(Page& page, std::uint64_t now_ns) const;

  ThrashingRules rules_;
  std::unordered_map<std::size_t, Record> records_;
};

}  // namespace uvmsim
