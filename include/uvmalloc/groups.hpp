// Groups: named sets of blocks that sleep, wake and are described as a whole, such as the weights
// of one of several models on a card. A sleeping group keeps its addresses and its contents; only
// its pages are evicted from the device. If a kernel or the host touches a sleeping group, it reads
// the correct bytes, and the touched pages migrate back.
//
// A group moves the 2 MiB pages in which all live bytes belong to the group. Pages that the group
// shares with other memory stay where they are. So do blocks up to 4 KiB, whose pages serve many
// blocks, and blocks that the host uses.
//
// Thread-safe: operations of one allocator's groups run one after the other. Functions throw
// std::invalid_argument if the group does not exist, std::out_of_range if the device does not
// exist, and std::runtime_error in a forked child. Do not call a function while you hold a lock of
// the allocator.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/facade.hpp>
#include <uvmalloc/place.hpp>

namespace uvm {

class CachingManagedAllocator;
enum class GroupNumber : std::uint32_t;

enum class GroupState : std::uint8_t {
  kAwake,
  kAsleep,
  kDiscarded,  // asleep, and its contents were discarded
  kInFile,     // asleep, and the pages that can be in a file are in it
};
const char* to_string(GroupState state);

// Whether the host keeps the bytes of a group's pages while the group is awake. Then pages that
// were only read are evicted without a copy when the group sleeps again. A write to a page causes a
// page fault that drops the host's copy, so this page is evicted by a copy.
enum class GroupCopies : std::uint8_t {
  kAuto,  // kept once; kept again if few pages were written to and the driver reports where pages
          // are
  kKept,
  kNone,
};

inline constexpr double kMostIdleSeconds = 1e9;

// If Configuration::groups names this group, it has the program's memory that was allocated for no
// other group and that devices may use.
inline constexpr std::string_view kDefaultGroup = "default";

struct GroupSettings {
  // When another group needs room, groups with a lower priority sleep first; of groups with equal
  // priority, the group that woke first. Groups with a higher priority than the group that needs
  // room stay awake.
  int priority = 0;
  bool pinned = false;  // no other group makes it sleep
  // If another group needs room, at least this many bytes of this group stay on a device. The rest
  // may be evicted.
  std::size_t floor_bytes = 0;
  // The group sleeps if nothing has used it for this long; 0: never. A call for the group counts as
  // a use, and so does a kernel or graph that is reported (kernel_uses.hpp). At most
  // kMostIdleSeconds.
  std::chrono::nanoseconds idle{0};
  // wake() prefetches at most this many bytes to the device. The rest migrates when it is used.
  std::size_t limit_bytes = SIZE_MAX;
  GroupCopies copies = GroupCopies::kAuto;
  // A folder: memory that Groups::allocate() gives the group sleeps in a file there; empty: none.
  std::string file = {};

  friend bool operator==(const GroupSettings&, const GroupSettings&) = default;
};

struct GroupFigures {
  std::string name;
  GroupState state = GroupState::kAwake;
  GroupSettings settings;
  std::size_t blocks = 0;
  std::size_t bytes = 0;         // sum of the requested sizes of its blocks
  std::vector<int> devices;      // devices that use its blocks
  std::size_t page_bytes = 0;    // size of the pages that the group moves
  std::size_t device_bytes = 0;  // part of these on devices, by the records of hints and moves
  std::size_t host_bytes = 0;
  std::size_t spill_bytes = 0;  // part of page_bytes that a file can hold, if the group has one
  std::size_t file_bytes = 0;   // part of page_bytes that is in a file
  std::uint64_t sleeps = 0;
  std::uint64_t wakes = 0;
  // Sum over all sleeps: pages evicted without a copy, because the host had their bytes.
  std::uint64_t kept_bytes = 0;
  std::uint64_t left_bytes = 0;   // sum over all sleeps: other evicted pages
  std::uint64_t idle_sleeps = 0;  // sleeps because nothing used the group
};

class Groups {
 public:
  // Returns the groups of an allocator, which must outlive the returned value.
  static std::shared_ptr<Groups> of(CachingManagedAllocator& allocator);
  // Returns the number of kDefaultGroup, or 0 if Configuration::groups does not name it, or if it
  // cannot exist. Whoever serves a program's requests puts their memory into this group.
  static GroupNumber default_of(CachingManagedAllocator& allocator);
  virtual ~Groups() = default;

