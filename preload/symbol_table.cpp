#include "preload/symbol_table.hpp"

#include <cstdint>

namespace uvm::preload {
namespace {

UVMALLOC_CALLS_NOTHING bool are_equal(const char* one, const char* other) noexcept {
  while (*one != '\0' && *one == *other) ++one, ++other;
  return *one == *other;
}

}  // namespace

UVMALLOC_CALLS_NOTHING void* symbol_in(ElfW(Addr) base, const ElfW(Dyn) * dynamic,
                                       const char* wanted) noexcept {
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const std::uint32_t* hashes = nullptr;
  for (const ElfW(Dyn)* entry = dynamic; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) address = entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_GNU_HASH) hashes = reinterpret_cast<const std::uint32_t*>(address);
  }
  if (symbols == nullptr || names == nullptr || hashes == nullptr) return nullptr;
  // GNU_HASH holds counts, a Bloom filter, buckets, then chains. The last entry of a chain is odd.
  const std::uint32_t bucket_count = hashes[0];
  const std::uint32_t first_hashed = hashes[1];
  const std::uint32_t* buckets = hashes + 4 + hashes[2] * (sizeof(ElfW(Addr)) / 4);
  const std::uint32_t* chain = buckets + bucket_count;
  std::uint32_t hash = 5381;
  for (const char* letter = wanted; *letter != '\0'; ++letter) {
    hash = hash * 33 + static_cast<unsigned char>(*letter);
  }
  std::uint32_t index = buckets[hash % bucket_count];
  if (index < first_hashed) return nullptr;
  for (;; ++index) {
    const std::uint32_t other = chain[index - first_hashed];
    const ElfW(Sym)& symbol = symbols[index];
    if ((other | 1) == (hash | 1) && symbol.st_value != 0 &&
        are_equal(names + symbol.st_name, wanted)) {
      return reinterpret_cast<void*>(base + symbol.st_value);
    }
    if ((other & 1) != 0) return nullptr;
  }
}

}  // namespace uvm::preload
