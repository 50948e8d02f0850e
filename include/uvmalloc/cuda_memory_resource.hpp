// Makes an allocator usable as a libcu++ resource (cuda::mr): memory of one memory kind for one
// device, allocated for a stream. The host and devices can access it. The allocator must outlive
// the resource. Thread-safe. Header only, for programs with CCCL 3.0 (CUDA 13.0) or later on their
// include path; uvmalloc itself does not need CCCL. The resource models
//   CCCL 3.0   cuda::mr::async_resource_with, if the program defines
//              LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
//   from 3.1   cuda::mr::resource_with
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/inspection.hpp>
#include <uvmalloc/memory_resource.hpp>

#if CCCL_VERSION < 3001000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error "CCCL 3.0 has cuda::mr only where LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is defined"
#endif

namespace uvm {

class CudaMemoryResource {
 public:
  // Throws std::invalid_argument if the device does not exist.
  explicit CudaMemoryResource(CachingManagedAllocator& allocator, Facade facade = Facade::kDevice,
                              int device = 0)
      : allocator_(&allocator), facade_(facade), device_(device) {
    if (device < 0 || device >= allocator.inspection().runtime().device_count()) {
      throw std::invalid_argument("device " + std::to_string(device) + " does not exist");
    }
  }

  // Returns a block of `size_bytes` bytes that `stream` may use at once, or nullptr for 0 bytes.
  // Throws OutOfMemoryError, which is a std::bad_alloc. Throws std::invalid_argument if the
  // alignment is not a power of two or is above 2 MiB.
  void* allocate(::cuda::stream_ref stream, std::size_t size_bytes,
                 std::size_t alignment_bytes = kDefaultAlignment) {
    return allocator_->allocate_aligned(facade_, device_, size_bytes, alignment_bytes,
                                        stream.get());
  }

  // Frees the block; ignores nullptr. The memory is not used again before current work on `stream`
  // ends. If `address` is not the start of a live block, nothing is freed and one line is logged.
  void deallocate(::cuda::stream_ref stream, void* address, std::size_t /*size_bytes*/,
                  std::size_t /*alignment_bytes*/ = kDefaultAlignment) noexcept {
    free_after(*allocator_, address, device_, stream.get());
  }

  // Same as allocate(), for immediate use on any stream. For device memory, waits for the default
  // stream, which may still work on the previous block at the same address. Throws
  // std::runtime_error if that wait fails.
  void* allocate_sync(std::size_t size_bytes, std::size_t alignment_bytes = kDefaultAlignment) {
    void* block =
        allocator_->allocate_aligned(facade_, device_, size_bytes, alignment_bytes, nullptr);
    if (facade_ != Facade::kDevice || block == nullptr) return block;
    const RuntimeStatus status =
        allocator_->inspection().runtime().synchronize_stream(device_, nullptr);
    if (status.ok()) return block;
    allocator_->free(block);
    throw std::runtime_error(status.text());
  }

  // Same as deallocate(), for a block without pending work.
  void deallocate_sync(void* address, std::size_t /*size_bytes*/,
                       std::size_t /*alignment_bytes*/ = kDefaultAlignment) noexcept {
    free_or_log(*allocator_, address);
  }

#if CCCL_VERSION < 3001000
  // The same functions under their names in CCCL 3.0.
  void* allocate(std::size_t size_bytes, std::size_t alignment_bytes = kDefaultAlignment) {
    return allocate_sync(size_bytes, alignment_bytes);
  }
  void deallocate(void* address, std::size_t size_bytes,
                  std::size_t alignment_bytes = kDefaultAlignment) noexcept {
    deallocate_sync(address, size_bytes, alignment_bytes);
  }
  void* allocate_async(std::size_t size_bytes, std::size_t alignment_bytes,
                       ::cuda::stream_ref stream) {
    return allocate(stream, size_bytes, alignment_bytes);
  }
  void* allocate_async(std::size_t size_bytes, ::cuda::stream_ref stream) {
    return allocate(stream, size_bytes);
  }
  void deallocate_async(void* address, std::size_t size_bytes, std::size_t alignment_bytes,
                        ::cuda::stream_ref stream) noexcept {
    deallocate(stream, address, size_bytes, alignment_bytes);
  }
  void deallocate_async(void* address, std::size_t size_bytes, ::cuda::stream_ref stream) noexcept {
    deallocate(stream, address, size_bytes);
  }
#endif

  // Resources are equal if their allocator, memory kind and device are equal.
  friend bool operator==(const CudaMemoryResource&, const CudaMemoryResource&) = default;

  friend constexpr void get_property(const CudaMemoryResource&,
                                     ::cuda::mr::device_accessible) noexcept {}
  friend constexpr void get_property(const CudaMemoryResource&,
                                     ::cuda::mr::host_accessible) noexcept {}

 private:
  static constexpr std::size_t kDefaultAlignment = ::cuda::mr::default_cuda_malloc_alignment;

  CachingManagedAllocator* allocator_;
  Facade facade_;
  int device_;
};

}  // namespace uvm
