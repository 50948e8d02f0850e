// RMM's adaptors with a resource of uvmalloc as their upstream: a limit, statistics, a pool, and
// buffers of each. Ends with exit code 1 at the first check that fails.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <uvmalloc/configuration.hpp>
#include <uvmalloc/cuda_memory_resource.hpp>
#include <uvmalloc/registry.hpp>
#include <uvmalloc/statistics.hpp>

namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

// Copies the bytes to the device through the buffer and back.
void check_round_trip(rmm::device_buffer& buffer, cuda::stream_ref stream) {
  std::vector<unsigned char> sent(buffer.size());
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 7);
  std::vector<unsigned char> received(sent.size());
  const cudaStream_t handle = stream.get();
  cudaMemcpyAsync(buffer.data(), sent.data(), sent.size(), cudaMemcpyDefault, handle);
  cudaMemcpyAsync(received.data(), buffer.data(), sent.size(), cudaMemcpyDefault, handle);
  check(cudaStreamSynchronize(handle) == cudaSuccess, "the stream ends");
  check(sent == received, "the bytes come back");
}

void run(uvm::CachingManagedAllocator& allocator, cuda::stream_ref stream) {
  uvm::CudaMemoryResource resource(allocator);
  {
    rmm::device_buffer direct(kBytes, stream, resource);
    const auto block = allocator.find(direct.data());
    check(block && block->live, "a buffer's memory is a block of uvmalloc");
    check_round_trip(direct, stream);
    rmm::device_buffer copy(direct, stream, resource);
    check_round_trip(copy, stream);
  }
  rmm::mr::limiting_resource_adaptor limited(resource, 8 * kBytes);
  rmm::mr::statistics_resource_adaptor counted(limited);
  {
    rmm::device_buffer first(3 * kBytes, stream, counted);
    check(counted.get_bytes_counter().value == static_cast<std::int64_t>(3 * kBytes),
          "RMM counts the bytes");
    check(limited.get_allocated_bytes() == 3 * kBytes, "RMM's limit counts them too");
    bool is_refused = false;
    try {
      rmm::device_buffer second(6 * kBytes, stream, counted);
    } catch (const rmm::out_of_memory&) {
      is_refused = true;
    }
    check(is_refused, "RMM refuses what exceeds its limit");
  }
  {
    rmm::mr::pool_memory_resource pool(counted, 4 * kBytes);
    rmm::device_buffer pooled(kBytes, stream, pool);
    check(counted.get_bytes_counter().value == static_cast<std::int64_t>(4 * kBytes),
          "a pool takes one block");
    check_round_trip(pooled, stream);
  }
  check(counted.get_bytes_counter().value == 0, "all memory of the adaptors is free");
}

}  // namespace

int main() {
  uvm::RuntimeChoice choice = uvm::open_runtime("cuda");
  if (choice.runtime == nullptr) return std::fprintf(stderr, "%s\n", choice.reason.c_str()), 1;
  uvm::CachingManagedAllocator allocator(std::move(choice.runtime), uvm::Configuration{});
  {
    const rmm::cuda_stream stream;
    run(allocator, stream);
  }
  check(allocator.statistics().live_bytes.current == 0, "no block of uvmalloc is live");
  std::puts("right");
  return 0;
}
