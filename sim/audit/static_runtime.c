#define _GNU_SOURCE
#include "sim/audit/static_runtime.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/audit/runtime_layouts.h"

#if defined(__x86_64__)

/* The names that libcudart.so.13 exports, in the order of strcmp. The build writes the list and its
 * length. */
static const char* const kNames[] = {
#define UVMSIM_RUNTIME_NAME(name) #name,
#include "runtime_names.inc"
#undef UVMSIM_RUNTIME_NAME
};
enum { kNameCount = sizeof kNames / sizeof kNames[0] };
_Static_assert(kNameCount == UVMSIM_RUNTIME_NAMES, "the assembler makes an entry for each name");

/* Internal functions of every static runtime have this prefix. */
static const char kMark[] = "libcudart_static_";
/* A function of CUDA 12, which CUDA 13 removed. */
static const char kOlderMark[] = "cudaGetDeviceProperties_v2";

/* ---- calls of replaced functions
 *
 * Each name has an entry, which jumps to the address in the name's slot. At first this is the
 * name's second entry. It finds the function and writes its address into the slot. So functions are
 * found at their first call, outside the linker's lock. */
enum { kEntryBytes = 16, kOpcodeBytes = 6 };
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN void* uvmsim_runtime_slots[kNameCount];
HIDDEN void* uvmsim_find_runtime_function(unsigned long index);
extern HIDDEN const char uvmsim_runtime_entries[];
extern HIDDEN const char uvmsim_runtime_first_entries[];

__asm__(
    ".pushsection .text\n"
    ".p2align 4\n"
    "uvmsim_runtime_entries:\n"
    ".set uvmsim_index, 0\n"
    ".rept " TEXT(UVMSIM_RUNTIME_NAMES) "\n"
    "  jmp *uvmsim_runtime_slots + 8 * uvmsim_index(%rip)\n"
    "  .p2align 4\n"
    "  .set uvmsim_index, uvmsim_index + 1\n"
    ".endr\n"
    "uvmsim_runtime_first_entries:\n"
    ".set uvmsim_index, 0\n"
    ".rept " TEXT(UVMSIM_RUNTIME_NAMES) "\n"
    "  pushq $uvmsim_index\n"
    "  jmp uvmsim_first_call\n"
    "  .p2align 4\n"
    "  .set uvmsim_index, uvmsim_index + 1\n"
    ".endr\n"
    /* Keeps the registers that can hold arguments. The stack is aligned to 16 bytes here. */
    "uvmsim_first_call:\n"
    "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n"
    "  sub $128, %rsp\n"
    "  movups %xmm0, (%rsp)\n   movups %xmm1, 16(%rsp)\n  movups %xmm2, 32(%rsp)\n"
    "  movups %xmm3, 48(%rsp)\n movups %xmm4, 64(%rsp)\n  movups %xmm5, 80(%rsp)\n"
    "  movups %xmm6, 96(%rsp)\n movups %xmm7, 112(%rsp)\n"
    "  mov 176(%rsp), %rdi\n"
    "  call uvmsim_find_runtime_function\n"
    "  movups (%rsp), %xmm0\n   movups 16(%rsp), %xmm1\n  movups 32(%rsp), %xmm2\n"
    "  movups 48(%rsp), %xmm3\n movups 64(%rsp), %xmm4\n  movups 80(%rsp), %xmm5\n"
    "  movups 96(%rsp), %xmm6\n movups 112(%rsp), %xmm7\n"
    "  add $128, %rsp\n"
    "  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"
    "  add $8, %rsp\n"
    "  jmp *%rax\n"
    ".popsection\n");

static const char* standing_in; /* the path of the simulator's libcudart.so.13 */

static int refuse(void) {
  enum { kSharedObjectInitFailed = 303 }; /* cudaErrorSharedObjectInitFailed */
  return kSharedObjectInitFailed;
}

/* The function that a program with the shared runtime would call. Such a program has loaded the
 * runtime before its first call. */
static void* find_function(const char* name) {
  void* runtime = dlmopen(LM_ID_BASE, standing_in, RTLD_LAZY);
  void* program = dlmopen(LM_ID_BASE, NULL, RTLD_LAZY);
  void* found = program == NULL ? NULL : dlsym(program, name);
  if (found == NULL && runtime != NULL) found = dlsym(runtime, name);
  return found;
}

void* uvmsim_find_runtime_function(unsigned long index) {
  void* found = find_function(kNames[index]);
  if (found == NULL) {
    fprintf(stderr, "uvmsim: %s has no %s\n", standing_in, kNames[index]);
    found = (void*)refuse;
  }
  __atomic_store_n(&uvmsim_runtime_slots[index], found, __ATOMIC_RELEASE);
  return found;
}

static void fill_slots(void) {
  if (uvmsim_runtime_slots[0] != NULL) return;
  for (int i = 0; i < kNameCount; ++i)
    uvmsim_runtime_slots[i] = (void*)(uvmsim_runtime_first_entries + i * kEntryBytes);
}

static int compare_names(const void* name, const void* element) {
  return strcmp(name, *(const char* const*)element);
}

/* Writes "jump to the address in the next eight bytes; address" at the function's first byte. The
 * linker has not run the file's code yet. Functions of the runtime begin at multiples of 16 bytes,
 * so there is room in the shortest. */
