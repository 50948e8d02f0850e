// Makes records with stable addresses. make() reuses dropped records, last dropped first. Guarded
// by the lock of the pool's owner.
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
      // Reserve now, so that drop() allocates nothing.
      if (dropped_.capacity() <= all_.size()) dropped_.reserve(2 * all_.size() + 1);
      return &all_.emplace_back(like);
    }
    Record* record = dropped_.back();
    dropped_.pop_back();
    *record = like;
    return record;
  }
  // The record's contents stay readable until make() reuses the record.
  void drop(Record* record) { dropped_.push_back(record); }

  std::size_t bytes() const { return all_.size() * sizeof(Record); }

 private:
  std::deque<Record> all_;
  std::vector<Record*> dropped_;
};

}  // namespace uvm
