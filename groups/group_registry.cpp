#include "groups/group_registry.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "groups/page_spans.hpp"
#include "groups/policy.hpp"
#include "runtime/log.hpp"
#include "runtime/work_range.hpp"

namespace uvm {

std::shared_ptr<Groups> Groups::of(CachingManagedAllocator& allocator) {
  Engine& engine = allocator.engine();
  return std::static_pointer_cast<GroupRegistry>(
      engine.groups.owner([&engine] { return std::make_shared<GroupRegistry>(engine); }));
}

GroupNumber GroupRegistry::open(std::string_view name) {
  const auto is_allowed = [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
           (each >= '0' && each <= '9') ||
           std::string_view("_-./:").find(each) != std::string_view::npos;
  };
  if (name.empty() || name.size() > 64 || !std::ranges::all_of(name, is_allowed)) {
    throw std::invalid_argument(fmt::format(
        "group: the name is \"{}\"; accepted: 1 to 64 letters, digits and _ - . / :", name));
  }
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(groups_, name, [](const auto& each) { return each->name; });
  if (found != groups_.end()) return (*found)->number;
  auto group = std::make_unique<Group>();
  group->name = name;
  group->figures.name = name;
  group->number = GroupNumber{static_cast<std::uint32_t>(groups_.size() + 1)};
  groups_.push_back(std::move(group));
  return groups_.back()->number;
}

std::vector<std::string> GroupRegistry::names() const {
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& each : groups_) names.push_back(each->name);
  return names;
}

const GroupRegistry::Group& GroupRegistry::at(GroupNumber number) const {
  const auto index = static_cast<std::size_t>(number) - 1;
  if (index < groups_.size()) return *groups_[index];
  throw std::invalid_argument(fmt::format("group: there is no group {}; there are {}",
                                          static_cast<std::uint32_t>(number), groups_.size()));
}

GroupRegistry::Group& GroupRegistry::at(GroupNumber number) {
  return const_cast<Group&>(std::as_const(*this).at(number));
}

bool GroupRegistry::add(GroupNumber group, const void* address) {
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  return blocks_.put(address, at(group).number);
}

bool GroupRegistry::remove(const void* address) {
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  const GroupNumber group = blocks_.group_of(address);
  if (group != kNoGroup) end_copies(at(group), std::vector(at(group).copied));
  return blocks_.put(address, kNoGroup);
}

void GroupRegistry::set(GroupNumber group, const GroupSettings& settings) {
  if (settings.limit_bytes < kPageBytes) {
    throw std::invalid_argument(fmt::format(
        "group: the limit is {} bytes; accepted: 2 MiB at least", settings.limit_bytes));
  }
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  at(group).figures.settings = settings;
}

GroupFigures GroupRegistry::figures(GroupNumber number) const {
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  const Group& group = at(number);
  GroupFigures figures = group.figures;
  const GroupMemory memory = blocks_.memory_of(number);
  figures.blocks = memory.blocks;
  figures.bytes = memory.bytes;
  for (const auto& [device, pages] : memory.pages) {
    figures.page_bytes += bytes_of(pages);
    figures.devices.push_back(device);
    for (const PageSpan& each : pages) {
      for (const Place place : blocks_.places_of(each)) {
        if (place.is_device()) figures.device_bytes += kPageBytes;
        if (place.is_host()) figures.host_bytes += kPageBytes;
      }
    }
  }
  return figures;
}

std::vector<GroupFigures> GroupRegistry::all_figures() const {
  std::vector<GroupNumber> numbers;
  {
    const std::lock_guard lock(mutex_);
    numbers.reserve(groups_.size());
    for (const auto& each : groups_) numbers.push_back(each->number);
  }
  std::vector<GroupFigures> all;
  all.reserve(numbers.size());
  for (const GroupNumber each : numbers) all.push_back(figures(each));
  return all;
}

