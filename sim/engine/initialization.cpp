#include "sim/engine/initialization.hpp"

#include <pthread.h>

#include <atomic>

namespace uvmsim {
namespace {

std::atomic<int> initialized_devices{0};
std::atomic<bool> forked{false};

[[gnu::constructor]] void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
}

}  // namespace

const std::vector<int>& initialize(std::vector<int> (*read)()) {
  static const std::vector<int>* const devices = [read] {
    auto* visible = new std::vector<int>(read());
    initialized_devices.store(static_cast<int>(visible->size()), std::memory_order_release);
    return visible;
  }();
  return *devices;
}

int initialized_device_count() {
  return initialized_devices.load(std::memory_order_acquire);
}

bool is_initialized() {
  return initialized_device_count() != 0;
}

bool is_forked_child() {
  return forked.load(std::memory_order_relaxed);
}

}  // namespace uvmsim
