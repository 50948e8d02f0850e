// An allocator as a resource of libcu++ (cuda::mr): memory of one facade for one device, by stream.
// Owns nothing: the allocator must outlive it. Thread-safe. Header only, for programs that have
// CCCL 3.0 (CUDA 13.0) or later on their include path; uvmalloc itself needs none of it. It models
// what that version calls a stream-ordered resource, and the memory is accessible from the host and
// from devices:
//   CCCL 3.0    cuda::mr::async_resource_with (define
//   LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE) from 3.1 on cuda::mr::resource_with
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <uvmalloc/allocator.hpp>

#if CCCL_VERSION < 3001000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error "CCCL 3.0 has cuda::mr only where LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is defined"
#endif

namespace uvm {

class CudaMemoryResource {
 public:
  // std::invalid_argument: the device does not exist.
  explicit CudaMemoryResource(CachingManagedAllocator& allocator, Facade facade = Facade::kDevice,
                              int device = 0)
      : allocator_(&allocator), facade_(facade), device_(device) {
    if (device < 0 || device >= allocator.runtime().device_count()) {
      throw std::invalid_argument("device " + std::to_string(device) + " does not exist");
    }
  }

  // For use on `stream` at once. Throws OutOfMemoryError, which is a std::bad_alloc;
  // std::invalid_argument for an alignment that is no power of two or above 2 MiB. 0 bytes:
  // nullptr.
  void* allocate(::cuda::stream_ref stream, std::size_t size_bytes,
                 std::size_t alignment_bytes = kDefaultAlignment) {
    return allocator_->allocate_aligned(facade_, device_, size_bytes, alignment_bytes,
                                        stream.get());
  }

  // The block is used again after the work that is on `stream` now. nullptr is fine; an address
  // that is not the start of a block in use is logged, and nothing is freed.
  void deallocate(::cuda::stream_ref stream, void* address, std::size_t /*size_bytes*/,
                  std::size_t /*alignment_bytes*/ = kDefaultAlignment) noexcept {
    allocator_->free_after(address, device_, stream.get());
  }

  // For use anywhere at once: device memory waits for the default stream, which may still work on
  // what the block was before.
  void* allocate_sync(std::size_t size_bytes, std::size_t alignment_bytes = kDefaultAlignment) {
    void* block =
        allocator_->allocate_aligned(facade_, device_, size_bytes, alignment_bytes, nullptr);
    if (facade_ != Facade::kDevice || block == nullptr) return block;
    const RuntimeStatus status = allocator_->runtime().synchronize_stream(device_, nullptr);
    if (status.ok()) return block;
    allocator_->free(block);
    throw std::runtime_error(status.text());
  }

  // No work on the block may be pending. Otherwise as deallocate().
  void deallocate_sync(void* address, std::size_t /*size_bytes*/,
                       std::size_t /*alignment_bytes*/ = kDefaultAlignment) noexcept {
    allocator_->free_or_log(address);
  }

#if CCCL_VERSION < 3001000
  // The same under the names of CCCL 3.0.
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

  // Equal: the same allocator, facade and device.
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
