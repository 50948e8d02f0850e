#include "groups/group_registry.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "allocator/spans/host_backing.hpp"
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

GroupNumber Groups::default_of(CachingManagedAllocator& allocator) {
  if (!names_group(allocator.engine().machine.configuration.groups, kDefaultGroup)) return kNoGroup;
  try {
    return of(allocator)->open(kDefaultGroup);
  } catch (const std::exception& error) {
    log_once(LogLevel::kError, "the default group",
             fmt::format("{}; there is no such group", error.what()));
    return kNoGroup;
  }
}

GroupRegistry::GroupRegistry(Engine& engine, bool watches, ReadMemory read)
    : engine_(engine),
      machine_(engine.machine),
      reclaimer_(engine.reclaimer),
      blocks_(engine.groups),
      sharing_(engine.device_sharing),
      watches_(watches),
      configured_(
          parse_groups(machine_.configuration.groups).value_or(std::vector<NamedGroupSettings>{})),
      memory_(std::move(read)),
      watch_("uvmalloc-groups", [this] { return look_for_idle_groups(); }) {}

GroupRegistry::~GroupRegistry() {
  if (machine_.in_forked_child()) watch_.abandon();
}

GroupNumber GroupRegistry::open(std::string_view name) {
  if (!is_group_name(name)) {
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
  const auto configured = std::ranges::find(configured_, name, &NamedGroupSettings::name);
  if (configured != configured_.end()) {
    group->figures.settings = configured->settings;
    try {
      require_file(*group, configured->settings.file);
    } catch (const std::invalid_argument& error) {
      if (name != kDefaultGroup) throw;  // the program does not know that group
      log_once(LogLevel::kError, "the default group",
               fmt::format("{}; it sleeps on the host instead", error.what()));
      group->figures.settings.file.clear();
    }
  }
  note_use(*group);
  groups_.push_back(std::move(group));
  store_figures(*groups_.back());
  watch_idle_groups();
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

// Memory of a group with a file is in a pool of its own, so that it shares pages with no other
// memory.
void* GroupRegistry::allocate(GroupNumber number, Facade facade, std::size_t size_bytes,
                              const DeviceStream& stream) {
  machine_.require_device();
  machine_.check_device(stream.device);
  bool has_file = false;
  {
    const std::lock_guard lock(mutex_);
    Group& group = at(number);
    note_use(group);
    has_file = !group.figures.settings.file.empty();
  }
  const bool may_spill = has_file && facade != Facade::kPinned;
  const std::uint64_t pool =
      may_spill ? StreamKey::ordinary_pool(static_cast<std::uint32_t>(number)) : 0;
  void* address = engine_.allocate_in(pool, facade, stream.device, size_bytes, stream.handle);
  try {
    if (address != nullptr) blocks_.put(address, number);
  } catch (const std::bad_alloc&) {
    engine_.free_slow(address, nullptr);
    throw;
  }
  return address;
}

bool GroupRegistry::add(GroupNumber group, const void* address) {
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  note_use(at(group));
  const GroupNumber before = blocks_.group_of(address);
  const bool is_put = blocks_.put(address, at(group).number);
  if (before != kNoGroup && before != group) settle_files(at(before));
  return is_put;
}

bool GroupRegistry::remove(const void* address) {
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  const GroupNumber group = blocks_.group_of(address);
  if (group != kNoGroup) end_copies(at(group), std::vector(at(group).copied));
  const bool is_put = blocks_.put(address, kNoGroup);
  if (group != kNoGroup) settle_files(at(group));
  return is_put;
}

// Throws if groups cannot sleep in files of the folder.
void GroupRegistry::require_file(const Group& group, const std::string& folder) const {
  if (folder.empty()) return;
  for (std::size_t index = 0; index < machine_.devices.size(); ++index) {
    const DeviceDescription& device = machine_.devices[index];
    if (device.capabilities.pageable_memory_access) continue;
    throw std::invalid_argument(fmt::format(
        "group \"{}\": it cannot sleep in a file, because device {} ({}) does not reach ordinary "
        "memory (pageable memory access)",
        group.name, index, device.name));
  }
  try {
    SleepFile{folder};
  } catch (const FileError& error) {
    throw std::invalid_argument(fmt::format("group \"{}\": {}", group.name, error.what()));
  }
}

void GroupRegistry::set(GroupNumber group, const GroupSettings& settings) {
  if (settings.limit_bytes < kPageBytes) {
    throw std::invalid_argument(fmt::format(
        "group: the limit is {} bytes; accepted: 2 MiB at least", settings.limit_bytes));
  }
  if (settings.idle.count() < 0 ||
      settings.idle > std::chrono::duration<double>(kMostIdleSeconds)) {
    throw std::invalid_argument(fmt::format("group: the idle time is {} ns; accepted: 0 to {} s",
                                            settings.idle.count(), kMostIdleSeconds));
  }
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  if (settings.file != at(group).figures.settings.file) require_file(at(group), settings.file);
  at(group).figures.settings = settings;
  note_use(at(group));
  watch_idle_groups();
}

GroupFigures GroupRegistry::figures(GroupNumber number) const {
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  return figures_of(at(number));
}

GroupFigures GroupRegistry::figures_of(const Group& group) const {
  GroupFigures figures = group.figures;
  const GroupMemory memory = blocks_.memory_of(group.number);
  figures.blocks = memory.blocks;
  figures.bytes = memory.bytes;
  const std::vector<PageSpan> in_file = group.in_file.pages();
  for (const auto& [device, pages] : memory.pages) {
    figures.page_bytes += bytes_of(pages);
    figures.file_bytes += bytes_of(common_pages(pages, in_file));
    figures.devices.push_back(device);
    for (const PageSpan& each : pages_without(pages, in_file)) {
      for (const Place place : blocks_.places_of(each)) {
        if (place.is_device()) figures.device_bytes += kPageBytes;
        if (place.is_host() || !has_own_memory(device)) figures.host_bytes += kPageBytes;
      }
    }
  }
  figures.spill_bytes = bytes_of(memory.ordinary);
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

// `uvmalloc top` reads these figures in the mapped file.
void GroupRegistry::store_figures(const Group& group) {
  const std::size_t index = static_cast<std::size_t>(group.number) - 1;
  if (index >= kGroupLines) return;
  GroupLine& line = machine_.figure_store.groups()[index];
  const GroupFigures figures = figures_of(group);
  line.page_bytes = figures.page_bytes;
  line.device_bytes = figures.device_bytes;
  line.file_bytes = figures.file_bytes;
  line.state = static_cast<std::uint8_t>(figures.state);
  line.sleeps = figures.sleeps;
  line.wakes = figures.wakes;
  if (line.is_used) return;
  std::ranges::copy(group.name, line.name.begin());
  line.is_used.store(true, std::memory_order_release);
}

void GroupRegistry::require_no_capture(const Group& group, const char* what,
                                       const DeviceStream& stream) const {
  bool is_captured = HeapState::is_capturing();
  if (!is_captured) {
    const RuntimeStatus status =
        machine_.runtime.is_capturing(stream.device, stream.handle, &is_captured);
    if (!status.ok() && status.error != RuntimeError::kCapture) {
      throw std::invalid_argument(
          fmt::format("group \"{}\": it cannot {}, because the state of the stream is unknown: {}",
                      group.name, what, status.text()));
    }
    is_captured |= !status.ok();
  }
  if (!is_captured) return;
  throw std::logic_error(
      fmt::format("group \"{}\": it cannot {} while a stream is being captured", group.name, what));
}

// Also counts pages that kernels have brought back, and pages whose eviction is in flight.
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
  note_use(group);
  return put_to_sleep(group, stream, discard ? Sleep::kDiscarded : Sleep::kDeepest);
}

// While this object exists, kernels that are reported do not begin to use the group.
class GroupRegistry::Unused {
 public:
  Unused(GroupRegistry& owner, const Group& group) : owner_(owner) {
    owner_.busy_with_file_ = group.number;
    owner_.want_uses();
  }
  ~Unused() {
    owner_.busy_with_file_ = kNoGroup;
    owner_.want_uses();
  }
  Unused(const Unused&) = delete;
  Unused& operator=(const Unused&) = delete;

 private:
  GroupRegistry& owner_;
};

void GroupRegistry::wait_for_device(const Group& group, const DeviceStream& stream,
                                    const char* what) const {
  if (machine_.stream_work.wait_for_device(stream.device)) return;
  throw std::runtime_error(
      fmt::format("group \"{}\": its contents cannot be {}, because device {} cannot be waited for",
                  group.name, what, stream.device));
}

std::size_t GroupRegistry::put_to_sleep(Group& group, const DeviceStream& stream, Sleep how) {
  GroupMemory memory = blocks_.memory_of(group.number);
  const std::vector<PageSpan>& pages = memory.pages[stream.device];
  const std::vector<PageSpan> spilling =
      how == Sleep::kOnHost || group.figures.settings.file.empty()
          ? std::vector<PageSpan>{}
          : common_pages(pages, memory.ordinary);
  const std::size_t left = most_bytes_on(pages, stream.device);
  std::size_t written = 0;
  if (how == Sleep::kDiscarded) {
    // A kernel that still runs would make the pages migrate back without their contents.
    wait_for_device(group, stream, "discarded");
    end_copies(group, pages);
    blocks_.discard(pages, stream.device);
    group.in_file.drop(pages);
    for (const PageSpan& each : spilling)
      (void)drop_ordinary(start_of_page(each.first), each.count * kPageBytes);
  } else if (!spilling.empty()) {
    written = put_in_file(group, spilling, stream);
  }
  make_pages_leave(group, pages_without(pages, group.in_file.pages()), left, stream);
  group.learns = group.comes = false;
  want_uses();
  group.figures.state = how == Sleep::kDiscarded         ? GroupState::kDiscarded
                        : !group.in_file.pages().empty() ? GroupState::kInFile
                                                         : GroupState::kAsleep;
  ++group.figures.sleeps;
  machine_.trace.mark(fmt::format("group {}: {}", group.name, to_string(group.figures.state)));
  store_figures(group);
  sharing_.publish(stream.device);
  return std::max(left, written);
}

// Pages on the device move to the host first, and move back after an error. Returns the bytes that
// were written.
std::size_t GroupRegistry::put_in_file(Group& group, const std::vector<PageSpan>& pages,
                                       const DeviceStream& stream) {
  std::vector<PageSpan> leaving;
  const auto make_ready = [&] {
    end_copies(group, pages);
    for (const PageSpan& each : pages) {
      uvm::each_run(
          each, blocks_.real_places_of(each, stream.device),
          [&](Place place) { return place == Place::device(stream.device); },
          [&](const PageSpan& run) { leaving.push_back(run); });
    }
    blocks_.leave(leaving, stream);
    wait_for_device(group, stream, "written to a file");
  };
  const auto settle = [&] { wait_for_device(group, stream, "written to a file"); };
  const Unused unused(*this, group);
  try {
    return group.in_file.put(pages, group.figures.settings.file, make_ready, settle);
  } catch (const std::exception& error) {
    blocks_.come(leaving, stream);
    store_figures(group);
    throw std::runtime_error(
        fmt::format("group \"{}\": it cannot sleep in a file: {}", group.name, error.what()));
  }
}

// Afterwards the pages are on the host. Returns the bytes that were in the file.
std::size_t GroupRegistry::take_from_file(Group& group, const std::vector<PageSpan>& pages,
                                          const DeviceStream& stream) {
  const std::vector<PageSpan> in_file = common_pages(group.in_file.pages(), pages);
  if (in_file.empty()) return 0;
  const Unused unused(*this, group);
  wait_for_device(group, stream, "read from its file");
  try {
    group.in_file.take_back(in_file);
  } catch (const FileError& error) {
    blocks_.note_on_host(pages_without(in_file, group.in_file.pages()));
    throw std::runtime_error(fmt::format("group \"{}\": {}", group.name, error.what()));
  }
  blocks_.note_on_host(in_file);
  return bytes_of(in_file);
}

std::size_t GroupRegistry::note_file(const void* address, std::size_t size_bytes, int descriptor,
                                     const std::string& path, std::int64_t changed_ns) {
  machine_.require_device();
  const std::lock_guard lock(mutex_);
  const GroupNumber number = blocks_.group_of(address);
  const auto* const begin = static_cast<const char*>(address);
  if (number == kNoGroup || address_of(begin) % host_page_bytes() != 0) return 0;
  Group& group = at(number);
  if (group.figures.settings.file.empty()) return 0;
  const GroupMemory memory = blocks_.memory_of(number);
  std::size_t noted = 0;
  for (const PageSpan& each : common_pages({pages_inside(begin, size_bytes)}, memory.ordinary)) {
    const auto offset = static_cast<std::size_t>(start_of_page(each.first) - begin);
    group.in_file.note_file(
        each, std::make_shared<SleepFile>(descriptor, path, changed_ns, offset, each));
    noted += each.count * kPageBytes;
  }
  return noted;
}

// Pages of other memory leave the group's files.
void GroupRegistry::settle_files(Group& group) {
  if (group.in_file.empty()) return;
  std::vector<PageSpan> others{{PageNumber{}, page_of(UINTPTR_MAX) - PageNumber{}}};
  for (const auto& [device, pages] : blocks_.memory_of(group.number).pages)
    others = pages_without(others, pages);
  try {
    group.in_file.take_back(others);
    group.in_file.forget(others);
  } catch (const FileError& error) {
    group.in_file.forget(others);
    log(LogLevel::kWarning, "group \"{}\": pages that left it stay mapped to its file: {}",
        group.name, error.what());
  }
}

// `left` is the size of those pages that are on the device.
void GroupRegistry::make_pages_leave(Group& group, const std::vector<PageSpan>& pages,
                                     std::size_t left, const DeviceStream& stream) {
  std::size_t kept = 0;
  if (!common_pages(group.copied, pages).empty() && group.copies_device == stream.device) {
    (void)machine_.runtime.synchronize_stream(stream.device, stream.handle);
    kept = std::min(drop_copies(group, pages), left);
  }
  // The driver does not copy pages that are already on the host.
  blocks_.leave(pages, stream);
  group.figures.kept_bytes += kept;
  group.figures.left_bytes += left - kept;
}

// Ends the copies of the group's pages. Pages that the program has written to are ordinary pages
// then. The preferred place of the other pages is the host, so they are evicted when their copies
// end. Afterwards these pages get the same advice again, so that waking needs only a prefetch.
// Returns the evicted bytes.
std::size_t GroupRegistry::drop_copies(Group& group, const std::vector<PageSpan>& pages) {
  const std::vector<PageSpan> copied = common_pages(group.copied, pages);
  const int device = group.copies_device;
  blocks_.advise(copied, {.read_mostly = false}, device);
  const std::vector<PageSpan> written = written_pages(blocks_, copied, device);
  group.writes_much = bytes_of(written) > bytes_of(copied) / policy::kWrittenParts;
  blocks_.advise(written, {.preferred = Place::device(device)}, device);
  const std::vector<PageSpan> kept = pages_without(copied, written);
  blocks_.advise(kept, {.read_mostly = true}, device);
  group.copied = pages_without(group.copied, written);
  return bytes_of(kept);
}

// Makes these pages of the group ordinary pages again, which migrate when a kernel touches them.
void GroupRegistry::end_copies(Group& group, const std::vector<PageSpan>& pages) {
  const std::vector<PageSpan> ended = common_pages(group.copied, pages);
  const Place device = Place::device(group.copies_device);
  blocks_.advise(ended, {.preferred = device, .read_mostly = false}, group.copies_device);
  group.copied = pages_without(group.copied, pages);
}

// The next user of the pages must not inherit the advice.
void GroupRegistry::block_freed(GroupNumber number, const char* address,
                                std::size_t size_bytes) noexcept {
  if (machine_.in_forked_child()) return;
  try {
    const std::lock_guard lock(mutex_);
    Group& group = at(number);
    if (!group.copied.empty()) end_copies(group, {pages_touched(address, size_bytes)});
    if (!group.in_file.empty()) {
      group.in_file.drop({pages_inside(address, size_bytes)});
      settle_files(group);
    }
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "pages of a freed block keep copies on the host: {}", error.what());
  }
}

// ---- waking

// If it is unknown how much of the group is written to, copies are kept once to find out. That is
// possible only if the driver reports where pages are.
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
  std::vector<PageSpan> pages;
  std::size_t read = 0;
  if (!lazily) {
    pages = first_pages(in_order(group, blocks_.memory_of(number).pages[stream.device]),
                        group.figures.settings.limit_bytes / kPageBytes);
    read = take_from_file(group, pages, stream);
  }
  group.figures.state = GroupState::kAwake;
  group.woken_at = ++wakes_;
  note_use(group);
  ++group.figures.wakes;
  machine_.trace.mark(fmt::format("group {}: awake", group.name));
  store_figures(group);
  if (lazily) return 0;
  want_uses();
  if (before == GroupState::kAwake) blocks_.find_evicted(pages, stream.device);
  const std::size_t missing =
      bytes_of(pages) - bytes_on(stream.device, pages,
                                 [this](const PageSpan& each) { return blocks_.places_of(each); });
  if (missing == 0) return read;
  make_room(group, missing, stream);
  const std::vector<PageSpan> coming =
      blocks_.is_planned(stream.device)
          ? pages
          : first_missing(blocks_, pages, Place::device(stream.device),
                          blocks_.room_bytes(stream) / kPageBytes);
  const bool keeps = before != GroupState::kDiscarded && keeps_copies(group, stream.device);
  if (!keeps || group.copies_device != stream.device) end_copies(group, std::vector(group.copied));
  // Prefetch in parts, so that one part is advised while the previous part is copied. If the order
  // of use is known, kernels wait only for the pages that they use.
  group.comes = !group.learns && !machine_.device(stream.device).capabilities.prefetch_blocks;
  want_uses();
  std::size_t sent = 0;
  for (const std::vector<PageSpan>& part : parts_of(coming, policy::kAdvisedPages)) {
    if (keeps) {
      blocks_.advise(pages_without(part, group.copied),
                     {.preferred = Place::host(), .read_mostly = true}, stream.device);
    }
    sent += blocks_.come(part, stream, !group.comes);
  }
  if (keeps) {
    group.copied = all_pages(group.copied, coming);
    group.copies_device = stream.device;
  }
  store_figures(group);
  return std::max(sent, read);
}

