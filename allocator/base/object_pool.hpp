// Makes records with stable addresses. A dropped record is made again, the last dropped first.
// Guarded by its owner's lock.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

namespace uvm {

template <class Record>
class ObjectPool {
 public:
  Record* make(const Record& like) {
    if (dropped_.empty()) {
      // Reserved now, so that drop() allocates nothing.
      if (dropped_.capacity() <= all_.size()) dropped_.reserve(2 * all_.size() + 1);
      return &all_.emplace_back(like);
    }
    Record* record = dropped_.back();
    dropped_.pop_back();
    *record = like;
    return record;
  }
  // The record's contents stay readable until the record is made again.
  void drop(Record* record) { dropped_.push_back(record); }

  std::size_t bytes() const { return all_.size() * sizeof(Record); }

 private:
  std::deque<Record> all_;
  std::vector<Record*> dropped_;
};

}  // namespace uvm
