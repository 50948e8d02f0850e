#include "pytorch/plugin/region.hpp"

#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include "allocator/process/process_allocator.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/out_of_memory.hpp"

namespace uvm::torch_plugin {
namespace {

// The slot of thread-local state that torch copies to autograd's threads. The slot's name is an
// enumerator in torch 2.11 and an object of torch in 2.15.
c10::DebugInfoKind kind() {
  return c10::DebugInfoKind::PRODUCER_INFO;
}

struct Noted {
  std::shared_ptr<RegionState> region;  // the innermost region; nullptr: none
  std::size_t size_bytes = 0;
  bool advised = false;
};

class NotedBlocks {
 public:
  template <class Change>
  void change(void* address, Change change) {
    std::lock_guard lock(mutex_);
    change(blocks_[address]);
    noted_blocks_count = blocks_.size();
  }

  std::optional<Noted> take(void* address) {
    std::lock_guard lock(mutex_);
    auto found = blocks_.extract(address);
    noted_blocks_count = blocks_.size();
    return found.empty() ? std::nullopt : std::optional(std::move(found.mapped()));
  }

  // Charges blocks of closed regions to the regions around them.
  void close_regions() {
    std::lock_guard lock(mutex_);
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      Noted& noted = at->second;
      while (noted.region != nullptr && !noted.region->open) noted.region = noted.region->outer;
      at = noted.region == nullptr && !noted.advised ? blocks_.erase(at) : std::next(at);
    }
    noted_blocks_count = blocks_.size();
  }

 private:
  std::mutex mutex_;  // guards the members below, and changes of noted_blocks_count
  std::unordered_map<void*, Noted> blocks_;
};

NotedBlocks& noted_blocks() {
  static auto* blocks = new NotedBlocks;  // never destroyed: blocks are freed until exit
  return *blocks;
}

std::shared_ptr<RegionState> innermost() {
  if (!any_region()) return nullptr;
  // Other code may also use the slot.
  auto* top = dynamic_cast<RegionState*>(c10::ThreadLocalDebugInfo::get(kind()));
  if (top == nullptr) return nullptr;
  std::shared_ptr<RegionState> state = top->shared_from_this();
  while (state != nullptr && !state->open) state = state->outer;
  return state;
}

Policy policy_of(const std::string& text) {
  for (Policy policy : {Policy::kAuto, Policy::kDriver, Policy::kOff}) {
    if (text == to_string(policy)) return policy;
  }
  TORCH_CHECK_VALUE(false, "the policy is '", text, "'; accepted: auto, driver, off");
}

}  // namespace

Region::Region(const std::string& policy, std::int64_t budget_bytes, std::int64_t group,
               bool groups_device_memory_only)
    : state_(std::make_shared<RegionState>()) {
  if (!policy.empty()) state_->policy = policy_of(policy);
  if (budget_bytes != 0) state_->budget_bytes = static_cast<std::size_t>(budget_bytes);
  state_->group = static_cast<std::uint32_t>(group);
  state_->groups_device_memory_only = groups_device_memory_only;
  state_->outer = innermost();
  c10::ThreadLocalDebugInfo::_push(kind(), state_);
  ++open_regions;
}

Region::~Region() {
  close();
}

void Region::close() {
  if (!state_->open.exchange(false)) return;
  --open_regions;
  noted_blocks().close_regions();
  // If other code has pushed something since, the closed region stays below it.
  if (c10::ThreadLocalDebugInfo::get(kind()) != state_.get()) return;
  try {
    c10::ThreadLocalDebugInfo::_pop(kind());
  } catch (const c10::Error&) {
    return;
  }
}

ThreadRegions::ThreadRegions() : innermost_(innermost()) {}

void ThreadRegions::enter() const {
  if (innermost_ != nullptr) c10::ThreadLocalDebugInfo::_push(kind(), innermost_);
}

void ThreadRegions::leave() const {
  if (innermost_ != nullptr) c10::ThreadLocalDebugInfo::_pop(kind());
}

Policy effective_policy() {
  for (auto region = innermost(); region != nullptr; region = region->outer) {
    if (region->policy) return *region->policy;
  }
  return process_configuration().configuration.policy;
}

PolicyScope::PolicyScope()
    : before_(set_thread_policy(any_region() ? std::optional(effective_policy()) : std::nullopt)) {}