// Gives cached memory back first. Then evicts other groups down to their floors, the least
// important group first, until there is room. Also evicts a sleeping group if kernels have brought
// its pages back.
void GroupRegistry::make_room(const Group& group, std::size_t bytes, const DeviceStream& stream) {
  if (blocks_.room_bytes(stream) >= bytes) return;
  reclaimer_.release_cached_of(Facade::kDevice);
  std::vector<Group*> others;
  for (const auto& each : groups_) {
    const GroupSettings& settings = each->figures.settings;
    if (each.get() != &group && !settings.pinned &&
        settings.priority <= group.figures.settings.priority)
      others.push_back(each.get());
  }
  std::ranges::sort(others, {}, [](const Group* each) {
    return std::pair(each->figures.settings.priority, each->woken_at);
  });
  for (Group* other : others) {
    if (blocks_.room_bytes(stream) >= bytes) return;
    const std::vector<PageSpan> pages = blocks_.memory_of(other->number).pages[stream.device];
    const std::size_t staying = other->figures.settings.floor_bytes / kPageBytes;
    const std::vector<PageSpan> leaving = pages_beyond(
        staying, pages, Place::device(stream.device),
        [&](const PageSpan& each) { return blocks_.real_places_of(each, stream.device); });
    if (leaving.empty()) continue;
    if (other->figures.state == GroupState::kAwake && staying == 0) {
      put_to_sleep(*other, stream, Sleep::kOnHost);
    } else {
      make_pages_leave(*other, leaving, most_bytes_on(leaving, stream.device), stream);
    }
  }
}

