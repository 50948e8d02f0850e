#include "allocator/spans/host_backing.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "storage/pages.hpp"

namespace uvm {
namespace {

// Advises 2 MiB pages, because a first touch then costs one fault instead of 512, and a fork copies
// one entry of the page table. If huge pages are larger (kernels with base pages of 64 KiB),
// advises against them: a first touch would take more memory than the allocator counts.
int huge_page_advice() {
  std::size_t bytes = 0;
  std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> bytes;
  return bytes <= kPageBytes ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
}

// Kernels that have no such pages refuse.
void advise_huge_pages(void* address, std::size_t size_bytes) noexcept {
  static const int kAdvice = huge_page_advice();
  madvise(address, size_bytes, kAdvice);
}

}  // namespace

const char* to_string(HostBacking backing) {
  switch (backing) {
    case HostBacking::kAuto:
      return "auto";
    case HostBacking::kManaged:
      return "managed";
    case HostBacking::kOrdinary:
      return "ordinary";
  }
  return "unknown";
}

bool reach_ordinary_memory(const std::vector<DeviceDescription>& devices) {
  return std::all_of(devices.begin(), devices.end(),
                     [](const auto& device) { return device.capabilities.pageable_memory_access; });
}

HostBacking host_backing_of(const std::vector<DeviceDescription>& devices, HostBacking wanted) {
  const bool may_be_ordinary = reach_ordinary_memory(devices);
  const bool is_best = std::all_of(devices.begin(), devices.end(), [](const auto& device) {
    return device.capabilities.host_page_tables;
  });
  const bool is_wanted =
      wanted == HostBacking::kOrdinary || (wanted == HostBacking::kAuto && is_best);
  return may_be_ordinary && is_wanted ? HostBacking::kOrdinary : HostBacking::kManaged;
}

void* map_ordinary(std::size_t size_bytes) {
  const std::size_t mapped_bytes = size_bytes + kPageBytes;
  void* mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  char* const base = reinterpret_cast<char*>(round_up(address_of(mapped), kPageBytes));
  char* const end = begin + mapped_bytes;
  if (base != begin) munmap(begin, static_cast<std::size_t>(base - begin));
  if (base + size_bytes != end) {
    munmap(base + size_bytes, static_cast<std::size_t>(end - (base + size_bytes)));
  }
  advise_huge_pages(base, size_bytes);
  return base;
}

bool renew_ordinary(void* address, std::size_t size_bytes) noexcept {
  if (mmap(address, size_bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
    return false;
  advise_huge_pages(address, size_bytes);
  return true;
}

void unmap_ordinary(void* address, std::size_t size_bytes) noexcept {
  munmap(address, size_bytes);
}

RuntimeStatus drop_ordinary(void* address, std::size_t size_bytes) noexcept {
  if (madvise(address, size_bytes, MADV_DONTNEED) == 0) return {};
  return {RuntimeError::kOther, errno, "refused", "madvise"};
}

}  // namespace uvm