PolicyScope::~PolicyScope() {
  set_thread_policy(before_);
}

std::shared_ptr<RegionState> charge(Facade facade, std::size_t size_bytes) {
  std::shared_ptr<RegionState> first = innermost();
  for (auto region = first; region != nullptr; region = region->outer) {
    const std::size_t before = region->used_bytes.fetch_add(size_bytes);
    if (size_bytes <= region->budget_bytes && before <= region->budget_bytes - size_bytes) continue;
    for (auto charged = first; charged != region->outer; charged = charged->outer) {
      charged->used_bytes -= size_bytes;
    }
    using c10::CachingAllocator::format_size;
    TORCH_CHECK_WITH(OutOfMemoryError, false, out_of_memory_words(facade, size_bytes),
                     " The region's budget is ", format_size(region->budget_bytes), ", of which ",
                     format_size(before), " is in use (uvmalloc.region(budget=...)).");
  }
  return first;
}

void refund(const std::shared_ptr<RegionState>& region, std::size_t size_bytes) {
  for (auto charged = region; charged != nullptr; charged = charged->outer) {
    charged->used_bytes -= size_bytes;
  }
}

Groups& groups() {
  // Never destroyed: blocks are freed until the process exits.
  static auto* groups = new std::shared_ptr<Groups>(Groups::of(allocator()));
  return **groups;
}

GroupNumber group_for(Facade facade) {
  for (auto region = innermost(); region != nullptr; region = region->outer) {
    if (region->group == 0) continue;
    const bool takes = region->group != kNoGroupHere &&
                       (facade == Facade::kDevice || !region->groups_device_memory_only);
    return takes ? GroupNumber{region->group} : GroupNumber{};
  }
  if (facade == Facade::kPinned) return {};
  static const GroupNumber kDefault = Groups::default_of(allocator());
  return kDefault;
}

void* allocate_for_group(Facade facade, const DeviceStream& stream, std::size_t size_bytes) {
  const GroupNumber group = group_for(facade);
  return group == GroupNumber{}
             ? allocator().allocate(facade, stream.device, size_bytes, stream.handle)
             : groups().allocate(group, facade, size_bytes, stream);
}

void join_group(Facade facade, const void* address) {
  const GroupNumber group = group_for(facade);
  if (address != nullptr && group != GroupNumber{}) groups().add(group, address);
}

void give_up(const std::shared_ptr<RegionState>& region, void* address, std::size_t size_bytes) {
  refund(region, size_bytes);
  if (address != nullptr) delete_block(address);
}

void keep_charge(std::shared_ptr<RegionState> region, void* address, std::size_t size_bytes) {
  if (region == nullptr) return;
  const auto block = allocator().find(address);
  if (address == nullptr || (block && block->private_pool != 0)) {
    refund(region, size_bytes);
    return;
  }
  noted_blocks().change(address, [&](Noted& noted) {
    noted = {std::move(region), size_bytes, false};
  });
}

void note_advised(void* address) {
  noted_blocks().change(address, [](Noted& noted) { noted.advised = true; });
}

void forget_noted_block(void* address) {
  // Another thread may have held the lock when the process was forked.
  if (allocator().inspection().in_forked_child()) return;
  const std::optional<Noted> noted = noted_blocks().take(address);
  if (!noted) return;
  refund(noted->region, noted->size_bytes);
  if (!noted->advised) return;
  // Undo the advice: the next owner of the pages has not requested it.
  if (const auto block = allocator().find(address)) {
    allocator().advise(address, {.preferred = block->location, .read_mostly = false});
  }
}

}  // namespace uvm::torch_plugin

TORCH_LIBRARY_FRAGMENT(uvmalloc, library) {
  using uvm::torch_plugin::Region;
  using uvm::torch_plugin::ThreadRegions;
  library.class_<Region>("Region")
      .def(torch::init<const std::string&, std::int64_t, std::int64_t, bool>())
      .def("close", [](const c10::intrusive_ptr<Region>& region) { region->close(); });
  using Regions = c10::intrusive_ptr<ThreadRegions>;
  library.class_<ThreadRegions>("ThreadRegions")
      .def(torch::init<>())
      .def("enter", [](const Regions& regions) { regions->enter(); })
      .def("leave", [](const Regions& regions) { regions->leave(); });
}
