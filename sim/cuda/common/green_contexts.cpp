#include "sim/cuda/common/green_contexts.hpp"

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "sim/cuda/common/device_attributes.hpp"
#include "sim/cuda/common/visible_devices.hpp"
#include "sim/engine/contexts.hpp"
#include "sim/engine/machine.hpp"
#include "sim/engine/thread_context.hpp"

namespace uvmsim::cuda {
namespace {

// The multiprocessors of a part are a multiple of this, as on compute capability 9.0 and later.
constexpr unsigned kAlignment = 8;

// Guarded by mutex().
std::deque<CUdevResource>& descriptions() {
  static std::deque<CUdevResource> all;
  return all;
}
std::unordered_map<int, CUdevResource>& parts_by_context() {
  static std::unordered_map<int, CUdevResource> all;
  return all;
}
std::mutex& mutex() {
  static std::mutex one;
  return one;
}

CUdevResource part_with(unsigned multiprocessors) {
  CUdevResource part{};
  part.type = CU_DEV_RESOURCE_TYPE_SM;
  part.sm.smCount = multiprocessors;
  return part;
}

bool is_part(const CUdevResource* part) {
  return part != nullptr && part->type == CU_DEV_RESOURCE_TYPE_SM && part->sm.smCount != 0;
}

}  // namespace

Status whole_device(int device, int type, CUdevResource* out) {
  if (out == nullptr || type != CU_DEV_RESOURCE_TYPE_SM) return Status::kInvalidValue;
  const int count = device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device).value_or(0);
  *out = part_with(static_cast<unsigned>(count));
  return Status::kOk;
}

Status split_by_count(CUdevResource* groups, unsigned* count, const CUdevResource* input,
                      CUdevResource* rest, unsigned least) {
  if (count == nullptr || !is_part(input) || least > input->sm.smCount)
    return Status::kInvalidValue;
  const unsigned each = std::max(1U, (least + kAlignment - 1) / kAlignment) * kAlignment;
  const unsigned most = input->sm.smCount / each;
  *count = groups == nullptr ? most : std::min(*count, most);
  if (groups == nullptr) return Status::kOk;
  std::fill_n(groups, *count, part_with(each));
  if (rest != nullptr) *rest = part_with(input->sm.smCount - *count * each);
  return Status::kOk;
}

Status describe(const CUdevResource* parts, unsigned count, CUdevResourceDesc* out) {
  if (out == nullptr || count != 1 || !is_part(parts)) return Status::kInvalidValue;
  const std::lock_guard lock(mutex());
  *out = reinterpret_cast<CUdevResourceDesc>(&descriptions().emplace_back(*parts));
  return Status::kOk;
}

Status create_green_context(int device, CUdevResourceDesc description, void** out) {
  if (out == nullptr) return Status::kInvalidValue;
  if (!is_visible(device)) return Status::kInvalidDevice;
  const std::lock_guard lock(mutex());
  const auto found =
      std::find_if(descriptions().begin(), descriptions().end(), [&](const CUdevResource& part) {
        return reinterpret_cast<CUdevResourceDesc>(const_cast<CUdevResource*>(&part)) ==
               description;
      });
  if (found == descriptions().end()) return Status::kInvalidValue;
  const int number = Contexts::open(device, Contexts::Kind::kGreen);
  if (number == kNoContext) return Status::kOutOfMemory;
  PrimaryContexts::retain(device);
  parts_by_context()[number] = *found;
  *out = Contexts::handle_of(number);
  return Status::kOk;
}

int green_context_of(void* handle) {
  const int number = Contexts::number_of(handle);
  return number != kNoContext && Contexts::is_green(number) && Contexts::exists(number)
             ? number
             : kNoContext;
}

Status destroy_green_context(void* handle) {
  const int number = green_context_of(handle);
  if (number == kNoContext) return Status::kInvalidContext;
  {
    const std::lock_guard lock(mutex());
    parts_by_context().erase(number);
  }
  Contexts::close(number);
  PrimaryContexts::release(number % kMostDevices);
  return Status::kOk;
}

Status part_of(void* handle, int type, CUdevResource* out) {
  const int number = green_context_of(handle);
  if (number == kNoContext) return Status::kInvalidContext;
  if (out == nullptr || type != CU_DEV_RESOURCE_TYPE_SM) return Status::kInvalidValue;
  const std::lock_guard lock(mutex());
  *out = parts_by_context().at(number);
  return Status::kOk;
}

Status create_green_stream(void* handle, unsigned flags, int priority, void** out) {
  const int number = green_context_of(handle);
  if (number == kNoContext) return Status::kInvalidContext;
  // A green context's stream has to be non-blocking.
  if (out == nullptr || flags != CU_STREAM_NON_BLOCKING) return Status::kInvalidValue;
  ThreadContext& thread = ThreadContext::current();
  if (!thread.push_context(number)) return Status::kOutOfMemory;
  *out = Machine::instance().streams().create_stream(number % kMostDevices, flags, false,
                                                     std::clamp(priority, -5, 0));
  int popped = kNoContext;
  thread.pop_context(&popped);
  return Status::kOk;
}

}  // namespace uvmsim::cuda
