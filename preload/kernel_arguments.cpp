#include "preload/kernel_arguments.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace uvm::preload {
namespace {

// Returns whether a word may be an address: it is above the first page and below 2^57.
constexpr bool may_be_address(std::uintptr_t word) {
  return word >= 4096 && word >> 57 == 0;
}

}  // namespace

void add_words(const void* first, std::size_t size_bytes, Words* words) {
  const auto* bytes = static_cast<const std::byte*>(first);
  for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= size_bytes;
       at += sizeof(std::uintptr_t)) {
    std::uintptr_t word = 0;
    std::memcpy(&word, bytes + at, sizeof word);
    if (may_be_address(word) && std::ranges::find(*words, word) == words->end())
      words->push_back(word);
  }
}

KernelLayouts& KernelLayouts::instance() {
  static auto* const layouts = new KernelLayouts;
  return *layouts;
}

// Addresses have offsets that are multiples of 8, so a parameter at another offset is not an
// address.
void KernelLayouts::add(const Layout& layout, void* const* arguments, Words* words) {
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (layout[i].offset_bytes % sizeof(std::uintptr_t) == 0)
      add_words(arguments[i], layout[i].size_bytes, words);
  }
}

std::optional<bool> KernelLayouts::add_known(const void* kernel, void* const* arguments,
                                             Words* words) const {
  const std::shared_lock lock(mutex_);
  const auto found = layouts_.find(kernel);
  if (found == layouts_.end()) return std::nullopt;
  if (found->second) add(*found->second, arguments, words);
  return found->second.has_value();
}

std::uint64_t KernelLayouts::unloads_now() const {
  const std::shared_lock lock(mutex_);
  return unloads_;
}

void KernelLayouts::keep(const void* kernel, const std::optional<Layout>& layout,
                         std::uint64_t unloads) {
  const std::unique_lock lock(mutex_);
  if (unloads == unloads_) layouts_.insert_or_assign(kernel, layout);
}

void KernelLayouts::forget_all() {
  const std::unique_lock lock(mutex_);
  layouts_.clear();
  ++unloads_;
}

}  // namespace uvm::preload
