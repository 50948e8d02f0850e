#include "pytorch/interpose/class_layout.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>

namespace uvm::interpose {
namespace {

// The table of virtual functions of torch's interface for device allocators.
constexpr std::string_view kTable = "_ZTVN3c104cuda20CUDACachingAllocator13CUDAAllocatorE";

// A file's bytes, mapped.
class FileBytes {
 public:
  explicit FileBytes(const std::string& file) {
    const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat found {};
    if (descriptor >= 0 && fstat(descriptor, &found) == 0 && found.st_size > 0) {
      size_ = static_cast<std::size_t>(found.st_size);
      void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (mapped != MAP_FAILED) bytes_ = static_cast<const char*>(mapped);
    }
    if (descriptor >= 0) close(descriptor);
  }
  ~FileBytes() {
    if (bytes_ != nullptr) munmap(const_cast<char*>(bytes_), size_);
  }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // Copies a structure; false if the file ends before.
  template <class Value>
  bool read(std::size_t offset, Value* out) const {
    if (bytes_ == nullptr || offset > size_ || size_ - offset < sizeof(Value)) return false;
    std::memcpy(out, bytes_ + offset, sizeof(Value));
    return true;
  }
  bool has(std::size_t offset, std::string_view text) const {
    if (bytes_ == nullptr || offset > size_ || size_ - offset <= text.size()) return false;
    return std::memcmp(bytes_ + offset, text.data(), text.size()) == 0 &&
           bytes_[offset + text.size()] == '\0';
  }

 private:
  const char* bytes_ = nullptr;
  std::size_t size_ = 0;
};

// The size of the symbol in one table; 0 if the table does not have it.
std::size_t bytes_in_table(const FileBytes& file, const Elf64_Shdr& table, const Elf64_Shdr& names,
                           std::string_view symbol) {
  for (std::size_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
    Elf64_Sym entry{};
    if (!file.read(table.sh_offset + at, &entry)) return 0;
    if (entry.st_size != 0 && file.has(names.sh_offset + entry.st_name, symbol))
      return entry.st_size;
  }
  return 0;
}

// "2.11.0+cu130" is a release; "2.11.0a0+git1234", "2.11.0.dev20260101" and "2.11.0rc1" are not.
bool is_release(const std::string& version) {
  const std::string_view number = std::string_view(version).substr(0, version.find('+'));
  return !number.empty() && std::ranges::all_of(number, [](unsigned char each) {
    return std::isdigit(each) != 0 || each == '.';
  });
}

}  // namespace

std::size_t symbol_bytes(const std::string& file, std::string_view symbol) noexcept {
  const FileBytes bytes(file);
  Elf64_Ehdr header{};
  if (!bytes.read(0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr)) {
    return 0;
  }
  const auto section = [&](std::size_t index, Elf64_Shdr* out) {
    return index < header.e_shnum && bytes.read(header.e_shoff + index * sizeof(Elf64_Shdr), out);
  };
  for (std::size_t index = 0; index < header.e_shnum; ++index) {
    Elf64_Shdr table{};
    Elf64_Shdr names{};
    if (!section(index, &table)) return 0;
    if (table.sh_type != SHT_SYMTAB && table.sh_type != SHT_DYNSYM) continue;
    if (!section(table.sh_link, &names)) return 0;
    if (const std::size_t found = bytes_in_table(bytes, table, names, symbol); found != 0)
      return found;
  }
  return 0;
}

std::string why_classes_differ(const std::string& plugin, const std::string& library_dir,
                               const std::string& version) {
  const std::size_t ours = symbol_bytes(plugin, kTable);
  const std::size_t theirs = symbol_bytes(library_dir + "/libc10_cuda.so", kTable);
  const std::string torch = "torch " + version;
  if (ours != 0 && theirs != 0) {
    if (ours == theirs) return {};
    return torch +
           " has other classes than the release that the plugin was built for; build one for it "
           "with scripts/build --torch-of PYTHON";
  }
  if (is_release(version)) return {};
  return torch + " is not a release, and its classes cannot be compared with those of the plugin";
}

}  // namespace uvm::interpose
