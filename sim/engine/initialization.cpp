#include <uvmalloc/sim/engine/initialization.hpp>

#include <atomic>

namespace uvmsim {
namespace {

std::atomic<bool> initialized{false};

}  // namespace

void set_initialized() {
  initialized.store(true, std::memory_order_relaxed);
}

bool is_initialized() {
  return initialized.load(std::memory_order_relaxed);
}

}  // namespace uvmsim
