#include "pytorch/interpose/imported_function.hpp"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace uvm {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kSlotTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64};
#elif defined(__aarch64__)
constexpr std::uint32_t kSlotTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
#else
#error "the relocation types of this processor are not known here"
#endif

// The relocation tables of a loaded object, from its dynamic section.
struct Relocations {
  ElfW(Addr) base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  struct Table {
    const ElfW(Rela) * first = nullptr;
    std::size_t size_bytes = 0;
  };
  Table calls;  // DT_JMPREL
  Table data;   // DT_RELA
};

const ElfW(Dyn) * dynamic_section(const dl_phdr_info& info) {
  for (int header = 0; header < info.dlpi_phnum; ++header) {
    if (info.dlpi_phdr[header].p_type == PT_DYNAMIC) {
      return reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[header].p_vaddr);
    }
  }
  return nullptr;
}

Relocations relocations_of(const dl_phdr_info& info) {
  Relocations out;
  out.base = info.dlpi_addr;
  const ElfW(Dyn)* entry = dynamic_section(info);
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    auto pointer = entry->d_un.d_ptr;  // an absolute address: the loader has relocated it
    switch (entry->d_tag) {
      case DT_SYMTAB:
        out.symbols = reinterpret_cast<const ElfW(Sym)*>(pointer);
        break;
      case DT_STRTAB:
        out.names = reinterpret_cast<const char*>(pointer);
        break;
      case DT_JMPREL:
        out.calls.first = reinterpret_cast<const ElfW(Rela)*>(pointer);
        break;
      case DT_PLTRELSZ:
        out.calls.size_bytes = entry->d_un.d_val;
        break;
      case DT_RELA:
        out.data.first = reinterpret_cast<const ElfW(Rela)*>(pointer);
        break;
      case DT_RELASZ:
        out.data.size_bytes = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  return out;
}

bool is_slot(std::uint32_t type) {
  for (std::uint32_t known : kSlotTypes) {
    if (type == known) return true;
  }
  return false;
}

// Returns the protection of the page that holds the address, or nullopt if it is unknown.
std::optional<int> protection_of(std::uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    char* rest = nullptr;
    const std::uintptr_t begin = std::strtoull(line.c_str(), &rest, 16);
    const std::uintptr_t end = *rest == '-' ? std::strtoull(rest + 1, &rest, 16) : begin;
    if (address < begin || address >= end || std::strlen(rest) < 4) continue;
    int protection = PROT_NONE;
    if (rest[1] == 'r') protection |= PROT_READ;
    if (rest[2] == 'w') protection |= PROT_WRITE;
    if (rest[3] == 'x') protection |= PROT_EXEC;
    return protection;
  }
  return std::nullopt;
}

// Stores `value` in the slot. If the slot's page is read-only, it is read-only again afterwards.
bool store(void** slot, void* value) {
  std::atomic_ref<void*> held(*slot);
  if (held.load(std::memory_order_acquire) == value) return true;
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(slot);
  auto* const page = reinterpret_cast<void*>(address & ~(page_bytes - 1));
  const std::optional<int> before = protection_of(address);
  const bool read_only = !before || (*before & PROT_WRITE) == 0;
  if (read_only && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
  held.store(value, std::memory_order_release);
  if (read_only && before) mprotect(page, page_bytes, *before);
  return true;
}

void replace(const Relocations& relocations, const Relocations::Table& table,
             std::span<ImportedFunction> functions) {
  for (std::size_t index = 0; index < table.size_bytes / sizeof(ElfW(Rela)); ++index) {
    const ElfW(Rela)& entry = table.first[index];
    if (!is_slot(static_cast<std::uint32_t>(ELF64_R_TYPE(entry.r_info))) || entry.r_addend != 0)
      continue;
    const std::string_view symbol =
        relocations.names + relocations.symbols[ELF64_R_SYM(entry.r_info)].st_name;
    for (ImportedFunction& function : functions) {
      if (symbol != function.symbol) continue;
      auto* slot = reinterpret_cast<void**>(relocations.base + entry.r_offset);
      function.replaced |= store(slot, function.replacement);
    }
  }
}

struct Search {
  const char* library;
  std::span<ImportedFunction> functions;
};

int visit(dl_phdr_info* info, std::size_t, void* context) {
  auto& search = *static_cast<Search*>(context);
  const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const std::size_t slash = path.rfind('/');
  if (search.library != nullptr) {
    if (path.substr(slash + 1) != search.library) return 0;
  } else if (slash == std::string_view::npos && !path.empty()) {
    return 0;  // the vDSO: its dynamic section holds offsets, not addresses
  }
  const Relocations relocations = relocations_of(*info);
  if (relocations.symbols != nullptr && relocations.names != nullptr) {
    for (const Relocations::Table* table : {&relocations.calls, &relocations.data}) {
      replace(relocations, *table, search.functions);
    }
  }
  return search.library != nullptr;
}

}  // namespace

void replace_imported_functions(const char* library, std::span<ImportedFunction> functions) {
  for (ImportedFunction& function : functions) function.replaced = false;
  Search search{library, functions};
  dl_iterate_phdr(visit, &search);
}

bool replace_imported_function(const char* library, const char* symbol, void* replacement) {
  ImportedFunction function{symbol, replacement};
  replace_imported_functions(library, {&function, 1});
  return function.replaced;
}

}  // namespace uvm
