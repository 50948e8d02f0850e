#include "tests/support/failing_memory.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "tests/support/fake_runtime.hpp"

namespace uvm::testing {

thread_local long failing = 0;
thread_local long failing_in_a_row = 1;
bool (*counts_call)() = nullptr;

namespace {

std::atomic<bool> any_failed = false;
std::atomic<std::int64_t> live = 0;

bool fails_now() {
  if (failing == 0 || inside_fake_machine != 0) return false;
  if (counts_call != nullptr && !counts_call()) return false;
  if (--failing != 0) return false;
  any_failed = true;
  if (failing_in_a_row > 1) {
    --failing_in_a_row;
    failing = 1;
  }
  return true;
}

void* allocate(std::size_t size_bytes, std::size_t alignment_bytes) noexcept {
  void* memory = nullptr;
  if (fails_now() || posix_memalign(&memory, alignment_bytes, size_bytes) != 0) return nullptr;
  ++live;
  return memory;
}

void* allocate_or_throw(std::size_t size_bytes, std::size_t alignment_bytes) {
  void* memory = allocate(size_bytes, alignment_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void free_counted(void* memory) noexcept {
  if (memory == nullptr) return;
  --live;
  std::free(memory);
}

}  // namespace

bool has_any_failed() {
  return any_failed;
}
void forget_failures() {
  any_failed = false;
}
std::int64_t live_allocations() {
  return live;
}

}  // namespace uvm::testing

void* operator new(std::size_t size_bytes) {
  return uvm::testing::allocate_or_throw(size_bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t size_bytes, std::align_val_t alignment) {
  return uvm::testing::allocate_or_throw(size_bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size_bytes, const std::nothrow_t&) noexcept {
  return uvm::testing::allocate(size_bytes, alignof(std::max_align_t));
}
void operator delete(void* memory) noexcept {
  uvm::testing::free_counted(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  uvm::testing::free_counted(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  uvm::testing::free_counted(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  uvm::testing::free_counted(memory);
}
