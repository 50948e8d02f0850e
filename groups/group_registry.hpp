// The groups of one allocator (uvmalloc/groups.hpp). The allocator knows only the numbers and pages
// of groups (BlockGroups). This class owns names and settings, and decides in which order groups
// sleep and wake.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/groups.hpp>
#include "allocator/engine/engine.hpp"
#include "allocator/group_settings.hpp"
#include "groups/file_pages.hpp"
#include "groups/memory_watch.hpp"
#include "hints/watch_thread.hpp"

namespace uvm {

class GroupRegistry final : public Groups, public BlockGroups::Owner {
 public:
  // If `watches` is false, there is no thread for idle groups.
  explicit GroupRegistry(Engine& engine, bool watches = true, ReadMemory read = read_host_memory);
  ~GroupRegistry() override;

  GroupNumber open(std::string_view name) override;
  std::vector<std::string> names() const override;
  void* allocate(GroupNumber group, Facade facade, std::size_t size_bytes,
                 const DeviceStream& stream) override;
  bool add(GroupNumber group, const void* address) override;
  bool remove(const void* address) override;
  void set(GroupNumber group, const GroupSettings& settings) override;
  GroupFigures figures(GroupNumber group) const override;
  std::size_t sleep(GroupNumber group, const DeviceStream& stream, bool discard) override;
  std::size_t wake(GroupNumber group, const DeviceStream& stream, bool lazily) override;
  std::size_t note_file(const void* address, std::size_t size_bytes, int descriptor,
                        const std::string& path, std::int64_t changed_ns) override;

  // Puts groups to sleep that nothing has used for their idle times, and, while the host's memory
  // is short, idle groups that have a file. Returns the time until the next look. Called by the
  // thread for idle groups.
  std::chrono::nanoseconds look_for_idle_groups();

  // ---- BlockGroups::Owner
  void block_freed(GroupNumber group, const char* address,
                   std::size_t size_bytes) noexcept override;
  std::vector<GroupFigures> all_figures() const override;
  void group_used(GroupNumber group, const PageSpan& pages,
                  const DeviceStream& stream) noexcept override;
  void groups_unused() noexcept override;

 private:
  struct Group {
    std::string name;
    GroupNumber number{};
    GroupFigures figures;        // without the figures of its memory
    std::uint64_t woken_at = 0;  // the number of this wake among all wakes
    // Pages whose bytes the host keeps while they are on `copies_device`, until a write.
    std::vector<PageSpan> copied;
    int copies_device = 0;
    bool writes_much = false;  // as found at the last sleep
    std::chrono::nanoseconds used_at{0};
    std::vector<PageSpan> order;  // pages in the order of their first use by kernels
    std::size_t repeats = 0;      // uses of pages that are in `order`, while it is learned
    bool learns = false;
    bool comes = false;  // pages may be in flight for which no stream waits yet
    FilePages in_file;
  };
  enum class Sleep : std::uint8_t { kOnHost, kDeepest, kDiscarded };
  class Unused;

  GroupFigures figures_of(const Group& group) const;
  void note_use(Group& group) { group.used_at = machine_.runtime.now(); }
  void store_figures(const Group& group);
  void learn(Group& group, const PageSpan& pages);
  std::vector<PageSpan> in_order(Group& group, const std::vector<PageSpan>& pages);
  void want_uses();
  void note_missed_uses();
  void watch_idle_groups();
  bool has_own_memory(int device) const {
    return machine_.budget.devices[static_cast<std::size_t>(device)].has_own_memory;
  }
  bool is_awake_on(const Group& group, const GroupMemory& memory, int device,
                   const std::vector<PageSpan>& pages) const;
  static std::vector<PageSpan> missing_in_file(const Group& group, const GroupMemory& memory,
                                               const std::vector<PageSpan>& pages);
  std::chrono::nanoseconds look_at_memory(std::chrono::nanoseconds now);
  void spill_idle_groups(std::chrono::nanoseconds now);
  bool spill(Group& group);
  template <class Wanted>
  bool put_idle_to_sleep(Group& group, const GroupMemory& memory, Wanted wanted);
  Group& at(GroupNumber number);
  const Group& at(GroupNumber number) const;
  void require_no_capture(const Group& group, const char* what, const DeviceStream& stream) const;
  std::size_t most_bytes_on(const std::vector<PageSpan>& pages, int device) const;
  void require_file(const Group& group, const std::string& folder) const;
  void wait_for_device(const Group& group, const DeviceStream& stream, const char* what) const;
  std::size_t put_to_sleep(Group& group, const DeviceStream& stream, Sleep how);
  std::size_t put_in_file(Group& group, const std::vector<PageSpan>& pages,
                          const DeviceStream& stream);
  std::size_t take_from_file(Group& group, const std::vector<PageSpan>& pages,
                             const DeviceStream& stream);
  void settle_files(Group& group);
  std::size_t drop_copies(Group& group, const std::vector<PageSpan>& pages);
  void end_copies(Group& group, const std::vector<PageSpan>& pages);
  void make_room(const Group& group, std::size_t bytes, const DeviceStream& stream);
  void make_pages_leave(Group& group, const std::vector<PageSpan>& pages, std::size_t left,
                        const DeviceStream& stream);
  bool keeps_copies(const Group& group, int device) const;

  Engine& engine_;
  Machine& machine_;
  Reclaimer& reclaimer_;
  BlockGroups& blocks_;
  const sharing::DeviceSharing& sharing_;
  const bool watches_;
  const std::vector<NamedGroupSettings> configured_;
  mutable std::mutex mutex_;  // guards the members below; held across driver calls
  std::vector<std::unique_ptr<Group>> groups_;  // group n is at index n - 1
  bool idle_groups_want_uses_ = false;
  // The group whose file is written or read: a kernel that would use it waits for `mutex_`, others
  // do not.
  std::atomic<GroupNumber> busy_with_file_{kNoGroup};
  std::uint64_t wakes_ = 0;
  MemoryWatch memory_;
  std::optional<std::chrono::nanoseconds> near_since_;  // the memory is nearly short or short
  WatchThread watch_;
  std::mutex missed_mutex_;               // guards the member below; taken last
  std::vector<GroupNumber> missed_uses_;  // while `mutex_` was held for a file
};

}  // namespace uvm