void GroupRegistry::require_no_capture(const Group& group, const char* what,
                                       const DeviceStream& stream) const {
  if (!HeapState::is_capturing() && machine_.events.may_wait(stream)) return;
  throw std::logic_error(
      fmt::format("group \"{}\": it cannot {} while a stream is being captured", group.name, what));
}

// Counts pages that kernels have brought back, and pages that are still leaving, too.
std::size_t GroupRegistry::most_bytes_on(const std::vector<PageSpan>& pages, int device) const {
  return bytes_on(device, pages,
                  [&](const PageSpan& each) { return blocks_.real_places_of(each, device); });
}

// ---- sleeping

std::size_t GroupRegistry::sleep(GroupNumber number, const DeviceStream& stream, bool discard) {
  const WorkRange range("sleep");
  machine_.require_device();
  machine_.check_device(stream.device);
  const std::lock_guard lock(mutex_);
  Group& group = at(number);
  require_no_capture(group, "sleep", stream);
  return put_to_sleep(group, stream, discard);
}

std::size_t GroupRegistry::put_to_sleep(Group& group, const DeviceStream& stream, bool discard) {
  const std::vector<PageSpan> pages = blocks_.memory_of(group.number).pages[stream.device];
  const std::size_t left = most_bytes_on(pages, stream.device);
  if (discard) {
    // A kernel that still runs would bring the pages back without their contents.
    if (!machine_.stream_work.wait_for_device(stream.device)) {
      throw std::runtime_error(fmt::format(
          "group \"{}\": its contents cannot be discarded, because device {} cannot be waited for",
          group.name, stream.device));
    }
    end_copies(group, pages);
    blocks_.discard(pages, stream.device);
  }
  std::size_t kept = 0;
  if (!group.copied.empty() && group.copies_device == stream.device) {
    (void)machine_.runtime.synchronize_stream(stream.device, stream.handle);
    kept = std::min(drop_copies(group, pages), left);
  }
  // Of pages that are on the host already, the driver copies none.
  blocks_.leave(pages, stream);
  group.figures.kept_bytes += kept;
  group.figures.left_bytes += left - kept;
  group.figures.state = discard ? GroupState::kDiscarded : GroupState::kAsleep;
  ++group.figures.sleeps;
  machine_.trace.mark(fmt::format("group {}: {}", group.name, to_string(group.figures.state)));
  return left;
}

// Pages of the group that the program has written to are ordinary pages again. The host is the
// preferred place of the others, so they leave the device when their copies end. Then they keep
// copies again, so that waking is a prefetch alone. Returns the bytes that have left.
std::size_t GroupRegistry::drop_copies(Group& group, const std::vector<PageSpan>& pages) {
  const std::vector<PageSpan> copied = common_pages(group.copied, pages);
  const int device = group.copies_device;
  blocks_.advise(copied, {.read_mostly = false}, device);
  const std::vector<PageSpan> written = written_pages(blocks_, copied, device);
  group.writes_much = bytes_of(written) > bytes_of(copied) / policy::kWrittenParts;
  blocks_.advise(written, {.preferred = Place::device(device)}, device);
  group.copied = pages_without(copied, written);
  blocks_.advise(group.copied, {.read_mostly = true}, device);
  return bytes_of(group.copied);
}

// These pages of the group are ordinary ones again: a kernel's touch brings them.
void GroupRegistry::end_copies(Group& group, const std::vector<PageSpan>& pages) {
  const std::vector<PageSpan> ended = common_pages(group.copied, pages);
  const Place device = Place::device(group.copies_device);
  blocks_.advise(ended, {.preferred = device, .read_mostly = false}, group.copies_device);
  group.copied = pages_without(group.copied, pages);
}

// Their next user must not inherit the advice.
void GroupRegistry::block_freed(GroupNumber number, const char* address,
                                std::size_t size_bytes) noexcept {
  if (machine_.in_forked_child()) return;
  try {
    const std::lock_guard lock(mutex_);
    Group& group = at(number);
    if (!group.copied.empty()) end_copies(group, {pages_touched(address, size_bytes)});
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "pages of a freed block keep copies on the host: {}", error.what());
  }
}

