#include "preload/exclusions.hpp"

#include <dlfcn.h>

#include <optional>

#include <fmt/format.h>

#include <uvmalloc/configuration.hpp>
#include "allocator/base/number_text.hpp"
#include "allocator/base/text_parts.hpp"
#include "preload/interpose.hpp"

namespace uvm::preload {
namespace {

// These libraries send device memory to network devices and other processes. With managed memory
// this is impossible or slow.
constexpr std::array kNetworkLibraries = {"libnccl", "libnvshmem", "libucp",     "libuct",
                                          "libucs",  "libmpi",     "libopen-pal"};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

Exclusions::Exclusions(std::string_view text, std::vector<std::string>* errors) {
  bool with_network_libraries = true;
  bool is_first = true;
  each_part(text, ',', [&](std::string_view part) {
    const std::string_view entry = trimmed(part);
    if (entry.empty()) return true;
    const auto size = parse_size(entry.substr(1));
    const bool is_library = entry.starts_with("lib");
    const std::size_t plus = is_library ? entry.rfind("+0x") : std::string_view::npos;
    const bool is_call_site = plus != std::string_view::npos;
    const auto offset =
        is_call_site ? read_number<std::uintptr_t>(entry.substr(plus + 3), 16) : std::nullopt;
    if (entry == "none" && is_first) {
      with_network_libraries = false;
    } else if (entry.front() == '<' && size) {
      least_bytes_ = *size;
    } else if (entry.front() == '>' && size) {
      most_bytes_ = *size;
    } else if (is_library && !is_call_site) {
      libraries_.emplace_back(entry);
    } else if (offset) {
      call_sites_.push_back({std::string(entry.substr(0, plus)), *offset});
    } else {
      errors->push_back(fmt::format(
          "UVMALLOC_EXCLUDE has '{}', which is not understood; accepted: <SIZE, >SIZE, libNAME, "
          "libNAME.so+0xOFFSET and, as the first, none",
          entry));
    }
    is_first = false;
    return true;
  });
  if (with_network_libraries) {
    libraries_.insert(libraries_.end(), kNetworkLibraries.begin(), kNetworkLibraries.end());
  }
}

bool Exclusions::excludes_caller(const void* caller) const noexcept {
  const auto twice = reinterpret_cast<std::uintptr_t>(caller) << 1;
  std::atomic<std::uint64_t>& known = known_[(twice >> 1) * 0x9E3779B97F4A7C15u >> 56];
  std::uint64_t answer = known.load(std::memory_order_relaxed);
  if ((answer & ~std::uint64_t{1}) != twice) {
    answer = twice | (is_excluded(caller) ? 1 : 0);
    known.store(answer, std::memory_order_relaxed);
  }
  return (answer & 1) != 0;
}

bool Exclusions::is_excluded(const void* caller) const noexcept {
  Dl_info found{};
  if (dladdr(caller, &found) == 0 || found.dli_fname == nullptr) return false;
  const std::string_view name = file_name(found.dli_fname);
  for (const std::string& library : libraries_) {
    if (name.starts_with(library)) return true;
  }
  const auto offset =
      reinterpret_cast<std::uintptr_t>(caller) - reinterpret_cast<std::uintptr_t>(found.dli_fbase);
  for (const CallSite& site : call_sites_) {
    if (site.offset == offset && name.starts_with(site.library)) return true;
  }
  return false;
}

}  // namespace uvm::preload
