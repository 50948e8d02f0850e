#include "pytorch/interpose/torch_probe.hpp"

#include <link.h>

#include <charconv>
#include <fstream>
#include <string_view>

namespace uvm {
namespace {

struct Mapped {
  bool torch_cuda = false;
  bool c10_cuda = false;
  bool torch_python = false;
  std::string library_dir;
};

int note_library(dl_phdr_info* library, std::size_t, void* context) {
  auto& mapped = *static_cast<Mapped*>(context);
  const std::string_view path = library->dlpi_name ? library->dlpi_name : "";
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return 0;
  const std::string_view name = path.substr(slash + 1);
  if (name == "libtorch_cuda.so") {
    mapped.torch_cuda = true;
    mapped.library_dir = path.substr(0, slash);
  } else if (name == "libc10_cuda.so") {
    mapped.c10_cuda = true;
  } else if (name == "libtorch_python.so") {
    mapped.torch_python = true;
  }
  return 0;
}

// Returns the string that torch's version.py assigns to `name` in a line like `name = 'text'`, with
// or without a type annotation. Returns an empty string if there is no such line.
std::string read_text(const std::string& library_dir, std::string_view name) {
  std::ifstream file(library_dir + "/../version.py");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t equals = line.find('=', name.size());
    if (equals == std::string::npos) continue;
    if (line[name.size()] != ' ' && line[name.size()] != ':' && line[name.size()] != '=') continue;
    const std::size_t begin = line.find_first_of("'\"", equals);
    if (begin == std::string::npos) return {};
    const std::size_t end = line.find(line[begin], begin + 1);
    if (end == std::string::npos) return {};
    return line.substr(begin + 1, end - begin - 1);
  }
  return {};
}

// "2.11.0+cu130" gives 2 and 11. Leaves both arguments unchanged if the string is not a version.
void parse_version(const std::string& version, int* out_major, int* out_minor) {
  int major = 0;
  int minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, major_error] = std::from_chars(version.data(), end, major);
  if (major_error != std::errc() || dot == end || *dot != '.') return;
  const auto [rest, minor_error] = std::from_chars(dot + 1, end, minor);
  if (minor_error != std::errc() || rest == dot + 1) return;
  *out_major = major;
  *out_minor = minor;
}

}  // namespace

TorchInProcess find_torch() noexcept {
  TorchInProcess torch;
  try {
    Mapped mapped;
    dl_iterate_phdr(note_library, &mapped);
    torch.cuda_libraries_mapped = mapped.torch_cuda && mapped.c10_cuda;
    torch.python_mapped = mapped.torch_python;
    torch.library_dir = std::move(mapped.library_dir);
    if (!torch.library_dir.empty()) {
      torch.version = read_text(torch.library_dir, "__version__");
      torch.cuda_version = read_text(torch.library_dir, "cuda");
    }
    parse_version(torch.version, &torch.major, &torch.minor);
  } catch (...) {
    // Out of memory while reading names: return what was found.
  }
  return torch;
}

}  // namespace uvm