// ---- idle groups

void GroupRegistry::watch_idle_groups() {
  if (!watches_) return;
  watch_.set_wanted(std::ranges::any_of(groups_, [](const auto& each) {
    const GroupSettings& settings = each->figures.settings;
    return settings.idle.count() != 0 || !settings.file.empty();
  }));
}

void GroupRegistry::group_used(GroupNumber number, const PageSpan& pages,
                               const DeviceStream& stream) noexcept {
  try {
    std::unique_lock lock(mutex_, std::defer_lock);
    const GroupNumber busy = busy_with_file_.load();
    if (busy == kNoGroup || busy == number) {
      lock.lock();
    } else if (!lock.try_lock()) {
      // Its pages that are still in flight cause faults.
      const std::lock_guard missed(missed_mutex_);
      if (std::ranges::find(missed_uses_, number) == missed_uses_.end())
        missed_uses_.push_back(number);
      return;
    }
    Group& group = at(number);
    note_use(group);
    if (group.comes) group.comes = blocks_.wait_for(pages, stream);
    if (group.learns) learn(group, pages);
    want_uses();
  } catch (const std::exception& error) {
    log_once(LogLevel::kWarning, "uses of groups",
             fmt::format("a use of a group is not noted: {}", error.what()));
  }
}

void GroupRegistry::note_missed_uses() {
  const std::lock_guard missed(missed_mutex_);
  for (const GroupNumber each : missed_uses_) note_use(at(each));
  missed_uses_.clear();
}