static void replace_function(char* function, const char* entry) {
  enum { kAlignment = 16 };
  char jump[kOpcodeBytes + sizeof entry] = {(char)0xff, 0x25, 0, 0, 0, 0};
  memcpy(jump + kOpcodeBytes, &entry, sizeof entry);
  if ((uintptr_t)function % kAlignment != 0) return;
  const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
  char* page = (char*)((uintptr_t)function & ~(page_bytes - 1));
  if (mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return;
  memcpy(function, jump, sizeof jump);
  mprotect(page, page_bytes, PROT_READ | PROT_EXEC);
}

/* ---- the symbol table of a file */

struct Symbols {
  const Elf64_Sym* first;
  size_t count;
  const char* names; /* ends with a null byte */
  size_t names_bytes;
};

/* Returns 0 if the file has no well-formed symbol table. */
static int find_symbols(const char* file, size_t file_bytes, struct Symbols* out) {
  const Elf64_Ehdr* header = (const Elf64_Ehdr*)file;
  if (file_bytes < sizeof *header || memcmp(file, ELFMAG, SELFMAG) != 0) return 0;
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr))
    return 0;
  const size_t table_bytes = (size_t)header->e_shnum * sizeof(Elf64_Shdr);
  if (header->e_shoff > file_bytes || table_bytes > file_bytes - header->e_shoff) return 0;
  const Elf64_Shdr* sections = (const Elf64_Shdr*)(file + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    const Elf64_Shdr* symbols = &sections[i];
    if (symbols->sh_type != SHT_SYMTAB || symbols->sh_link >= header->e_shnum) continue;
    const Elf64_Shdr* names = &sections[symbols->sh_link];
    if (symbols->sh_offset > file_bytes || symbols->sh_size > file_bytes - symbols->sh_offset)
      return 0;
    if (names->sh_offset > file_bytes || names->sh_size > file_bytes - names->sh_offset) return 0;
    if (names->sh_size == 0 || file[names->sh_offset + names->sh_size - 1] != '\0') return 0;
    out->first = (const Elf64_Sym*)(file + symbols->sh_offset);
    out->count = symbols->sh_size / sizeof(Elf64_Sym);
    out->names = file + names->sh_offset;
    out->names_bytes = names->sh_size;
    return 1;
  }
  return 0;
}

static int has_name(const struct Symbols* symbols, const char* text, size_t bytes) {
  return memmem(symbols->names, symbols->names_bytes, text, bytes) != NULL;
}

static size_t find_functions_by_name(const struct Symbols* symbols, UvmsimFoundFunction* found,
                                     const void* context) {
  size_t count = 0;
  for (size_t i = 0; i < symbols->count; ++i) {
    const Elf64_Sym* symbol = &symbols->first[i];
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_shndx == SHN_UNDEF) continue;
    if (symbol->st_name >= symbols->names_bytes) continue;
    found(symbols->names + symbol->st_name, symbol->st_value, context);
    ++count;
  }
  return count;
}

/* Calls `found` for the functions of the runtime of CUDA 13, and perhaps for others. */
static size_t find_functions(const char* file, size_t file_bytes, UvmsimFoundFunction* found,
                             const void* context) {
  struct Symbols symbols;
  if (!find_symbols(file, file_bytes, &symbols) || !has_name(&symbols, kMark, strlen(kMark)))
    return uvmsim_find_functions_by_layout(file, file_bytes, found, context);
  if (has_name(&symbols, kOlderMark, sizeof kOlderMark)) return 0;
  return find_functions_by_name(&symbols, found, context);
}

/* cuSPARSE reports success if its kernels could not be launched, so with the simulator's runtime
 * its results would be wrong without an error. With its own runtime it fails at its first call. */
static int hides_failed_launches(const char* path) {
  static const char kLibrary[] = "libcusparse.so";
  const char* slash = strrchr(path, '/');
  return strncmp(slash == NULL ? path : slash + 1, kLibrary, sizeof kLibrary - 1) == 0;
}

static size_t find_functions_of(const char* path, UvmsimFoundFunction* found, const void* context) {
  if (hides_failed_launches(path)) return 0;
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  struct stat status;
  const int is_known = fstat(descriptor, &status) == 0 && status.st_size > 0;
  const size_t bytes = is_known ? (size_t)status.st_size : 0;
  char* file = is_known ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
  close(descriptor);
  if (file == MAP_FAILED) return 0;
  const size_t count = find_functions(file, bytes, found, context);
  munmap(file, bytes);
  return count;
}

static void replace(const char* name, uintptr_t address, const void* context) {
  const struct link_map* map = context;
  const char* const* found = bsearch(name, kNames, kNameCount, sizeof kNames[0], compare_names);
  if (found == NULL) return;
  fill_slots();
  replace_function((char*)(map->l_addr + address),
                   uvmsim_runtime_entries + (found - kNames) * kEntryBytes);
}

void uvmsim_replace_static_runtime(const struct link_map* map, const char* runtime) {
  standing_in = runtime;
  find_functions_of(*map->l_name == '\0' ? "/proc/self/exe" : map->l_name, replace, map);
}

static void leave(const char* name, uintptr_t address, const void* context) {
  (void)name;
  (void)address;
  (void)context;
}

int uvmsim_replaces_static_runtime(const char* path) {
  return find_functions_of(path, leave, NULL) != 0;
}

#else

void uvmsim_replace_static_runtime(const struct link_map* map, const char* runtime) {
  (void)map;
  (void)runtime;
}

int uvmsim_replaces_static_runtime(const char* path) {
  (void)path;
  return 0;
}

#endif
