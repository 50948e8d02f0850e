#include "hints/sharing/shared_turns.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "hints/policy.hpp"

namespace uvm::sharing {
namespace {

using std::chrono::nanoseconds;

// Part of the file's name. Each layout of the table has its own number, so that versions of
// uvmalloc with different layouts use different files.
constexpr int kLayout = 2;
// Each program locks one byte of the file, and one more byte is the lock of the table.
constexpr off_t kTableByte = kMostPrograms;

bool set_lock(int descriptor, off_t byte, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(descriptor, F_SETLK, &lock) == 0;
}

// A process that closes a file loses all its locks of that file, so it opens each file only once. A
// forked child has none of its parent's locks, so the process is part of the key.
struct OpenFiles {
  std::mutex mutex;
  std::set<std::pair<pid_t, std::string>> paths;
};
OpenFiles& open_files() {
  static auto* const kFiles = new OpenFiles;
  return *kFiles;
}

bool claim(const std::string& path) {
  const std::lock_guard lock(open_files().mutex);
  return open_files().paths.emplace(getpid(), path).second;
}
void disclaim(const std::string& path) {
  const std::lock_guard lock(open_files().mutex);
  open_files().paths.erase({getpid(), path});
}

// Opens the table and returns its descriptor, or -1 with one clause in `*why`.
int open_table(const std::string& path, std::string* why) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  struct stat found {};
  if (descriptor >= 0 && fstat(descriptor, &found) == 0) {
    // In a shared folder another user can give a file of this user a second name.
    const bool is_own = found.st_uid == geteuid();
    if (!is_own || found.st_nlink > 1) {
      *why = fmt::format("{} {}", path, is_own ? "has a second name" : "belongs to another user");
      close(descriptor);
      return -1;
    }
    if (static_cast<std::size_t>(found.st_size) >= sizeof(TurnTable) ||
        ftruncate(descriptor, sizeof(TurnTable)) == 0) {
      return descriptor;
    }
  }
  *why = fmt::format("{}: {}", path, std::strerror(errno));
  if (descriptor >= 0) close(descriptor);
  return -1;
}

}  // namespace

class SharedTurns::TableLock {
 public:
  explicit TableLock(SharedTurns& turns) : turns_(turns), threads_(turns.mutex_) {
    const std::uint64_t last_ns = turns.clock_.now_ns() + policy::kMostTableLockNs;
    nanoseconds nap{1000};
    while (true) {
      is_held_ = set_lock(turns.descriptor_, kTableByte, F_WRLCK);
      const std::uint64_t now = turns.clock_.now_ns();
      if (is_held_ || now > last_ns || turns.is_without_turns(now)) return;
      turns.clock_.sleep(nap);
      nap = std::min(2 * nap, nanoseconds(1'000'000));
    }
  }
  ~TableLock() {
    if (is_held_) set_lock(turns_.descriptor_, kTableByte, F_UNLCK);
  }
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;

  bool is_held() const { return is_held_; }

 private:
  SharedTurns& turns_;
  const std::lock_guard<std::mutex> threads_;
  bool is_held_ = false;
};

std::unique_ptr<SharedTurns> SharedTurns::join(const std::string& folder, const std::string& name,
                                               const TurnRules& rules, std::string* why,
                                               const SharingClock& clock) {
  const std::string path =
      fmt::format("{}/uvmalloc-turns-{}-{}-{}", folder, kLayout, geteuid(), name);
  if (!claim(path)) {
    *why = "another allocator of this process shares it already";
    return nullptr;
  }
  const int descriptor = open_table(path, why);
  void* memory = descriptor < 0 ? MAP_FAILED
                                : mmap(nullptr, sizeof(TurnTable), PROT_READ | PROT_WRITE,
                                       MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    if (descriptor >= 0) {
      *why = fmt::format("{} cannot be mapped: {}", path, std::strerror(errno));
      close(descriptor);
    }
    disclaim(path);
    return nullptr;
  }
  // From here on, the destructor undoes all steps.
  std::unique_ptr<SharedTurns> joined(
      new SharedTurns(path, descriptor, static_cast<TurnTable*>(memory), rules, clock));
  return joined->enter(why) ? std::move(joined) : nullptr;
}

SharedTurns::SharedTurns(std::string path, int descriptor, TurnTable* table, const TurnRules& rules,
                         const SharingClock& clock)
    : path_(std::move(path)),
      descriptor_(descriptor),
      table_(table),
      rules_(rules),
      clock_(clock),
      turns_(*table, rules),
      process_(getpid()) {}