void GroupRegistry::groups_unused() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // they may be used again
  for (const auto& each : groups_) each->learns = each->comes = false;
  want_uses();
}

// ---- the order of first use

// Learning ends when kernels mostly use known pages, because then most pages have been seen.
void GroupRegistry::learn(Group& group, const PageSpan& pages) {
  const std::vector<PageSpan> unknown = pages_without({pages}, group.order);
  if (unknown.empty()) {
    group.learns = ++group.repeats <= policy::kRepeatedUses * (group.order.size() + 1);
    return;
  }
  for (const PageSpan& each : unknown) append(&group.order, each);
}

// Returns the pages in the order in which kernels used them after an earlier wake; pages without a
// known order come last. Learns the order again if many pages are unknown.
std::vector<PageSpan> GroupRegistry::in_order(Group& group, const std::vector<PageSpan>& pages) {
  std::vector<PageSpan> unknown = pages_without(pages, group.order);
  group.learns = bytes_of(unknown) > bytes_of(pages) / policy::kUnknownParts;
  if (group.learns) {
    group.order.clear();
    group.repeats = 0;
    return pages;
  }
  std::vector<PageSpan> ordered;
  for (const PageSpan& each : group.order) {
    for (const PageSpan& known : common_pages({each}, pages)) ordered.push_back(known);
  }
  ordered.insert(ordered.end(), unknown.begin(), unknown.end());
  return ordered;
}

