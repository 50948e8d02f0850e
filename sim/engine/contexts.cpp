#include "sim/engine/contexts.hpp"

#include <array>
#include <atomic>
#include <cstdint>

#include "sim/engine/machine.hpp"
#include "sim/engine/thread_context.hpp"

namespace uvmsim {
namespace {

constexpr int kMostOfDevice = 64;  // contexts of each kind
constexpr int kFirstGreen = kMostOfDevice * kMostDevices;

// True while the context exists. The first entries stand for primary contexts, and are not used.
std::array<std::atomic<bool>, std::size_t{2} * kFirstGreen> exist;

std::atomic<bool>& existence_of(int number) {
  return exist[static_cast<std::size_t>(number)];
}

}  // namespace

int Contexts::open(int device, Kind kind) {
  const int first = kind == Kind::kGreen ? kFirstGreen : kMostDevices;
  const int end = kind == Kind::kGreen ? 2 * kFirstGreen : kFirstGreen;
  for (int number = first + device; number < end; number += kMostDevices) {
    if (!existence_of(number).exchange(true)) return number;
  }
  return kNoContext;
}

void Contexts::close(int number) {
  existence_of(number) = false;
  Machine::instance().destroy_context(number);
}

bool Contexts::exists(int number) {
  return existence_of(number);
}

bool Contexts::is_green(int number) {
  return number >= kFirstGreen;
}

void* Contexts::handle_of(int number) {
  return &existence_of(number);
}

int Contexts::number_of(const void* handle) {
  const auto offset =
      reinterpret_cast<std::uintptr_t>(handle) - reinterpret_cast<std::uintptr_t>(exist.data());
  const std::size_t number = offset / sizeof exist[0];
  return number < exist.size() && offset % sizeof exist[0] == 0 ? static_cast<int>(number)
                                                                : kNoContext;
}

}  // namespace uvmsim
