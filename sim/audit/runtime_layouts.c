#include "sim/audit/runtime_layouts.h"

#include <elf.h>
#include <string.h>

struct Layout {
  size_t functions;
  uint32_t span_bytes;
  uint64_t distances_hash;
};

static const struct Layout kLayouts[] = {
#define UVMSIM_LAYOUT(versions, functions, span_bytes, hash) {functions, span_bytes, hash},
#define UVMSIM_FUNCTION(name, ...)
#include "sim/audit/runtime_layouts.inc"
#undef UVMSIM_LAYOUT
#undef UVMSIM_FUNCTION
};
enum { kLayoutCount = sizeof kLayouts / sizeof kLayouts[0], kUnitBytes = 16, kNowhere = 0 };

static const struct {
  const char* name;
  uint16_t units[kLayoutCount];
} kFunctions[] = {
#define UVMSIM_LAYOUT(...)
#define UVMSIM_FUNCTION(name, ...) {#name, {__VA_ARGS__}},
#include "sim/audit/runtime_layouts.inc"
#undef UVMSIM_LAYOUT
#undef UVMSIM_FUNCTION
};
enum { kFunctionCount = sizeof kFunctions / sizeof kFunctions[0] };

/* The table of .eh_frame_hdr, in the order of its functions. Both members are relative to the
 * table's header. */
struct Row {
  int32_t begin;
  int32_t description;
};

struct Beginnings {
  uintptr_t header;
  const struct Row* rows;
  size_t count;
};

/* As the Linux Standard Base describes the header, with the encodings that GNU's linkers and LLVM's
 * write. */
struct TableHeader {
  uint8_t version;
  uint8_t frame_encoding;
  uint8_t count_encoding;
  uint8_t row_encoding;
  int32_t frame;
  uint32_t count;
};

static int read_table(const char* table, size_t bytes, struct Beginnings* out) {
  enum { kPcRelative4 = 0x1b, kUnsigned4 = 0x03, kTableRelative4 = 0x3b };
  struct TableHeader header;
  if (bytes < sizeof header || (uintptr_t)table % sizeof(int32_t) != 0) return 0;
  memcpy(&header, table, sizeof header);
  if (header.version != 1 || header.frame_encoding != kPcRelative4) return 0;
  if (header.count_encoding != kUnsigned4 || header.row_encoding != kTableRelative4) return 0;
  if (header.count > (bytes - sizeof header) / sizeof(struct Row)) return 0;
  out->rows = (const struct Row*)(table + sizeof header);
  out->count = header.count;
  return 1;
}

static int find_beginnings(const char* file, size_t file_bytes, struct Beginnings* out) {
  const Elf64_Ehdr* header = (const Elf64_Ehdr*)file;
  if (file_bytes < sizeof *header || memcmp(file, ELFMAG, SELFMAG) != 0) return 0;
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_phentsize != sizeof(Elf64_Phdr))
    return 0;
  const size_t segments_bytes = (size_t)header->e_phnum * sizeof(Elf64_Phdr);
  if (header->e_phoff > file_bytes || segments_bytes > file_bytes - header->e_phoff) return 0;
  const Elf64_Phdr* segments = (const Elf64_Phdr*)(file + header->e_phoff);
  for (int i = 0; i < header->e_phnum; ++i) {
    const Elf64_Phdr* each = &segments[i];
    if (each->p_type != PT_GNU_EH_FRAME) continue;
    if (each->p_offset > file_bytes || each->p_filesz > file_bytes - each->p_offset) return 0;
    out->header = each->p_vaddr;
    return read_table(file + each->p_offset, each->p_filesz, out);
  }
  return 0;
}

/* FNV-1a, with 64-bit words instead of bytes. runtime_layouts.py computes the same. */
static uint64_t hash_distances(const struct Row* rows, size_t count) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 1; i < count; ++i) {
    const uint32_t distance = (uint32_t)rows[i].begin - (uint32_t)rows[i - 1].begin;
    hash = (hash ^ distance) * 0x100000001b3;
  }
  return hash;
}

/* Returns the first function of the layout, or NULL. */
static const struct Row* find_layout(const struct Beginnings* beginnings, const struct Layout* it) {
  for (size_t i = 0; i + it->functions <= beginnings->count; ++i) {
    const struct Row* rows = &beginnings->rows[i];
    const uint32_t span = (uint32_t)rows[it->functions - 1].begin - (uint32_t)rows[0].begin;
    if (span == it->span_bytes && hash_distances(rows, it->functions) == it->distances_hash)
      return rows;
  }
  return NULL;
}

size_t uvmsim_find_functions_by_layout(const char* file, size_t file_bytes,
                                       UvmsimFoundFunction* found, const void* context) {
  struct Beginnings beginnings;
  if (!find_beginnings(file, file_bytes, &beginnings)) return 0;
  for (int layout = 0; layout < kLayoutCount; ++layout) {
    const struct Row* first = find_layout(&beginnings, &kLayouts[layout]);
    if (first == NULL) continue;
    size_t count = 0;
    for (int i = 0; i < kFunctionCount; ++i) {
      const size_t unit = kFunctions[i].units[layout];
      if (unit == kNowhere) continue;
      const uintptr_t address = beginnings.header + (uintptr_t)(intptr_t)first->begin;
      found(kFunctions[i].name, address + unit * kUnitBytes, context);
      ++count;
    }
    return count;
  }
  return 0;
}
