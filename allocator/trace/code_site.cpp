#include "allocator/trace/code_site.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "storage/pages.hpp"

namespace uvm {
namespace {

std::string readable(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : symbol;
}

}  // namespace

std::string code_site(const void* caller) {
  const std::uintptr_t at = address_of(caller) - 1;
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(at), &found) == 0 || found.dli_fname == nullptr) {
    return fmt::format("{:#x}", at);
  }
  std::string_view file = found.dli_fname;
  file.remove_prefix(file.rfind('/') + 1);
  if (found.dli_sname == nullptr) {
    return fmt::format("{}+{:#x}", file, at - address_of(found.dli_fbase));
  }
  return fmt::format("{}+{:#x} in {}", readable(found.dli_sname), at - address_of(found.dli_saddr),
                     file);
}

}  // namespace uvm
