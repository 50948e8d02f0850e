// Where the arguments of kernels may hold addresses. A driver tells the layout of a kernel's
// parameters; it is kept by the kernel's handle until code may have been unloaded, because the
// handle may then stand for another kernel. Thread-safe. Knows no vendor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "preload/interpose.hpp"
#include "preload/memory_uses.hpp"

namespace uvm::preload {

// Adds the values at multiples of 8 bytes that may be addresses. `first` need not be aligned.
void add_words(const void* first, std::size_t size_bytes, Words* words);

class KernelLayouts {
 public:
  struct Parameter {
    std::size_t offset_bytes = 0;  // from the first parameter
    std::size_t size_bytes = 0;
  };
  // Those of a kernel in their order.
  using Layout = std::vector<Parameter>;

  static KernelLayouts& instance();

  // Adds the words of the arguments, one address of an argument for each parameter. `ask` returns
  // the kernel's std::optional<Layout>, and is called without locks where it is not known yet.
  // False: nobody knows the layout.
  template <class Ask>
  bool add_arguments(const void* kernel, void* const* arguments, Words* words, Ask ask) {
    if (const auto is_known = add_known(kernel, arguments, words)) return *is_known;
    const std::uint64_t unloads = unloads_now();
    const std::optional<Layout> layout = ask();
    if (layout) add(*layout, arguments, words);
    keep(kernel, layout, unloads);
    return layout.has_value();
  }

  void forget_all();

 private:
  static void add(const Layout& layout, void* const* arguments, Words* words);
  // Nothing where the kernel is not known; false where its layout cannot be had.
  std::optional<bool> add_known(const void* kernel, void* const* arguments, Words* words) const;
  std::uint64_t unloads_now() const;
  // Unless code was unloaded since then.
  void keep(const void* kernel, const std::optional<Layout>& layout, std::uint64_t unloads);

  mutable std::shared_mutex mutex_;  // guards what follows
  std::unordered_map<const void*, std::optional<Layout>> layouts_;
  std::uint64_t unloads_ = 0;
};

// Code has been unloaded, or is about to be, by this call.
inline void forget_layouts(const char* call) noexcept {
  if (may_want_uses()) beside(call, [] { KernelLayouts::instance().forget_all(); });
}

}  // namespace uvm::preload
