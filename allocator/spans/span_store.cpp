#include "allocator/spans/span_store.hpp"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "allocator/policy/allocation_policy.hpp"

namespace uvm {
namespace {

std::size_t untouched_bytes(const Span& span, std::size_t offset, std::size_t size_bytes) {
  std::size_t bytes = 0;
  for (std::size_t page = offset >> kPageShift; page < (offset + size_bytes) >> kPageShift;
       ++page) {
    if (!span.touched[page]) bytes += kPageBytes;
  }
  return bytes;
}

bool is_for(const Span& span, Facade facade, int device, bool ordinary) {
  return span.facade == facade && span.device == device && span.ordinary == ordinary;
}

}  // namespace

Span* SpanStore::add(std::unique_ptr<Span> span) {
  span->free = {{0, span->size_bytes}};
  span->touched.assign(span->size_bytes >> kPageShift, false);
  spans_.push_back(std::move(span));
  return spans_.back().get();
}

SpanStore::Run SpanStore::find(Facade facade, int device, std::size_t size_bytes, bool any_facade,
                               bool ordinary) const {
  Run best;
  std::size_t seen = 0;
  for (const auto& span : spans_) {
    const bool may_serve =
        any_facade ? !ordinary || span->ordinary : is_for(*span, facade, device, ordinary);
    if (span->reserved || !may_serve) continue;
    for (const auto& [offset, size] : span->free) {
      if (best.span != nullptr && seen >= policy::kComparedRuns) return best;
      ++seen;
      if (size < size_bytes) continue;
      Run run{span.get(), offset, untouched_bytes(*span, offset, size_bytes), size_bytes};
      if (best.span == nullptr || run.untouched_bytes < best.untouched_bytes) best = run;
      if (best.untouched_bytes == 0) return best;
    }
  }
  return best;
}

SpanStore::Run SpanStore::find_at(Span* span, const char* base, std::size_t size_bytes) {
  if (base < span->base || base + size_bytes > span->base + span->size_bytes) return {};
  auto offset = static_cast<std::size_t>(base - span->base);
  auto free = span->free.upper_bound(offset);
  if (free == span->free.begin()) return {};
  --free;
  if (free->first + free->second < offset + size_bytes) return {};
  return {span, offset, untouched_bytes(*span, offset, size_bytes), size_bytes};
}

void SpanStore::each_free(Facade facade, int device, const RunVisitor& visit, bool ordinary) const {
  std::size_t seen = 0;
  for (const auto& span : spans_) {
    if (span->reserved || !is_for(*span, facade, device, ordinary)) continue;
    for (const auto& [offset, size_bytes] : span->free) {
      if (seen++ == policy::kComparedRuns) return;
      visit(span.get(), span->base + offset, size_bytes);
    }
  }
}

Span* SpanStore::reserved_span_at(const void* address) const {
  const auto found = std::find_if(spans_.begin(), spans_.end(), [&](const auto& span) {
    return span->reserved && address_of(address) - address_of(span->base) < span->size_bytes;
  });
  return found == spans_.end() ? nullptr : found->get();
}

std::size_t SpanStore::touched_bytes(Facade facade, int device) const {
  std::size_t bytes = 0;
  for (const auto& span : spans_) {
    if (span->facade == facade && span->device == device) bytes += span->touched_bytes;
  }
  return bytes;
}

std::size_t SpanStore::touched_free_bytes() const {
  std::size_t bytes = 0;
  for (const auto& span : spans_) bytes += span->touched_free_bytes();
  return bytes;
}

std::vector<SpanStore::Run> SpanStore::take_touched(Span* span) {
  // Stop at the last touched page, because most of a large span is untouched.
  std::size_t left_bytes = span->touched_free_bytes();
  std::vector<Run> runs;
  for (const auto& [offset, size_bytes] : span->free) {
    std::size_t first = offset >> kPageShift;
    std::size_t end = (offset + size_bytes) >> kPageShift;
    for (std::size_t page = first; page < end && left_bytes != 0; ++page) {
      if (!span->touched[page]) continue;
      std::size_t begin = page;
      while (page < end && span->touched[page]) ++page;
      runs.push_back({span, begin << kPageShift, 0, (page - begin) << kPageShift});
      left_bytes -= runs.back().size_bytes;
    }
  }
  spare_.reserve(spare_.size() + runs.size());
  for (auto run = runs.begin(); run != runs.end(); ++run) {
    try {
      take(*run, run->size_bytes);
    } catch (const std::bad_alloc&) {
      runs.erase(run, runs.end());
      break;
    }
  }
  return runs;
}

void SpanStore::take(const Run& run, std::size_t size_bytes) {
  Span& span = *run.span;
  auto free = std::prev(span.free.upper_bound(run.offset));
  std::size_t before = run.offset - free->first;
  std::size_t after = free->first + free->second - (run.offset + size_bytes);
  // This comes first, because it may throw std::bad_alloc.
  if (after != 0) span.free.emplace(run.offset + size_bytes, after);
  if (before == 0) {
    auto node = span.free.extract(free);
    if (spare_.size() < spare_.capacity()) spare_.push_back(std::move(node));
  } else {
    free->second = before;
  }
  for (std::size_t page = run.offset >> kPageShift; page < (run.offset + size_bytes) >> kPageShift;
       ++page) {
    span.touched[page] = true;
  }
  span.touched_bytes += run.untouched_bytes;
  touched_bytes_ += run.untouched_bytes;
}

void SpanStore::give_back(Span* span, char* base, std::size_t size_bytes) {
  const auto offset = static_cast<std::size_t>(base - span->base);
  const auto after = span->free.lower_bound(offset);
  const bool joins_after = after != span->free.end() && offset + size_bytes == after->first;
  const auto before = after == span->free.begin() ? span->free.end() : std::prev(after);
  const bool joins_before = before != span->free.end() && before->first + before->second == offset;
  // A run that joins neither neighbour needs its own entry.
  if (joins_before) {
    before->second += size_bytes;
    if (joins_after) {
      before->second += after->second;
      span->free.erase(after);
    }
  } else if (joins_after) {
    auto run = span->free.extract(after);
    run.key() = offset;
    run.mapped() += size_bytes;
    span->free.insert(std::move(run));
  } else if (!spare_.empty()) {
    auto run = std::move(spare_.back());
    spare_.pop_back();
    run.key() = offset;
    run.mapped() = size_bytes;
    span->free.insert(std::move(run));
  } else {
    span->free.emplace(offset, size_bytes);
  }
}

void SpanStore::give_back_untouched(Span* span, char* base, std::size_t size_bytes) {
  auto first = static_cast<std::size_t>(base - span->base) >> kPageShift;
  for (std::size_t page = first; page < first + (size_bytes >> kPageShift); ++page) {
    span->touched[page] = false;
  }
  span->touched_bytes -= size_bytes;
  touched_bytes_ -= size_bytes;
  give_back(span, base, size_bytes);
}

std::vector<std::unique_ptr<Span>> SpanStore::remove_empty() {
  std::vector<std::unique_ptr<Span>> removed;
  // This comes first, because it may throw std::bad_alloc.
  removed.reserve(static_cast<std::size_t>(std::count_if(
      spans_.begin(), spans_.end(), [](const auto& span) { return span->may_leave(); })));
  auto keep = std::stable_partition(spans_.begin(), spans_.end(),
                                    [](const auto& span) { return !span->may_leave(); });
  std::move(keep, spans_.end(), std::back_inserter(removed));
  spans_.erase(keep, spans_.end());
  for (const auto& span : removed) touched_bytes_ -= span->touched_bytes;
  return removed;
}

}  // namespace uvm
