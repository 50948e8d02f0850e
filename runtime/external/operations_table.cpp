#include "runtime/external/operations_table.hpp"

#include <cstring>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace uvm::external {
namespace {

struct Operation {
  const char* name;
  std::size_t offset;
};

#define OPERATION(name) \
  { #name, offsetof(uvmalloc_runtime_operations, name) }
#define UVM_OPERATION(constant, name, ...) OPERATION(name),
constexpr Operation kRequired[] = {
    OPERATION(initialize),
    OPERATION(device_count),
#define UVM_PASSED UVM_OPERATION
#define UVM_TRANSLATED UVM_OPERATION
#include "runtime/calls.def"
    OPERATION(error_kind),
    OPERATION(error_name),
};
constexpr Operation kHints[] = {
#define UVM_HINT UVM_OPERATION
#include "runtime/calls.def"
};
constexpr Operation kPresence[] = {OPERATION(is_present), OPERATION(is_initialized)};
#undef UVM_OPERATION
#undef OPERATION

// Groups of several operations. A table has all operations of a group or none.
struct Group {
  const char* name;
  std::span<const Operation> operations;
};
constexpr Group kGroups[] = {{"hints", kHints}, {"presence", kPresence}};

bool has(const uvmalloc_runtime_operations& table, const Operation& operation) {
  void (*function)() = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(&table) + operation.offset, sizeof function);
  return function != nullptr;
}

// Returns the names of the operations that the table has or, if `there` is false, does not have.
std::vector<const char*> names(const uvmalloc_runtime_operations& table,
                               std::span<const Operation> operations, bool there) {
  std::vector<const char*> out;
  for (const Operation& operation : operations) {
    if (has(table, operation) == there) out.push_back(operation.name);
  }
  return out;
}

}  // namespace

std::string fault_of(const uvmalloc_runtime_operations* operations) {
  if (operations == nullptr) return "is NULL; accepted: a uvmalloc_runtime_operations";
  if (operations->struct_bytes < offsetof(uvmalloc_runtime_operations, initialize)) {
    return fmt::format("has struct_bytes {}; accepted: {}, its size", operations->struct_bytes,
                       sizeof *operations);
  }
  if (operations->version == 0 || operations->version > UVMALLOC_RUNTIME_VERSION) {
    return fmt::format("has version {}; accepted: 1 to {}", operations->version,
                       UVMALLOC_RUNTIME_VERSION);
  }
  static_assert(UVMALLOC_RUNTIME_VERSION == 1, "each version has a size of its own");
  if (operations->struct_bytes != sizeof *operations) {
    return fmt::format("has struct_bytes {}; accepted: {}, the size in version {}",
                       operations->struct_bytes, sizeof *operations, operations->version);
  }
  if (const auto missing = names(*operations, kRequired, false); !missing.empty()) {
    return fmt::format("has no {}; required are all of the required group",
                       fmt::join(missing, ", "));
  }
  for (const Group& group : kGroups) {
    const auto missing = names(*operations, group.operations, false);
    if (missing.empty() || missing.size() == group.operations.size()) continue;
    return fmt::format("has {} without {}; accepted: all of the group '{}', or none",
                       fmt::join(names(*operations, group.operations, true), ", "),
                       fmt::join(missing, ", "), group.name);
  }
  return "";
}

}  // namespace uvm::external