void GroupRegistry::want_uses() {
  blocks_.want_uses(
      idle_groups_want_uses_ || busy_with_file_ != kNoGroup || near_since_ ||
      std::ranges::any_of(groups_, [](const auto& each) { return each->learns || each->comes; }));
}

// Kernels are reported only in the second half of the idle time of a group with pages on a device.
// So a program whose groups are in use is rarely observed.
std::chrono::nanoseconds GroupRegistry::look_for_idle_groups() {
  if (machine_.in_forked_child() || HeapState::is_capturing()) return policy::kIdleRetry;
  std::chrono::nanoseconds next = policy::kLongestIdleLook;
  bool wants_uses = false;
  const std::lock_guard lock(mutex_);
  note_missed_uses();
  const std::chrono::nanoseconds now = machine_.runtime.now();
  for (const auto& group : groups_) {
    const std::chrono::nanoseconds idle = group->figures.settings.idle;
    if (idle.count() == 0) continue;
    if (now - group->used_at >= idle / 2) {
      try {
        const GroupMemory memory = blocks_.memory_of(group->number);
        const auto is_awake = [&](const auto& of_device) {
          return is_awake_on(*group, memory, of_device.first, of_device.second);
        };
        if (std::ranges::none_of(memory.pages, is_awake)) {
          group->used_at = now;
        } else if (now - group->used_at >= idle) {
          (void)put_idle_to_sleep(*group, memory, is_awake);
          group->used_at = now;
        } else {
          wants_uses = true;
          next = std::min(next, group->used_at + idle - now);
          continue;
        }
      } catch (const std::exception& error) {
        group->used_at = now;
        log_once(LogLevel::kWarning, "idle groups",
                 fmt::format("group \"{}\" does not sleep though it is idle: {}", group->name,
                             error.what()));
      }
    }
    next = std::min(next, group->used_at + idle / 2 - now);
  }
  idle_groups_want_uses_ = wants_uses;
  const bool may_spill = std::ranges::any_of(
      groups_, [](const auto& each) { return !each->figures.settings.file.empty(); });
  if (may_spill) {
    next = std::min(next, look_at_memory(now));
  } else {
    near_since_.reset();
  }
  want_uses();
  return std::max(next, policy::kShortestIdleLook);
}

