// Caches sets of views by the values of the variables, as TVM's runtime does ("update view if this
// view is not in cache"). Evicts the least recently used set. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace uvm {

template <class Views>
class ViewCache {
 public:
  explicit ViewCache(std::size_t capacity) : capacity_(capacity == 0 ? 1 : capacity) {}

  // Returns the views for these values, or nullptr if they are not in the cache. The views are
  // valid until they are evicted or the cache is cleared.
  Views* find(std::span<const std::int64_t> values) {
    const auto found = entries_.find(values);
    if (found == entries_.end()) {
      ++misses_;
      return nullptr;
    }
    ++hits_;
    found->second.used = ++clock_;
    return &found->second.views;
  }

  // Adds views for values that are not in the cache. If the cache is full, calls `evicted(views)`
  // with the least recently used set and drops that set.
  template <class Evicted>
  Views* insert(std::span<const std::int64_t> values, Views views, Evicted evicted) {
    if (entries_.size() >= capacity_) {
      auto oldest = entries_.begin();
      for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (entry->second.used < oldest->second.used) oldest = entry;
      }
      evicted(oldest->second.views);
      entries_.erase(oldest);
    }
    const auto [entry, is_new] = entries_.try_emplace(std::vector(values.begin(), values.end()),
                                                      Entry{std::move(views), ++clock_});
    return &entry->second.views;
  }

  void clear() { entries_.clear(); }

  std::size_t size() const { return entries_.size(); }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t misses() const { return misses_; }

 private:
  struct Entry {
    Views views;
    std::uint64_t used;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::span<const std::int64_t> values) const {
      std::uint64_t hash = 0x9e3779b97f4a7c15;
      for (const std::int64_t value : values) {
        hash = (hash ^ static_cast<std::uint64_t>(value)) * 0xff51afd7ed558ccd;
        hash ^= hash >> 32;
      }
      return hash;
    }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::span<const std::int64_t> left, std::span<const std::int64_t> right) const {
      return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin());
    }
  };

  std::size_t capacity_;
  std::unordered_map<std::vector<std::int64_t>, Entry, Hash, Equal> entries_;
  std::uint64_t clock_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
};

}  // namespace uvm
