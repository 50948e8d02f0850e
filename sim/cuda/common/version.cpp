#include "sim/cuda/common/version.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace uvmsim::cuda {
namespace {

struct DriverVersion {
  std::string_view text;
  int number;
  const char* subfolder;  // of an older driver, below the folder of the stand-ins
};

constexpr std::array kAccepted{
#define UVMSIM_DRIVER(number, name) DriverVersion{#number, number, "/" name},
#include "sim/cuda/driver_versions.def"
};
constexpr const DriverVersion& kNewest = kAccepted.back();

const DriverVersion& read_version() {
  const char* text = secure_getenv("UVMSIM_DRIVER_VERSION");
  if (text == nullptr) return kNewest;
  std::string accepted;
  for (const DriverVersion& version : kAccepted) {
    if (version.text == text) return version;
    accepted.append(accepted.empty() ? "" : ", ").append(version.text);
  }
  std::fprintf(stderr, "uvmsim: UVMSIM_DRIVER_VERSION is '%s'; accepted: %s; using %d\n", text,
               accepted.c_str(), kNewest.number);
  return kNewest;
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
  return &chosen() == &kNewest ? "" : chosen().subfolder;
}

}  // namespace uvmsim::cuda
