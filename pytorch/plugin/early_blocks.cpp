#include "pytorch/plugin/early_blocks.hpp"

#include <iterator>

namespace uvm::torch_plugin {

EarlyBlocks& EarlyBlocks::instance() {
  static auto* blocks = new EarlyBlocks;  // never destroyed: tensors are freed until exit
  return *blocks;
}

// Call it with the lock held. Returns the block around `pointer`, or end() if there is none.
std::map<const char*, EarlyBlocks::EarlyBlock>::iterator EarlyBlocks::find(const void* pointer) {
  const char* wanted = static_cast<const char*>(pointer);
  auto next = blocks_.upper_bound(wanted);
  if (next == blocks_.begin()) return blocks_.end();
  auto found = std::prev(next);
  return wanted < found->first + found->second.size_bytes ? found : blocks_.end();
}

void EarlyBlocks::add(void* address, std::size_t size_bytes) {
  std::lock_guard lock(mutex_);
  blocks_[static_cast<const char*>(address)] = {size_bytes, false};
  count_ = blocks_.size();
}

void EarlyBlocks::remove(void* address) {
  std::lock_guard lock(mutex_);
  blocks_.erase(static_cast<const char*>(address));
  count_ = blocks_.size();
}

bool EarlyBlocks::contains(const void* pointer) {
  if (empty()) return false;
  std::lock_guard lock(mutex_);
  return find(pointer) != blocks_.end();
}

bool EarlyBlocks::mark_exported(const void* pointer) {
  if (empty()) return false;
  std::lock_guard lock(mutex_);
  auto found = find(pointer);
  if (found == blocks_.end()) return false;
  found->second.exported = true;
  return true;
}

std::size_t EarlyBlocks::convertible_bytes(const void* address) {
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(static_cast<const char*>(address));
  return found != blocks_.end() && !found->second.exported ? found->second.size_bytes : 0;
}

bool EarlyBlocks::is_exported(const void* address) {
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(static_cast<const char*>(address));
  return found != blocks_.end() && found->second.exported;
}

}  // namespace uvm::torch_plugin
