#include "allocator/heap/page_block_store.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <new>

namespace uvm {
namespace {

constexpr std::size_t kReservedBytes = kBlockKeys * sizeof(PageBlock);

}  // namespace

PageBlockStore::PageBlockStore() {
  void* reserved =
      mmap(nullptr, kReservedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw std::bad_alloc();
  records_ = static_cast<PageBlock*>(reserved);
}

PageBlockStore::~PageBlockStore() {
  munmap(records_, kReservedBytes);
}

std::uint32_t PageBlockStore::make_group() {
  if (made_ == kBlockKeys) throw std::bad_alloc();
  PageBlock* first = records_ + made_;
  if (made_ % kChunk == 0 &&
      mprotect(first, kChunk * sizeof(PageBlock), PROT_READ | PROT_WRITE) != 0) {
    throw std::bad_alloc();
  }
  std::uninitialized_default_construct_n(first, kGroup);
  if (made_ == 0) first->node = {0, 0, kNoBlock};
  std::uint32_t next = 0;
  for (std::uint32_t id = made_ + kGroup; id-- > std::max(made_, 1u);) {
    at(id)->id = id;
    at(id)->chain.next = next;
    next = id;
  }
  made_ += kGroup;
  return next;
}

}  // namespace uvm