SharedTurns::~SharedTurns() {
  if (getpid() == process_) {
    if (program_ != kMostPrograms) {
      const TableLock lock(*this);
      // Unlock before another program can get this entry of the table, because it locks the entry
      // at once.
      set_lock(descriptor_, static_cast<off_t>(program_), F_UNLCK);
      turns_.leave(program_);
      announce_change();
    }
    disclaim(path_);
  }
  munmap(table_, sizeof(TurnTable));
  close(descriptor_);
}

bool SharedTurns::enter(std::string* why) {
  const TableLock lock(*this);
  if (!lock.is_held()) {
    *why = fmt::format("a program holds the lock of {} and does not release it", path_);
    return false;
  }
  remove_gone_with_lock();
  const auto program = turns_.join();
  if (!program) {
    *why = fmt::format("{} programs share it already, the maximum", kMostPrograms);
    return false;
  }
  if (!set_lock(descriptor_, static_cast<off_t>(*program), F_WRLCK)) {
    *why = fmt::format("{} cannot be locked: {}", path_, std::strerror(errno));
    turns_.leave(*program);
    return false;
  }
  program_ = *program;
  return true;
}

void SharedTurns::remove_gone_programs() {
  const TableLock lock(*this);
  if (lock.is_held()) remove_gone_with_lock();
}

void SharedTurns::before_kernel(const std::function<void()>& leave) {
  const std::uint64_t now = clock_.now_ns();
  const Answer answer = turns_.before_kernel(program_, now);
  if (answer == Answer::kRuns || is_without_turns(now)) return;
  leave();
  if (answer == Answer::kYields) {
    const TableLock lock(*this);
    if (lock.is_held()) turns_.yield(program_, clock_.now_ns());
    announce_change();
  }
  wait_for_turn();
}

void SharedTurns::wait_for_turn() {
  const std::uint64_t began_ns = clock_.now_ns();
  while (true) {
    const std::uint32_t seen = table_->changes.load();
    if (ask_for_turn(began_ns)) break;
    await_change(seen);
  }
  waited_ns_.fetch_add(clock_.now_ns() - began_ns, std::memory_order_relaxed);
}

bool SharedTurns::ask_for_turn(std::uint64_t began_ns) {
  const TableLock lock(*this);
  const std::uint64_t now = clock_.now_ns();
  if (is_without_turns(now)) return true;  // another thread has given up waiting
  if (!lock.is_held()) {
    go_without_turns(now);
    return true;
  }
  remove_gone_with_lock();
  const std::uint64_t holder = table_->holder.load();
  bool may_run = turns_.take(program_, now);
  if (!may_run && now - began_ns > rules_.longest_wait_ns(figures().programs)) {
    turns_.seize(program_, now);
    go_without_turns(now);
    may_run = true;
  }
  if (table_->holder.load() != holder) announce_change();
  return may_run;
}

bool SharedTurns::is_without_turns(std::uint64_t now_ns) const {
  return now_ns < without_turns_until_ns_.load(std::memory_order_relaxed);
}

void SharedTurns::go_without_turns(std::uint64_t now_ns) {
  without_turns_until_ns_.store(now_ns + rules_.longest_turn_ns, std::memory_order_relaxed);
}

void SharedTurns::remove_gone_with_lock() {
  turns_.each_program([&](std::size_t program) {
    if (program == program_ || !is_gone(program)) return;
    turns_.leave(program);
    announce_change();
  });
}

bool SharedTurns::is_gone(std::size_t program) const {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(program);
  lock.l_len = 1;
  return fcntl(descriptor_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void SharedTurns::announce_change() {
  table_->changes.fetch_add(1);
  syscall(SYS_futex, &table_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Waits for at most one nap, because a program that is idle or has ended announces no change.
void SharedTurns::await_change(std::uint32_t seen) const {
  const nanoseconds idle{rules_.idle_ns};
  clock_.wait_for_change(table_->changes, seen, std::min(idle, policy::kLongestNap));
}

SharingFigures SharedTurns::figures() const {
  SharingFigures figures;
  turns_.each_program([&](std::size_t program) {
    ++figures.programs;
    figures.held_bytes += table_->programs[program].held_bytes.load(std::memory_order_relaxed);
  });
  if (program_ != kMostPrograms)
    figures.turns = table_->programs[program_].turns.load(std::memory_order_relaxed);
  figures.waited_ns = waited_ns_.load(std::memory_order_relaxed);
  return figures;
}

}  // namespace uvm::sharing
