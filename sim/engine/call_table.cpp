#include "sim/engine/call_table.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace uvmsim {
namespace {

constexpr int kNotSupportedError = 801;  // in CUDA's and in HIP's interfaces

// Returns whether the setting lists the entry point.
bool is_refused(std::string_view name) {
  const char* text = secure_getenv("UVMSIM_REFUSED_CALLS");
  if (text == nullptr) return false;
  std::string_view names = text;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(','), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

}  // namespace

void CallRecord::not_implemented() {
  if (!note_not_implemented()) return;
  std::fprintf(
      stderr,
      "uvmsim: %s is not implemented by the simulated device (returned \"not supported\")\n",
      name_.c_str());
}

void CallRecord::fail_in(std::uint64_t nth, int error) {
  error_.store(error, std::memory_order_relaxed);
  fail_in_.store(nth, std::memory_order_release);
}

std::optional<int> CallRecord::due_failure() {
  std::uint64_t remaining = fail_in_.load(std::memory_order_acquire);
  if (remaining == kAlways) return error_.load(std::memory_order_relaxed);
  while (remaining != 0) {
    if (fail_in_.compare_exchange_weak(remaining, remaining - 1, std::memory_order_acq_rel)) {
      if (remaining != 1) return std::nullopt;
      return error_.load(std::memory_order_relaxed);
    }
  }
  return std::nullopt;
}

CallTable& CallTable::instance() {
  static CallTable* const table =
      new CallTable;  // leaked: entry points may be called while the process exits
  return *table;
}

CallRecord& CallTable::record(std::string_view name) {
  const std::lock_guard lock(mutex_);
  auto it = records_.find(name);
  if (it == records_.end()) {
    std::string key(name);
    auto record = std::make_unique<CallRecord>(key);
    if (is_refused(name)) record->fail_in(CallRecord::kAlways, kNotSupportedError);
    it = records_.emplace(std::move(key), std::move(record)).first;
  }
  return *it->second;
}

std::uint64_t CallTable::calls(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto it = records_.find(name);
  return it == records_.end() ? 0 : it->second->calls();
}

void CallTable::visit(const std::function<void(const CallRecord&)>& visit) const {
  std::vector<const CallRecord*> records;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, record] : records_) records.push_back(record.get());
  }
  for (const CallRecord* record : records) visit(*record);
}

std::uint64_t CallTable::unimplemented_calls() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t calls = 0;
  for (const auto& [name, record] : records_) {
    if (record->is_unimplemented()) calls += record->calls();
  }
  return calls;
}

void CallTable::reset_counts() {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, record] : records_) record->reset_count();
}

}  // namespace uvmsim
