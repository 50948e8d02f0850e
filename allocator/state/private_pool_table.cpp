#include "allocator/state/private_pool_table.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "runtime/capture_guard.hpp"

namespace uvm {

PrivatePoolTable::~PrivatePoolTable() {
  while (!scopes_.empty()) close(scopes_.end() - 1);
}

PrivatePoolTable::PrivatePool& PrivatePoolTable::make(const Key& key) {
  if (key.second == 0) {
    throw std::invalid_argument("a private pool's id is 0; accepted: any other number");
  }
  if (key.first < 0 || key.first >= devices_) {
    throw std::invalid_argument(
        fmt::format("device {} does not exist; there are {}", key.first, devices_));
  }
  return pools_[key];
}

std::uint64_t PrivatePoolTable::begin(int device, std::uint64_t id, StreamFilter routed,
                                      bool capturing) {
  Scope scope{device,    id,   opened_ + 1, std::make_shared<StreamFilter>(std::move(routed)),
              capturing, false};
  scopes_.reserve(scopes_.size() + 1);
  PrivatePool& pool = make({device, id});
  ++pool.users;
  pool.captured |= capturing;
  scopes_.push_back(std::move(scope));
  ++open_;
  return ++opened_;
}

void PrivatePoolTable::retain(int device, std::uint64_t id) {
  ++make({device, id}).users;
}

void PrivatePoolTable::close(std::vector<Scope>::iterator scope) {
  --open_;
  if (scope->capturing) CaptureGuard::of_process().end();
  scopes_.erase(scope);
}

bool PrivatePoolTable::end(int device, std::uint64_t id, std::uint64_t number) {
  const auto ended = std::find_if(scopes_.rbegin(), scopes_.rend(), [&](const Scope& scope) {
    return scope.device == device && scope.pool == id && (number == 0 || scope.number == number);
  });
  if (ended == scopes_.rend()) return false;
  close(ended.base() - 1);
  return true;
}

bool PrivatePoolTable::release(int device, std::uint64_t id) {
  const auto found = pools_.find({device, id});
  if (found == pools_.end()) return false;
  if (--found->second.users != 0) return true;
  pools_.erase(found);
  // The release by the last user closes open scopes, for example after a capture that failed.
  while (end(device, id, 0)) {
  }
  return true;
}

bool PrivatePoolTable::give_whole_pages(int device, std::uint64_t id) {
  const auto found = pools_.find({device, id});
  if (found == pools_.end()) return false;
  found->second.whole_pages = true;
  return true;
}

std::size_t PrivatePoolTable::users(int device, std::uint64_t id) const {
  const auto found = pools_.find({device, id});
  return found != pools_.end() ? found->second.users : 0;
}

bool PrivatePoolTable::is_captured(int device, std::uint64_t id) const {
  const auto found = pools_.find({device, id});
  return found != pools_.end() && found->second.captured;
}

std::vector<PrivatePoolTable::Scope> PrivatePoolTable::open_scopes(int device) const {
  std::vector<Scope> scopes;
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (scope->device != device) continue;
    scopes.push_back(*scope);
    scopes.back().whole_pages = pools_.at({device, scope->pool}).whole_pages;
  }
  return scopes;
}

}  // namespace uvm
