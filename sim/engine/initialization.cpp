#include <uvmalloc/sim/engine/initialization.hpp>

#include <atomic>

namespace uvmsim {
namespace {

std::atomic<bool> initialized{false};

}  // namespace

const std::vector<int>& initialize(std::vector<int> (*read)()) {
  static const std::vector<int>* const devices = [read] {
    auto* visible = new std::vector<int>(read());
    initialized.store(!visible->empty(), std::memory_order_release);
    return visible;
  }();
  return *devices;
}

bool is_initialized() {
  return initialized.load(std::memory_order_acquire);
}

}  // namespace uvmsim
