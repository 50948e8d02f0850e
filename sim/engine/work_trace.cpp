#include "sim/engine/work_trace.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>

#include "sim/engine/thread_context.hpp"

namespace uvmsim {
namespace {

// Values of the argument `type` of uvmalloc_trace_kernel that are not types of operations.
constexpr int kBytesToDevice = 252;
constexpr int kBytesToHost = 253;
constexpr int kBytesInside = 254;
constexpr int kNanoseconds = 255;

// uvmalloc_trace_range has the layout of uvmsim_access.
using TraceKernel = void (*)(int device, const void* stream, std::uint64_t amount, int type,
                             const uvmsim_access* ranges, std::size_t count);
using TraceOrder = void (*)(int device, const void* stream, const void* signal, int order);

std::atomic<TraceKernel> trace_kernel{nullptr};
std::atomic<TraceOrder> trace_order{nullptr};

// Returns the stream's handle as the allocator numbers streams: 2 for a thread's own default
// stream.
StreamHandle named(StreamHandle stream) {
  const bool is_own = stream == nullptr && ThreadContext::current().has_own_default_stream;
  return is_own ? reinterpret_cast<StreamHandle>(2) : stream;
}

void* find_symbol(const char* name) {
  if (void* symbol = dlsym(RTLD_DEFAULT, name)) return symbol;
  void* library = dlopen("libuvmalloc_preload.so", RTLD_LAZY | RTLD_NOLOAD);
  return library != nullptr ? dlsym(library, name) : nullptr;
}

}  // namespace

void WorkTrace::find_library() {
  if (trace_kernel.load(std::memory_order_relaxed) != nullptr) return;
  trace_order.store(reinterpret_cast<TraceOrder>(find_symbol("uvmalloc_trace_order")),
                    std::memory_order_relaxed);
  trace_kernel.store(reinterpret_cast<TraceKernel>(find_symbol("uvmalloc_trace_kernel")),
                     std::memory_order_release);
}

void WorkTrace::kernel(int device, StreamHandle stream, const KernelWork& work,
                       std::span<const uvmsim_access> accesses) {
  const TraceKernel trace = trace_kernel.load(std::memory_order_acquire);
  if (trace == nullptr) return;
  const std::uint64_t amount = work.is_timed ? work.duration_ns : work.operations;
  const int type = work.is_timed ? kNanoseconds : static_cast<int>(work.type);
  trace(device, named(stream), amount, type, accesses.data(), accesses.size());
}

void WorkTrace::copy(int device, StreamHandle stream, const TracedCopy& copy) {
  const TraceKernel trace = trace_kernel.load(std::memory_order_acquire);
  if (trace == nullptr) return;
  const std::array ends = {copy.from, copy.to};
  const int type = copy.way == CopyWay::kInside   ? kBytesInside
                   : copy.way == CopyWay::kToHost ? kBytesToHost
                                                  : kBytesToDevice;
  trace(device, named(stream), copy.size_bytes, type, ends.data(), ends.size());
}

void WorkTrace::fill(int device, StreamHandle stream, const Fill& fill) {
  const TraceKernel trace = trace_kernel.load(std::memory_order_acquire);
  if (trace == nullptr) return;
  const uvmsim_access range{fill.to, fill.count * fill.value_bytes, UVMSIM_WRITE};
  trace(device, named(stream), range.size_bytes, kBytesInside, &range, 1);
}

void WorkTrace::order(int device, StreamHandle stream, EventHandle event, TracedOrder order) {
  const TraceOrder trace = trace_order.load(std::memory_order_acquire);
  if (trace != nullptr) trace(device, named(stream), event, static_cast<int>(order));
}

}  // namespace uvmsim
