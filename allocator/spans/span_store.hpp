// The spans, cut into runs of whole 2 MiB pages. A span is one managed allocation of the driver, or
// ordinary memory of the kernel (host_backing.hpp). It is made and advised once, for one memory
// kind and device. Its memory is virtual, so it costs nothing until its pages are touched. A page
// counts as touched from the time when it is handed out until the page is discarded or the span is
// freed. Runs that are given back are joined with their neighbours.
//
// Calls no driver. Guarded by the state lock.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <uvmalloc/facade.hpp>
#include "hints/placement_planner.hpp"
#include "storage/pages.hpp"

namespace uvm {

struct Span {
  void* raw = nullptr;  // from the driver or kernel; `base` is its first 2 MiB boundary
  char* base = nullptr;
  std::size_t size_bytes = 0;
  Facade facade = Facade::kHost;
  int device = 0;
  bool ordinary = false;                    // memory from the kernel, not the driver
  bool reserved = false;                    // ReservedAddresses chooses addresses in it
  SegmentPlacement placement;               // the advice on the whole span
  std::map<std::size_t, std::size_t> free;  // offset -> size of each free run
  std::vector<bool> touched;                // for each page
  std::size_t touched_bytes = 0;

  std::size_t free_bytes() const {
    std::size_t bytes = 0;
    for (const auto& [offset, run_bytes] : free) bytes += run_bytes;
    return bytes;
  }
  // All pages in use are touched, so the other touched pages are free.
  std::size_t touched_free_bytes() const { return touched_bytes - (size_bytes - free_bytes()); }
  bool empty() const { return free.size() == 1 && free.begin()->second == size_bytes; }
  bool may_leave() const { return empty() && !reserved; }
};

class SpanStore {
 public:
  struct Run {
    Span* span = nullptr;  // nullptr if no run fits
    std::size_t offset = 0;
    std::size_t untouched_bytes = 0;  // in pages that were never handed out
    std::size_t size_bytes = 0;       // set by take_touched()
    char* base() const { return span->base + offset; }
  };

  Span* add(std::unique_ptr<Span> span);

  // Finds the lowest free run of `size_bytes` in spans of this memory kind and device; of several
  // spans, the run with the fewest untouched pages. `any_facade`: in spans of all memory kinds.
  // Leaves out reserved spans.
  // Device memory that has to be `ordinary` is only in such spans, and other device memory is there
  // only with `any_facade`.
  Run find(Facade facade, int device, std::size_t size_bytes, bool any_facade,
           bool ordinary = false) const;

  // Returns the run at exactly that address if it is free, else a run without a span.
  static Run find_at(Span* span, const char* base, std::size_t size_bytes);

  // Returns the reserved span that contains the address, or nullptr.
  Span* reserved_span_at(const void* address) const;

  // Visits whole free runs of such spans of this facade and device, at most policy::kComparedRuns.
  // Leaves out reserved spans.
  using RunVisitor = std::function<void(Span* span, char* base, std::size_t size_bytes)>;
  void each_free(Facade facade, int device, const RunVisitor& visit, bool ordinary = false) const;

  // Takes all free runs of touched pages. Giving these back later allocates nothing. Call
  // end_taking() after all these runs are given back.
  std::vector<Run> take_touched(Span* span);
  void end_taking() { spare_.clear(); }

  // Takes a run that find() has just returned. Its pages count as touched from now on.
  void take(const Run& run, std::size_t size_bytes);

  void give_back(Span* span, char* base, std::size_t size_bytes);
  // Same as give_back(), for pages that were discarded; they count as untouched.
  void give_back_untouched(Span* span, char* base, std::size_t size_bytes);

  // Removes and returns the spans without runs in use, except reserved spans. If it throws
  // std::bad_alloc, removes none.
  std::vector<std::unique_ptr<Span>> remove_empty();

  const std::vector<std::unique_ptr<Span>>& spans() const { return spans_; }
  std::size_t touched_bytes() const { return touched_bytes_; }
  // Returns the touched bytes in spans of this memory kind and device.
  std::size_t touched_bytes(Facade facade, int device) const;
  // Returns the touched bytes in free runs.
  std::size_t touched_free_bytes() const;

 private:
  std::vector<std::unique_ptr<Span>> spans_;
  std::size_t touched_bytes_ = 0;
  // Map nodes of the runs that take_touched() took, so that giving the runs back allocates nothing.
  std::vector<std::map<std::size_t, std::size_t>::node_type> spare_;
};

}  // namespace uvm
