// Finds possible addresses in kernel arguments. The driver reports the layout of a kernel's
// parameters. KernelLayouts caches layouts by the kernel's handle until code is unloaded, because
// the handle may then refer to another kernel. Thread-safe; independent of the vendor.
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

// Reads a value at each multiple of 8 bytes from `first`. Adds to `words` the values that may be
// addresses and are not in `words` yet. `first` need not be aligned.
void add_words(const void* first, std::size_t size_bytes, Words* words);

class KernelLayouts {
 public:
  struct Parameter {
    std::size_t offset_bytes = 0;  // from the first parameter
    std::size_t size_bytes = 0;
  };
  // The parameters of a kernel, in order.
  using Layout = std::vector<Parameter>;

  static KernelLayouts& instance();

  // Adds the words of the arguments; `arguments` has one pointer for each parameter. If the layout
  // is not cached, gets it from ask() without locks. Returns false if the layout is unknown.
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
  // Returns nullopt if the kernel is not cached, or false if it is cached without a known layout.
  std::optional<bool> add_known(const void* kernel, void* const* arguments, Words* words) const;
  std::uint64_t unloads_now() const;
  // Caches the layout, unless code was unloaded after unloads_now() returned `unloads`.
  void keep(const void* kernel, const std::optional<Layout>& layout, std::uint64_t unloads);

  mutable std::shared_mutex mutex_;  // guards the members below
  std::unordered_map<const void*, std::optional<Layout>> layouts_;
  std::uint64_t unloads_ = 0;
};

// Called before `call` unloads code, because handles may refer to other kernels afterwards.
inline void forget_layouts(const char* call) noexcept {
  if (may_want_uses()) beside(call, [] { KernelLayouts::instance().forget_all(); });
}

}  // namespace uvm::preload
