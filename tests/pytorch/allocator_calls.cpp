// Functions of torch's device allocator that libraries call in C++ only. Python tests call them
// through ctypes. This library links to torch only.
#include <cstdio>

#include <c10/cuda/CUDACachingAllocator.h>

#define CALLABLE_FROM_PYTHON extern "C" __attribute__((visibility("default")))

namespace {

namespace native = c10::cuda::CUDACachingAllocator;

bool (*give_memory_back)() = nullptr;

class GiveMemoryBack final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override { return give_memory_back != nullptr && give_memory_back(); }
};

// Returns false with torch 2.11, which has no such observers.
template <class Allocator, class Observer>
bool attach_rejection_observer(Allocator* allocator, Observer observer) {
  if constexpr (requires { allocator->attachOomRejectionObserver(observer); }) {
    allocator->attachOomRejectionObserver(observer);
    return true;
  }
  return false;
}

}  // namespace

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("give_memory_back", GiveMemoryBack)
}  // namespace c10

// From now on, torch calls `callback` before memory runs out; it returns whether it gave any back.
CALLABLE_FROM_PYTHON void on_memory_pressure(bool (*callback)()) {
  give_memory_back = callback;
}

CALLABLE_FROM_PYTHON bool on_oom_rejection(void (*observer)(int64_t, size_t, size_t, size_t)) {
  return attach_rejection_observer(native::get(), observer);
}

CALLABLE_FROM_PYTHON void enable_peer_access(int device, int peer) {
  native::enablePeerAccess(static_cast<c10::DeviceIndex>(device),
                           static_cast<c10::DeviceIndex>(peer));
}

CALLABLE_FROM_PYTHON int copy_between(void* to, int to_device, const void* from, int from_device,
                                      size_t size_bytes, void* stream, bool have_peer_access) {
  return native::memcpyAsync(to, to_device, from, from_device, size_bytes,
                             static_cast<cudaStream_t>(stream), have_peer_access);
}

namespace {

// Returns -1 if this torch has no such function.
template <class Allocator>
int allocate_at(Allocator* allocator, size_t size_bytes, void* address, char* why,
                size_t why_bytes) {
  if constexpr (requires { allocator->allocateWithAddress(size_bytes, address); }) {
    try {
      const c10::DataPtr data = allocator->allocateWithAddress(size_bytes, address);
      return data.get() == address ? 1 : 2;
    } catch (const c10::Error& error) {
      std::snprintf(why, why_bytes, "%s", error.what_without_backtrace());
      return 0;
    }
  }
  return -1;
}

}  // namespace

// Returns 1 if there is a block at the address, 2 if it is elsewhere, 0 with the reason in `why`.
CALLABLE_FROM_PYTHON int allocate_with_address(size_t size_bytes, void* address, char* why,
                                               size_t why_bytes) {
  return allocate_at(native::get(), size_bytes, address, why, why_bytes);
}
