// What std::pmr, cuda::mr and C need on top of an allocator: requests that name an alignment, where
// its blocks have a fixed one per size, and frees that nobody else would hear of. Owns nothing;
// thread-safe as the allocator is.
#pragma once

#include <cstddef>

#include <uvmalloc/allocator/caching_managed_allocator.hpp>

namespace uvm {

// CachingManagedAllocator::allocate() with `alignment_bytes`: 0 for the allocator's own, else a
// power of two up to 2 MiB; std::invalid_argument for anything else. Above 512 a small host or
// pinned block takes a 2 MiB page of its own; std::runtime_error in a forked child, where malloc
// serves.
void* allocate_aligned(CachingManagedAllocator& allocator, Facade facade, int device,
                       std::size_t size_bytes, std::size_t alignment_bytes, StreamHandle stream);

// free_or_log() of a block that is not to be used again before the work that is on the stream now
// is over. Where there is no memory to note that, the stream is waited for.
void free_after(CachingManagedAllocator& allocator, void* address, int device,
                StreamHandle stream) noexcept;

// CachingManagedAllocator::free() for a resource, whose deallocate() has no result: an address that
// is not the allocator's is logged too.
void free_or_log(CachingManagedAllocator& allocator, void* address) noexcept;

}  // namespace uvm
