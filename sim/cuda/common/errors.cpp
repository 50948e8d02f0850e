#include "sim/cuda/common/errors.hpp"

#include <algorithm>
#include <iterator>

#include "sim/api/kernel_launch.hpp"

namespace uvmsim::cuda {
namespace {

using api::kNoImageText;

struct ErrorEntry {
  int number;
  const char* name;
  const char* text;
};

#include "sim/cuda/common/error_table.inc"

template <class Table>
const ErrorEntry* find(const Table& table, int number) {
  const auto* it =
      std::lower_bound(std::begin(table), std::end(table), number,
                       [](const ErrorEntry& entry, int wanted) { return entry.number < wanted; });
  return it != std::end(table) && it->number == number ? it : nullptr;
}

}  // namespace

const char* driver_error_name(int error) {
  const ErrorEntry* entry = find(kDriverErrors, error);
  return entry != nullptr ? entry->name : nullptr;
}

const char* driver_error_text(int error) {
  const ErrorEntry* entry = find(kDriverErrors, error);
  return entry != nullptr ? entry->text : nullptr;
}

const char* runtime_error_name(int error) {
  const ErrorEntry* entry = find(kRuntimeErrors, error);
  return entry != nullptr ? entry->name : nullptr;
}

const char* runtime_error_text(int error) {
  const ErrorEntry* entry = find(kRuntimeErrors, error);
  return entry != nullptr ? entry->text : nullptr;
}

}  // namespace uvmsim::cuda