bool GroupRegistry::is_awake_on(const Group& group, const GroupMemory& memory, int device,
                                const std::vector<PageSpan>& pages) const {
  return (has_own_memory(device) && most_bytes_on(pages, device) != 0) ||
         !missing_in_file(group, memory, pages).empty();
}

// Returns those of the pages that can be in the group's file, and are not.
std::vector<PageSpan> GroupRegistry::missing_in_file(const Group& group, const GroupMemory& memory,
                                                     const std::vector<PageSpan>& pages) {
  if (group.figures.settings.file.empty()) return {};
  return pages_without(common_pages(pages, memory.ordinary), group.in_file.pages());
}

// Puts the group to sleep on the devices for which `wanted({device, pages})` is true. Returns
// whether there were any. The eviction is ordered after uvmalloc's own work, because a stream of
// the program may no longer exist.
template <class Wanted>
bool GroupRegistry::put_idle_to_sleep(Group& group, const GroupMemory& memory, Wanted wanted) {
  bool any = false;
  for (const auto& of_device : memory.pages) {
    if (!wanted(of_device)) continue;
    const int device = of_device.first;
    const DeviceStream lane{device, machine_.sender.lane(device)};
    if (lane.handle == nullptr) continue;
    put_to_sleep(group, lane, Sleep::kDeepest);
    ++group.figures.idle_sleeps;
    any = true;
  }
  return any;
}

