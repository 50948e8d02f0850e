#include <uvmalloc/sim/cuda/common/version.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace uvmsim::cuda {
namespace {

constexpr std::array<std::pair<std::string_view, int>, 3> kAccepted{
    {{"12020", 12020}, {"12080", 12080}, {"13000", 13000}}};
constexpr int kDefault = 13000;

int read_environment() {
  const char* text = std::getenv("UVMSIM_DRIVER_VERSION");
  if (text == nullptr) return kDefault;
  for (const auto& [name, version] : kAccepted) {
    if (name == text) return version;
  }
  std::fprintf(stderr,
               "uvmsim: UVMSIM_DRIVER_VERSION is '%s'; accepted: 12020, 12080, 13000; using %d\n",
               text, kDefault);
  return kDefault;
}

}  // namespace

int driver_version() {
  static const int version = read_environment();
  return version;
}

}  // namespace uvmsim::cuda
