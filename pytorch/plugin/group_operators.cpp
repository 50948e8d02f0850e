// Groups (uvmalloc/groups.hpp) for Python, as operators. Python's Group (uvmalloc/groups.py) checks
// its arguments.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <uvmalloc/groups.hpp>
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/region.hpp"
#include "pytorch/plugin/reserved_memory.hpp"

namespace uvm::torch_plugin {
namespace {

GroupNumber number_of(std::int64_t group) {
  return GroupNumber{static_cast<std::uint32_t>(group)};
}

DeviceStream current_stream_of(std::int64_t device) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  return DeviceStream::named(index, current_stream(index));
}

std::int64_t open(const std::string& name) {
  return static_cast<std::int64_t>(groups().open(name));
}

// Without a group, takes the tensor out of its group. Takes a constant pointer, so that a
// copy-on-write tensor is not copied.
bool put(const at::Tensor& self, std::int64_t group) {
  if (!self.has_storage()) return false;
  const void* address = self.storage().data();
  if (join_reserved_memory(address, number_of(group))) return true;
  return group == 0 ? groups().remove(address) : groups().add(number_of(group), address);
}

bool put_address(std::int64_t address, std::int64_t group) {
  const auto* block = reinterpret_cast<const void*>(address);
  return group == 0 ? groups().remove(block) : groups().add(number_of(group), block);
}

// Settings that are not given do not change.
void configure(std::int64_t group, std::optional<std::int64_t> priority, std::optional<bool> pinned,
               std::optional<std::int64_t> limit_bytes, std::optional<std::int64_t> copies,
               std::optional<std::int64_t> floor_bytes, std::optional<double> idle_seconds,
               const std::optional<std::string>& file) {
  GroupSettings settings = groups().figures(number_of(group)).settings;
  if (priority) settings.priority = static_cast<int>(*priority);
  if (pinned) settings.pinned = *pinned;
  if (limit_bytes)
    settings.limit_bytes = *limit_bytes == 0 ? SIZE_MAX : static_cast<std::size_t>(*limit_bytes);
  if (copies) settings.copies = static_cast<GroupCopies>(*copies);
  if (floor_bytes) settings.floor_bytes = static_cast<std::size_t>(*floor_bytes);
  if (idle_seconds)
    settings.idle = std::chrono::nanoseconds(static_cast<std::int64_t>(*idle_seconds * 1e9));
  if (file) settings.file = *file;
  groups().set(number_of(group), settings);
}

// Adds an entry to torch's history of memory, if it is recorded.
void annotate(std::int64_t group, std::int64_t device, const char* stage) {
  if (!installed_facades.device->isHistoryEnabled()) return;
  installed_facades.device->annotate(
      static_cast<c10::DeviceIndex>(device),
      {{"name", "uvmalloc.group " + groups().figures(number_of(group)).name}, {"stage", stage}});
}

std::int64_t sleep(std::int64_t group, std::int64_t device, bool discard) {
  const std::size_t bytes = groups().sleep(number_of(group), current_stream_of(device), discard);
  annotate(group, device, "sleep");
  return static_cast<std::int64_t>(bytes);
}

std::int64_t wake(std::int64_t group, std::int64_t device, bool lazily) {
  const std::size_t bytes = groups().wake(number_of(group), current_stream_of(device), lazily);
  annotate(group, device, "wake");
  return static_cast<std::int64_t>(bytes);
}

c10::Dict<std::string, std::int64_t> figures(std::int64_t group) {
  const GroupFigures figures = groups().figures(number_of(group));
  c10::Dict<std::string, std::int64_t> out;
  const auto insert = [&out](const char* name, std::uint64_t value) {
    out.insert(name, static_cast<std::int64_t>(value));
  };
  insert("state", static_cast<std::uint64_t>(figures.state));
  insert("blocks", figures.blocks);
  insert("bytes", figures.bytes);
  insert("page_bytes", figures.page_bytes);
  insert("device_bytes", figures.device_bytes);
  insert("host_bytes", figures.host_bytes);
  insert("spill_bytes", figures.spill_bytes);
  insert("file_bytes", figures.file_bytes);
  insert("sleeps", figures.sleeps);
  insert("wakes", figures.wakes);
  insert("kept_bytes", figures.kept_bytes);
  insert("left_bytes", figures.left_bytes);
  insert("idle_sleeps", figures.idle_sleeps);
  return out;
}

// Returns the devices that use the group's memory.
std::vector<std::int64_t> devices(std::int64_t group) {
  const std::vector<int> devices = groups().figures(number_of(group)).devices;
  return {devices.begin(), devices.end()};
}

// Returns the folder of the group's file; empty: none.
std::string file(std::int64_t group) {
  return groups().figures(number_of(group)).settings.file;
}

std::int64_t note_file(const at::Tensor& self, std::int64_t descriptor, const std::string& path,
                       std::int64_t changed_ns) {
  return static_cast<std::int64_t>(groups().note_file(
      self.const_data_ptr(), self.nbytes(), static_cast<int>(descriptor), path, changed_ns));
}

std::vector<std::string> names() {
  return groups().names();
}

}  // namespace
}  // namespace uvm::torch_plugin

TORCH_LIBRARY_FRAGMENT(uvmalloc, library) {
  using namespace uvm::torch_plugin;
  library.def("group_open", &open);
  library.def("group_put(Tensor self, int group) -> bool");
  library.def("group_put_address", &put_address);
  library.def("group_configure", &configure);
  library.def("group_file", &file);
  library.def("group_note_file(Tensor self, int descriptor, str path, int changed_ns) -> int");
  library.def("group_sleep", &uvm::torch_plugin::sleep);
  library.def("group_wake", &wake);
  library.def("group_figures", &figures);
  library.def("group_devices", &devices);
  library.def("group_names", &names);
}

TORCH_LIBRARY_IMPL(uvmalloc, CPU, library) {
  library.impl("group_put", &uvm::torch_plugin::put);
}
TORCH_LIBRARY_IMPL(uvmalloc, CUDA, library) {
  library.impl("group_note_file", &uvm::torch_plugin::note_file);
  library.impl("group_put", &uvm::torch_plugin::put);
}