// ---- short memory of the host

// Uses are observed only while the memory is nearly short. Returns the time until the next look.
std::chrono::nanoseconds GroupRegistry::look_at_memory(std::chrono::nanoseconds now) {
  const Shortage shortage = memory_.look(now);
  if (shortage == Shortage::kNone) {
    near_since_.reset();
    return policy::kMemoryLook;
  }
  if (!near_since_) near_since_ = now;
  if (shortage == Shortage::kShort) spill_idle_groups(now);
  return policy::kNearMemoryLook;
}

// Puts groups in their files until the memory is no longer short: the least important group first,
// and of groups with equal priority the one that was unused for longest.
void GroupRegistry::spill_idle_groups(std::chrono::nanoseconds now) {
  std::vector<Group*> spilling;
  for (const auto& each : groups_) {
    const GroupSettings& settings = each->figures.settings;
    if (!settings.file.empty() && !settings.pinned) spilling.push_back(each.get());
  }
  std::ranges::sort(spilling, {}, [](const Group* each) {
    return std::pair(each->figures.settings.priority, each->used_at);
  });
  for (Group* each : spilling) {
    note_missed_uses();  // while the one before was written
    if (now - std::max(each->used_at, *near_since_) < policy::kUnusedWhenShort) continue;
    try {
      if (spill(*each) && memory_.look(now) != Shortage::kShort) return;
    } catch (const std::exception& error) {
      each->used_at = now;
      log_once(LogLevel::kWarning, "short memory",
               fmt::format("memory is short, and a group that is idle takes it: {}", error.what()));
    }
  }
}

// Puts the group's pages in its file, if they take memory of the host. Returns whether there were
// any.
bool GroupRegistry::spill(Group& group) {
  const GroupMemory memory = blocks_.memory_of(group.number);
  return put_idle_to_sleep(group, memory, [&](const auto& of_device) {
    const bool is_on_host =
        !has_own_memory(of_device.first) || group.figures.state != GroupState::kAwake;
    return is_on_host && !missing_in_file(group, memory, of_device.second).empty();
  });
}

}  // namespace uvm