// ---- waking

// If it is not known how often the group is written to, copies are kept once, to find out. Without
// a driver that says where pages are, that would not be found out.
bool GroupRegistry::keeps_copies(const Group& group, int device) const {
  const bool has_one_memory = machine_.budget.devices[static_cast<std::size_t>(device)].coherent;
  if (has_one_memory || blocks_.is_planned(device)) return false;
  switch (group.figures.settings.copies) {
    case GroupCopies::kKept:
      return true;
    case GroupCopies::kNone:
      return false;
    case GroupCopies::kAuto:
      return machine_.device(device).capabilities.finds_pages && !group.writes_much;
  }
  return false;
}

std::size_t GroupRegistry::wake(GroupNumber number, const DeviceStream& stream, bool lazily) {
  const WorkRange range("wake");
  machine_.require_device();
  machine_.check_device(stream.device);
  const std::lock_guard lock(mutex_);
  Group& group = at(number);
  require_no_capture(group, "wake", stream);
  const GroupState before = group.figures.state;
  group.figures.state = GroupState::kAwake;
  group.woken_at = ++wakes_;
  ++group.figures.wakes;
  machine_.trace.mark(fmt::format("group {}: awake", group.name));
  if (lazily) return 0;
  const std::vector<PageSpan> pages = first_pages(blocks_.memory_of(number).pages[stream.device],
                                                  group.figures.settings.limit_bytes / kPageBytes);
  if (before == GroupState::kAwake) blocks_.find_evicted(pages, stream.device);
  const std::size_t missing =
      bytes_of(pages) - bytes_on(stream.device, pages,
                                 [this](const PageSpan& each) { return blocks_.places_of(each); });
  if (missing == 0) return 0;
  make_room(group, missing, stream);
  const std::vector<PageSpan> coming =
      blocks_.is_planned(stream.device)
          ? pages
          : first_missing(blocks_, pages, Place::device(stream.device),
                          blocks_.room_bytes(stream) / kPageBytes);
  const bool keeps = before != GroupState::kDiscarded && keeps_copies(group, stream.device);
  if (!keeps || group.copies_device != stream.device) end_copies(group, std::vector(group.copied));
  // Part by part, so that the advice for one part is given while the part before is copied.
  std::size_t sent = 0;
  for (const std::vector<PageSpan>& part : parts_of(coming, policy::kAdvisedPages)) {
    if (keeps) {
      blocks_.advise(pages_without(part, group.copied),
                     {.preferred = Place::host(), .read_mostly = true}, stream.device);
    }
    sent += blocks_.come(part, stream);
  }
  if (keeps) {
    group.copied = all_pages(group.copied, coming);
    group.copies_device = stream.device;
  }
  return sent;
}

// Cached memory goes first. Then groups that may leave do so, the least important one first, until
// there is room.
void GroupRegistry::make_room(const Group& group, std::size_t bytes, const DeviceStream& stream) {
  if (blocks_.room_bytes(stream) >= bytes) return;
  reclaimer_.release_cached_of(Facade::kDevice);
  std::vector<Group*> others;
  for (const auto& each : groups_) {
    const GroupSettings& settings = each->figures.settings;
    if (each.get() != &group && each->figures.state == GroupState::kAwake && !settings.pinned &&
        settings.priority <= group.figures.settings.priority)
      others.push_back(each.get());
  }
  std::ranges::sort(others, {}, [](const Group* each) {
    return std::pair(each->figures.settings.priority, each->woken_at);
  });
  for (Group* other : others) {
    if (blocks_.room_bytes(stream) >= bytes) return;
    const std::vector<PageSpan> pages = blocks_.memory_of(other->number).pages[stream.device];
    if (most_bytes_on(pages, stream.device) == 0) continue;
    put_to_sleep(*other, stream, false);
  }
}

}  // namespace uvm