  // Makes the group if it does not exist. A name has 1 to 64 characters: letters, digits and
  // "_", "-", ".", "/", ":". A group remains until the process ends, even without blocks.
  virtual GroupNumber open(std::string_view name) = 0;
  virtual std::vector<std::string> names() const = 0;

  // Returns a block of the group, which is freed as any other, for use on `stream`. If the group
  // has a file, the block's pages can be there, unless a private pool of the program serves the
  // request. Throws OutOfMemoryError.
  virtual void* allocate(GroupNumber group, Facade facade, std::size_t size_bytes,
                         const DeviceStream& stream) = 0;
  // Puts the block that holds `address` into the group. A block is in one group at a time, and
  // leaves it when it is freed. Returns false if `address` is in no live block.
  virtual bool add(GroupNumber group, const void* address) = 0;
  // Takes the block out of its group. Returns false if `address` is in no live block.
  virtual bool remove(const void* address) = 0;

  // Throws std::invalid_argument if the limit is below 2 MiB, the idle time is not accepted, or
  // groups cannot sleep in files of that folder. Until then the group has the settings of
  // Configuration::groups.
  virtual void set(GroupNumber group, const GroupSettings& settings) = 0;
  virtual GroupFigures figures(GroupNumber group) const = 0;

  // Moves the group's pages from the device of `stream` to the host, after the current work of
  // `stream`. If work of other streams still uses the pages, the pages migrate back. If the host
  // already has the bytes of pages, these pages are evicted without a copy, and the calling thread
  // waits for the stream's work. Returns the bytes that are evicted.
  //
  // If the group has a file, the calling thread waits for the device, and the pages that can be in
  // a file leave the host too; the returned value counts them. A page that is used is read again.
  // No thread may write to these pages during the call; kernels that KernelUses reports wait.
  // Throws std::runtime_error if the file cannot be written; then the pages stay where they were.
  //
  // With `discard`, the contents are discarded instead, and the calling thread waits for the
  // device. Then nothing may read the group until it has been written to again.
  //
  // Throws std::logic_error while a stream is being captured.
  virtual std::size_t sleep(GroupNumber group, const DeviceStream& stream,
                            bool discard = false) = 0;
  // Moves the group's pages back to the device of `stream`. Later work of the stream waits for
  // these pages. If uvmalloc has learned after an earlier wake in which order kernels use the
  // pages, it prefetches them in that order, and kernels that are reported by KernelUses wait only
  // for their own pages. If there is no room, other groups sleep by their priorities. Pages that
  // still do not fit migrate when they are used. With `lazily`, all pages migrate when they are
  // used. Returns the bytes that are prefetched. Throws std::logic_error while a stream is being
  // captured, and std::runtime_error if pages cannot be read from their file, or have changed
  // there; such pages stay there.
  virtual std::size_t wake(GroupNumber group, const DeviceStream& stream, bool lazily = false) = 0;

  // Notes that the bytes from `address` on were read from the beginning of a file of the program,
  // which the program has open as `descriptor`. `changed_ns` is the time of the file's last change,
  // st_ctim of stat(2), before it was read. While these bytes stay the same, the group sleeps in
  // that file, and no copy is written. The file must not change then: whoever touches the sleeping
  // group reads what the file has; wake() compares checksums. Returns the bytes that can sleep so:
  // whole pages of 2 MiB that belong to a group with a file, 0 if `address` is not at the start of
  // a page of 4 KiB. Throws std::runtime_error if the file cannot be opened or was written to.
  virtual std::size_t note_file(const void* address, std::size_t size_bytes, int descriptor,
                                const std::string& path, std::int64_t changed_ns) = 0;
};

}  // namespace uvm
