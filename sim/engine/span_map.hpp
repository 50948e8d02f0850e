// A value for every index of [0, size), stored as spans. Setting a part of a span to another value
// splits the span. Spans never merge again, because in the modelled driver, too, advice on part of
// a range splits the range for good. Not synchronised; owned by an allocation and guarded by the
// machine's mutex.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

namespace uvmsim {

template <class Value>
class SpanMap {
 public:
  explicit SpanMap(std::size_t size) : size_(size) { starts_.emplace(0, Value{}); }

  const Value& at(std::size_t index) const { return std::prev(starts_.upper_bound(index))->second; }

  // Returns the bounds [first, last) of the span that contains `index`.
  std::pair<std::size_t, std::size_t> span_of(std::size_t index) const {
    const auto it = std::prev(starts_.upper_bound(index));
    return {it->first, end_of(it)};
  }

  // Calls visit(first, last, value) for each piece of [first, last), in order.
  template <class Visit>
  void visit(std::size_t first, std::size_t last, Visit visit) const {
    auto it = std::prev(starts_.upper_bound(first));
    for (; it != starts_.end() && it->first < last; ++it) {
      visit(std::max(first, it->first), std::min(last, end_of(it)), it->second);
    }
  }

  // Replaces the value v of each piece of [first, last) with change(v). If no value changes, no
  // span is split.
  template <class Change>
  void update(std::size_t first, std::size_t last, Change change) {
    auto it = std::prev(starts_.upper_bound(first));
    while (it != starts_.end() && it->first < last) {
      const Value changed = change(it->second);
      if (changed == it->second) {
        ++it;
        continue;
      }
      if (it->first < first) it = split(it, first);
      if (last < end_of(it)) split(it, last);
      it->second = changed;
      ++it;
    }
  }

  std::size_t span_count() const { return starts_.size(); }

 private:
  using Iterator = typename std::map<std::size_t, Value>::iterator;
  using ConstIterator = typename std::map<std::size_t, Value>::const_iterator;

  std::size_t end_of(ConstIterator it) const {
    const auto next = std::next(it);
    return next == starts_.end() ? size_ : next->first;
  }

  Iterator split(Iterator it, std::size_t at) {
    return starts_.emplace_hint(std::next(it), at, it->second);
  }

  std::size_t size_;
  std::map<std::size_t, Value> starts_;
};

}  // namespace uvmsim
