#include "sim/hip/common/errors.hpp"

#include <hip/hip_runtime_api.h>

#include <algorithm>
#include <array>

#include "sim/api/kernel_launch.hpp"

namespace uvmsim::hip {
namespace {

using api::kNoImageText;

struct Error {
  int number;
  const char* name;
  const char* text;
};

constexpr auto kErrors = std::to_array<Error>({
#include "sim/hip/common/error_table.inc"
});

const Error* find(int number) {
  const auto* found = std::find_if(kErrors.begin(), kErrors.end(),
                                   [number](const Error& error) { return error.number == number; });
  return found == kErrors.end() ? nullptr : found;
}

}  // namespace

const char* runtime_error_name(int error) {
  const Error* found = find(error);
  return found == nullptr ? nullptr : found->name;
}

const char* runtime_error_text(int error) {
  const Error* found = find(error);
  return found == nullptr ? nullptr : found->text;
}

}  // namespace uvmsim::hip
