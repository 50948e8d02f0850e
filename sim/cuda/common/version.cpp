#include "sim/cuda/common/version.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace uvmsim::cuda {
namespace {

struct DriverVersion {
  std::string_view text;
  int number;
  const char* subfolder;  // below the stand-ins, with the driver of that version
};

constexpr std::array<DriverVersion, 3> kAccepted{
    {{"12020", 12020, "/12.2"}, {"12080", 12080, "/12.8"}, {"13000", 13000, ""}}};
constexpr const DriverVersion& kDefault = kAccepted.back();

const DriverVersion& read_version() {
  const char* text = secure_getenv("UVMSIM_DRIVER_VERSION");
  if (text == nullptr) return kDefault;
  for (const DriverVersion& version : kAccepted) {
    if (version.text == text) return version;
  }
  std::fprintf(stderr,
               "uvmsim: UVMSIM_DRIVER_VERSION is '%s'; accepted: 12020, 12080, 13000; using %d\n",
               text, kDefault.number);
  return kDefault;
}

const DriverVersion& chosen() {
  static const DriverVersion& version = read_version();
  return version;
}

}  // namespace

int driver_version() {
  return chosen().number;
}

const char* driver_subfolder() {
  return chosen().subfolder;
}

}  // namespace uvmsim::cuda
