// Counts the calls of the stand-ins' entry points by exported name, records which entry points are
// not implemented, and makes calls fail on demand. An entry point looks up its record once; then
// each call costs two relaxed atomic operations. Thread-safe: the mutex is never held across other
// calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "sim/engine/export.hpp"

namespace uvmsim {

class UVMSIM_EXPORT CallRecord {
 public:
  explicit CallRecord(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // Counts a call. If a failure on demand is due, returns the error that the entry point must
  // return at once.
  std::optional<int> enter() {
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (fail_in_.load(std::memory_order_relaxed) == 0) return std::nullopt;
    return due_failure();
  }

  // Records that the stand-in does not implement this call. Returns true the first time.
  bool note_not_implemented() { return !unimplemented_.exchange(true, std::memory_order_relaxed); }
  // Like note_not_implemented(), and prints a line on stderr the first time.
  void not_implemented();
  bool is_unimplemented() const { return unimplemented_.load(std::memory_order_relaxed); }

  // Makes the `nth` call from now fail, counted from 1. kAlways: every call fails from now on; 0
  // cancels this.
  static constexpr std::uint64_t kAlways = ~std::uint64_t{0};
  void fail_in(std::uint64_t nth, int error);
  void reset_count() { calls_.store(0, std::memory_order_relaxed); }

 private:
  std::optional<int> due_failure();

  const std::string name_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> fail_in_{0};
  std::atomic<int> error_{0};
  std::atomic<bool> unimplemented_{false};
};

class UVMSIM_EXPORT CallTable {
 public:
  // Lives until the process ends.
  static CallTable& instance();

  // Returns the record of that name, created if necessary. A record is never removed.
  CallRecord& record(std::string_view name);

  std::uint64_t calls(std::string_view name) const;
  void visit(const std::function<void(const CallRecord&)>& visit) const;

  // Returns the number of calls of unimplemented entry points, since the start or the last reset.
  std::uint64_t unimplemented_calls() const;
  void reset_counts();

  // Locked around a fork, so that the child's copy is not left locked.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<CallRecord>, std::less<>> records_;
};

}  // namespace uvmsim
