// Groups that sleep in a file.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <uvmalloc/uvmalloc_groups.h>
#include <uvmalloc/groups.hpp>

#include "groups/group_registry.hpp"
#include "groups/policy.hpp"
#include "groups/sleep_file.hpp"
#include "tests/support/allocator_fixture.hpp"
#include "tests/support/message_of.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::message_of;
using testing::stream;

const DeviceStream kUser{0, stream(1)};

// The bytes of a range that are in memory.
std::size_t bytes_in_memory(const char* address) {
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-')
      is_here = begin <= address_of(address) && address_of(address) < end;
    std::size_t kib = 0;
    std::string name;
    if (is_here && line.starts_with("Rss:") && std::istringstream(line) >> name >> kib)
      return kib << 10;
  }
  return SIZE_MAX;
}

::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << text;
}

class FileGroupsTest : public testing::AllocatorTest {
 protected:
  void SetUp() override {
    DeviceCapabilities capabilities = testing::FakeMachine{}.capabilities;
    capabilities.pageable_memory_access = true;
    start(without_thread_caches(), 1, capabilities);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "a file was left";
    testing::AllocatorTest::TearDown();
    std::filesystem::remove(folder_);
  }

  std::shared_ptr<Groups> groups() { return Groups::of(*allocator); }
  GroupNumber open(const char* name) {
    const GroupNumber group = groups()->open(name);
    groups()->set(group, {.file = folder_});
    return group;
  }
  // A block of the group whose bytes follow from `seed`.
  char* block(GroupNumber group, int seed, std::size_t size_bytes = 6 * kMiB,
              Facade facade = Facade::kDevice) {
    char* made = static_cast<char*>(groups()->allocate(group, facade, size_bytes, kUser));
    for (std::size_t i = 0; i < size_bytes; ++i) made[i] = byte(seed, i);
    return made;
  }
  static char byte(int seed, std::size_t at) {
    return static_cast<char>(static_cast<std::size_t>(seed) * 31 + at * 7 + at / 4096);
  }
  // Not seen by ThreadSanitizer: to it the mapping of a file over pages is a write to them.
  __attribute__((no_sanitize("thread"))) static bool is_right(const char* block, int seed,
                                                              std::size_t size_bytes = 6 * kMiB) {
    for (std::size_t i = 0; i < size_bytes; ++i) {
      if (block[i] != byte(seed, i)) return false;
    }
    return true;
  }
  GroupFigures figures(GroupNumber group) { return groups()->figures(group); }
  // Descriptors of files in the folder.
  std::vector<int> files() const {
    std::vector<int> found;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(each.path(), error).string();
      if (target.starts_with(folder_ + "/")) found.push_back(std::stoi(each.path().filename()));
    }
    return found;
  }

  const std::string folder_ =
      (std::filesystem::current_path() / ("sleep-" + std::to_string(getpid()))).string();
};

TEST_F(FileGroupsTest, ASleepingGroupTakesNoMemoryAndWakesWithItsBytes) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  char* second = block(group, 2, 1 * kMiB);
  char* third = block(group, 3, 5 * kMiB);
  EXPECT_EQ(figures(group).page_bytes, 12 * kMiB) << "its pages are its own";
  EXPECT_EQ(figures(group).spill_bytes, 12 * kMiB);
  EXPECT_EQ(groups()->sleep(group, kUser), 12 * kMiB);
  EXPECT_EQ(figures(group).state, GroupState::kInFile);
  EXPECT_EQ(figures(group).file_bytes, 12 * kMiB);
  EXPECT_EQ(figures(group).host_bytes, 0u);
  EXPECT_EQ(figures(group).device_bytes, 0u);
  EXPECT_EQ(bytes_in_memory(first), 0u);
  EXPECT_EQ(groups()->wake(group, kUser), 12 * kMiB);
  EXPECT_EQ(figures(group).state, GroupState::kAwake);
  EXPECT_EQ(figures(group).file_bytes, 0u);
  EXPECT_EQ(figures(group).device_bytes, 12 * kMiB);
  EXPECT_TRUE(is_right(first, 1));
  EXPECT_TRUE(is_right(second, 2, kMiB));
  EXPECT_TRUE(is_right(third, 3, 5 * kMiB));
}

TEST_F(FileGroupsTest, ATouchReadsTheFileAndAWriteIsKept) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  groups()->sleep(group, kUser);
  EXPECT_TRUE(is_right(first, 1));
  first[4 * kMiB] = 99;
  first[4 * kMiB + 5000] = 98;
  groups()->wake(group, kUser);
  EXPECT_EQ(first[4 * kMiB], 99);
  EXPECT_EQ(first[4 * kMiB + 5000], 98);
  first[4 * kMiB] = byte(1, 4 * kMiB);
  first[4 * kMiB + 5000] = byte(1, 4 * kMiB + 5000);
  EXPECT_TRUE(is_right(first, 1));
}

TEST_F(FileGroupsTest, ASecondSleepWritesOnlyThePagesThatWereWrittenTo) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  groups()->sleep(group, kUser);
  EXPECT_EQ(groups()->sleep(group, kUser), 0u);
  EXPECT_EQ(files().size(), 1u);
  first[3 * kMiB] = 99;
  EXPECT_EQ(groups()->sleep(group, kUser), 2 * kMiB);
  EXPECT_EQ(bytes_in_memory(first + 2 * kMiB), 0u);
  EXPECT_EQ(first[3 * kMiB], 99);
  EXPECT_EQ(files().size(), 2u);
  groups()->wake(group, kUser);
  EXPECT_EQ(std::exchange(first[3 * kMiB], byte(1, 3 * kMiB)), 99);
  EXPECT_TRUE(is_right(first, 1));
}

TEST_F(FileGroupsTest, WeightsThatWereOnlyReadAreNotWrittenAgain) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  const auto sleep_and_wake = [&] {
    EXPECT_EQ(groups()->sleep(group, kUser), 6 * kMiB);
    EXPECT_EQ(bytes_in_memory(first), 0u);
    const std::size_t count = files().size();
    groups()->wake(group, kUser);
    return count;
  };
  EXPECT_EQ(sleep_and_wake(), 1u);
  EXPECT_EQ(sleep_and_wake(), 1u);
  first[kMiB] = 99;
  EXPECT_EQ(sleep_and_wake(), 2u) << "one page";
  EXPECT_EQ(sleep_and_wake(), 2u);
  EXPECT_EQ(std::exchange(first[kMiB], byte(1, kMiB)), 99);
  EXPECT_TRUE(is_right(first, 1));
  allocator->free(first);
  EXPECT_TRUE(files().empty());
}

TEST_F(FileGroupsTest, HostMemoryOfTheGroupIsInTheFileOnceADeviceUsesIt) {
  const GroupNumber group = open("llm");
  char* weights = block(group, 4, 4 * kMiB, Facade::kHost);
  groups()->sleep(group, kUser);
  EXPECT_EQ(figures(group).file_bytes, 0u) << "the CPU uses it";
  to_device(weights, stream(1));
  groups()->sleep(group, kUser);
  EXPECT_EQ(figures(group).file_bytes, 4 * kMiB);
  groups()->wake(group, kUser);
  EXPECT_TRUE(is_right(weights, 4, 4 * kMiB));
  allocator->free(weights);
}

TEST_F(FileGroupsTest, OtherMemoryDoesNotTakePagesOfTheGroup) {
  const GroupNumber group = open("llm");
  char* member = block(group, 1, 3 * kMiB);
  char* other = device(kMiB, stream(1));
  EXPECT_FALSE(member <= other && other < member + 32 * kMiB);
  allocator->free(member);
  EXPECT_EQ(figures(group).page_bytes, 0u);
  allocator->release_cached();
  EXPECT_EQ(bytes_in_memory(member), SIZE_MAX) << "its span has gone back";
}

TEST_F(FileGroupsTest, BlocksFromElsewhereSleepOnTheHost) {
  const GroupNumber group = open("llm");
  char* own = block(group, 1);
  char* other = device(4 * kMiB, stream(1));
  groups()->add(group, other);
  EXPECT_EQ(figures(group).spill_bytes, 6 * kMiB);
  EXPECT_EQ(groups()->sleep(group, kUser), 10 * kMiB);
  EXPECT_EQ(figures(group).file_bytes, 6 * kMiB);
  EXPECT_EQ(figures(group).host_bytes, 4 * kMiB);
  EXPECT_EQ(groups()->wake(group, kUser), 10 * kMiB);
  EXPECT_TRUE(is_right(own, 1));
}

TEST_F(FileGroupsTest, MemoryThatLeavesASleepingGroupKeepsItsBytes) {
  const GroupNumber group = open("llm");
  char* removed = block(group, 1);
  char* moved = block(group, 2);
  char* freed = block(group, 3);
  char* stays = block(group, 4);
  groups()->sleep(group, kUser);
  groups()->remove(removed);
  groups()->add(groups()->open("other"), moved);
  allocator->free(freed);
  EXPECT_EQ(figures(group).file_bytes, 6 * kMiB);
  EXPECT_TRUE(is_right(removed, 1));
  EXPECT_TRUE(is_right(moved, 2));
  EXPECT_TRUE(is_right(stays, 4));
  groups()->wake(group, kUser);
  EXPECT_TRUE(is_right(stays, 4));
}

TEST_F(FileGroupsTest, ALimitBringsOnlyThatMuchFromTheFile) {
  const GroupNumber group = groups()->open("llm");
  groups()->set(group, {.limit_bytes = 2 * kMiB, .file = folder_});
  char* first = block(group, 1);
  groups()->sleep(group, kUser);
  EXPECT_EQ(groups()->wake(group, kUser), 2 * kMiB);
  EXPECT_EQ(figures(group).file_bytes, 4 * kMiB);
  EXPECT_EQ(groups()->sleep(group, kUser), 2 * kMiB);
  EXPECT_EQ(figures(group).file_bytes, 6 * kMiB);
  EXPECT_TRUE(is_right(first, 1));
}

TEST_F(FileGroupsTest, DiscardedContentsAreNotWritten) {
  const GroupNumber group = open("cache");
  char* first = block(group, 1);
  groups()->sleep(group, kUser);
  EXPECT_EQ(groups()->sleep(group, kUser, true), 0u);
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(figures(group).state, GroupState::kDiscarded);
  EXPECT_EQ(bytes_in_memory(first), 0u);
  groups()->wake(group, kUser);
  std::memset(first, 1, 6 * kMiB);
  EXPECT_EQ(groups()->sleep(group, kUser, true), 6 * kMiB);
  EXPECT_EQ(bytes_in_memory(first), 0u);
}

TEST_F(FileGroupsTest, AForkedChildReadsTheBytesOfTheFork) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  groups()->sleep(group, kUser);
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    char go = 0;
    if (read(pipe_ends[0], &go, 1) != 1) _exit(2);
    first[0] = 77;  // a private copy
    const bool is_kept = first[0] == 77;
    first[0] = byte(1, 0);
    _exit(is_kept && is_right(first, 1) ? 0 : 1);
  }
  groups()->wake(group, kUser);
  EXPECT_EQ(first[0], byte(1, 0));
  std::memset(first, 5, 6 * kMiB);
  groups()->sleep(group, kUser);
  ASSERT_EQ(write(pipe_ends[1], "g", 1), 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(first[0], 5);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST_F(FileGroupsTest, ChangedAndShortFilesAreErrorsThatNameTheOffset) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  char* second = block(group, 2, 4 * kMiB);
  groups()->sleep(group, kUser);
  ASSERT_EQ(files().size(), 1u);
  const int file = ::open(("/proc/self/fd/" + std::to_string(files()[0])).c_str(), O_WRONLY);
  const char right = byte(1, 3 * kMiB);
  const char wrong = static_cast<char>(right + 1);
  ASSERT_EQ(pwrite(file, &wrong, 1, 3 * kMiB), 1);
  const auto wake = [&] { groups()->wake(group, kUser); };
  const std::string changed = message_of(wake);
  EXPECT_TRUE(has(changed, "group \"llm\": a file in \"" + folder_ + "\""));
  EXPECT_TRUE(has(changed, "has changed at offset 2097152: its checksum is wrong"));
  EXPECT_EQ(figures(group).state, GroupState::kInFile);
  ASSERT_EQ(pwrite(file, &right, 1, 3 * kMiB), 1);
  ASSERT_EQ(ftruncate(file, 8 * kMiB), 0);
  EXPECT_TRUE(has(message_of(wake), "cannot be read at offset 8388608: it is too short"));
  close(file);
  EXPECT_TRUE(is_right(first, 1)) << "the bytes that can be had";
  EXPECT_TRUE(is_right(second, 2, 2 * kMiB));
  groups()->sleep(group, kUser, true);
}

// A file of the program, and a block of the group that has its bytes.
class ProgramFileTest : public FileGroupsTest {
 protected:
  static constexpr std::size_t kBytes = 6 * kMiB + 5000;

  void SetUp() override {
    FileGroupsTest::SetUp();
    group_ = open("llm");
    block_ = block(group_, 5, kBytes);
    std::ofstream(path_, std::ios::binary).write(block_, kBytes);
    file_ = ::open(path_.c_str(), O_RDWR);
  }
  void TearDown() override {
    allocator->free(block_);
    close(file_);
    std::filesystem::remove(path_);
    FileGroupsTest::TearDown();
  }

  std::int64_t changed_ns() const {
    struct stat status {};
    fstat(file_, &status);
    return status.st_ctim.tv_sec * std::int64_t{1'000'000'000} + status.st_ctim.tv_nsec;
  }
  std::size_t note() { return groups()->note_file(block_, kBytes, file_, path_, changed_ns()); }
  // Sets the time of the last change to a later one.
  void touch_file() {
    const std::int64_t before = changed_ns();
    while (changed_ns() == before) ASSERT_EQ(fchmod(file_, 0600), 0);
  }
  // The bytes that were written to the group's own files.
  std::size_t written_bytes() const {
    std::size_t sum = 0;
    for (const int each : files()) {
      struct stat status {};
      fstat(each, &status);
      sum += static_cast<std::size_t>(status.st_size);
    }
    return sum;
  }

  const std::string path_ = folder_ + "-model";
  GroupNumber group_{};
  char* block_ = nullptr;
  int file_ = -1;
};

TEST_F(ProgramFileTest, AGroupSleepsInTheFileThatItWasReadFrom) {
  EXPECT_EQ(note(), 6 * kMiB);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(groups()->sleep(group_, kUser), 8 * kMiB);
    EXPECT_EQ(written_bytes(), 2 * kMiB) << "the last page is not full";
    EXPECT_EQ(bytes_in_memory(block_), 0u);
    EXPECT_TRUE(is_right(block_, 5, kBytes));
    EXPECT_EQ(groups()->wake(group_, kUser), 8 * kMiB);
    EXPECT_TRUE(is_right(block_, 5, kBytes));
  }
}

TEST_F(ProgramFileTest, WhatTheProgramChangesIsNotWrittenToItsFile) {
  note();
  block_[3 * kMiB] = 99;
  groups()->sleep(group_, kUser);
  EXPECT_EQ(written_bytes(), 4 * kMiB);
  block_[kMiB] = 98;
  groups()->wake(group_, kUser);
  EXPECT_EQ(block_[3 * kMiB], 99);
  EXPECT_EQ(block_[kMiB], 98);
  char in_file = 0;
  ASSERT_EQ(pread(file_, &in_file, 1, 3 * kMiB), 1);
  EXPECT_EQ(in_file, byte(5, 3 * kMiB));
}

TEST_F(ProgramFileTest, AFileThatWasWrittenToIsNotUsed) {
  const std::int64_t before = changed_ns();
  touch_file();
  const std::string said =
      message_of([&] { groups()->note_file(block_, kBytes, file_, path_, before); });
  EXPECT_EQ(said, "\"" + path_ + "\" has changed since it was read");
  EXPECT_EQ(note(), 6 * kMiB);
  touch_file();
  groups()->sleep(group_, kUser);
  EXPECT_EQ(written_bytes(), 8 * kMiB);
  groups()->wake(group_, kUser);
  EXPECT_TRUE(is_right(block_, 5, kBytes));
}

TEST_F(ProgramFileTest, AFileMayBeRemovedWhileTheGroupSleeps) {
  note();
  groups()->sleep(group_, kUser);
  ASSERT_TRUE(std::filesystem::remove(path_));
  EXPECT_TRUE(is_right(block_, 5, kBytes));
  groups()->wake(group_, kUser);
  EXPECT_TRUE(is_right(block_, 5, kBytes));
}

TEST_F(ProgramFileTest, AFileThatChangesWhileTheGroupSleepsIsNamed) {
  note();
  groups()->sleep(group_, kUser);
  const char wrong = static_cast<char>(byte(5, 5 * kMiB) + 1);
  ASSERT_EQ(pwrite(file_, &wrong, 1, 5 * kMiB), 1);
  EXPECT_EQ(
      message_of([&] { groups()->wake(group_, kUser); }),
      "group \"llm\": \"" + path_ + "\" has changed at offset 4194304: its checksum is wrong");
  EXPECT_EQ(figures(group_).state, GroupState::kInFile);
}

TEST_F(ProgramFileTest, OnlyWholePagesOfAGroupWithAFileCount) {
  EXPECT_EQ(groups()->note_file(block_ + 1, kBytes - 1, file_, path_, changed_ns()), 0u);
  EXPECT_EQ(groups()->note_file(block_, kMiB, file_, path_, changed_ns()), 0u);
  EXPECT_TRUE(has(message_of([&] { groups()->note_file(block_, kBytes, -1, path_, 0); }),
                  "\"" + path_ + "\" cannot be opened: "));
  char* other = static_cast<char*>(allocator->allocate(Facade::kDevice, 0, 4 * kMiB));
  EXPECT_EQ(groups()->note_file(other, 4 * kMiB, file_, path_, changed_ns()), 0u);
  groups()->add(group_, other);
  EXPECT_EQ(groups()->note_file(other, 4 * kMiB, file_, path_, changed_ns()), 0u);
  allocator->free(other);
}

TEST_F(FileGroupsTest, AGroupThatCannotBeWrittenStaysWhereItWas) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  ASSERT_EQ(figures(group).device_bytes, 6 * kMiB);
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit less { 4 * kMiB, before.rlim_max };
  setrlimit(RLIMIT_FSIZE, &less);
  const std::string refused = message_of([&] { groups()->sleep(group, kUser); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(refused, "group \"llm\": it cannot sleep in a file: a file in \"" + folder_ +
                         "\" cannot be written: File too large");
  EXPECT_EQ(figures(group).state, GroupState::kAwake);
  EXPECT_EQ(figures(group).device_bytes, 6 * kMiB);
  EXPECT_TRUE(is_right(first, 1));
  std::filesystem::remove(folder_);
  EXPECT_TRUE(has(message_of([&] { groups()->sleep(group, kUser); }),
                  "no file can be made in \"" + folder_ + "\": No such file or directory"));
  std::filesystem::create_directory(folder_);
  EXPECT_EQ(groups()->sleep(group, kUser), 6 * kMiB);
}

TEST_F(FileGroupsTest, AFullDiskIsSeenBeforeAnythingIsWritten) {
  SleepFile file(folder_);
  struct statvfs space {};
  ASSERT_EQ(statvfs(folder_.c_str(), &space), 0);
  const std::size_t free_bytes = space.f_bavail * space.f_frsize;
  EXPECT_TRUE(has(message_of([&] { file.reserve(free_bytes / kPageBytes + 100'000); }),
                  "cannot be written: No space left on device"));
}

TEST_F(FileGroupsTest, PagesThatAreWrittenToMeanwhileAreWrittenAgain) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  std::atomic<bool> is_over = false;
  // Not seen by ThreadSanitizer, because this race is what is tested.
  std::thread writer([&]() __attribute__((no_sanitize("thread"))) {
    for (std::uint8_t i = 0; !is_over; ++i) first[0] = static_cast<char>(i);
  });
  const std::string refused = message_of([&] { groups()->sleep(group, kUser); });
  is_over = true;
  writer.join();
  EXPECT_TRUE(refused == "nothing was thrown" || has(refused, "is being written to"));
  first[0] = byte(1, 0);
  groups()->wake(group, kUser);
  EXPECT_TRUE(is_right(first, 1));
}

TEST_F(FileGroupsTest, ThreadsMaySleepAndWakeAndReadAtOnce) {
  const GroupNumber group = open("llm");
  char* first = block(group, 1);
  std::atomic<bool> is_over = false;
  std::atomic<bool> is_wrong = false;
  std::thread reader([&] {
    while (!is_over) is_wrong = is_wrong || !is_right(first, 1);
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 4; ++round) {
        groups()->sleep(group, kUser);
        groups()->wake(group, kUser);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  is_over = true;
  reader.join();
  EXPECT_FALSE(is_wrong);
  EXPECT_TRUE(is_right(first, 1));
}

TEST_F(FileGroupsTest, AnotherGroupThatNeedsRoomSendsItToTheHost) {
  const GroupNumber group = open("llm");
  block(group, 1);
  const GroupNumber other = groups()->open("other");
  groups()->add(other, device(4 * kMiB, stream(1)));
  groups()->sleep(other, kUser);
  machine->free_bytes[0] = 0;
  {
    Engine& engine = allocator->engine();
    const HeapGuard heap(engine.state);
    heap->planner.set_free_bytes(0, 0);
  }
  groups()->wake(other, kUser);
  EXPECT_EQ(figures(group).file_bytes, 0u);
}

TEST_F(FileGroupsTest, BadFoldersAreErrorsThatNameThem) {
  const GroupNumber group = groups()->open("llm");
  const auto refusal = [&](const std::string& folder) {
    return message_of([&] { groups()->set(group, {.file = folder}); });
  };
  EXPECT_EQ(refusal("/no/such/folder"),
            "group \"llm\": no file can be made in \"/no/such/folder\": No such file or directory; "
            "accepted: a folder on a disk that this user may write to");
  EXPECT_TRUE(has(refusal("/proc"), "no file can be made in \"/proc\""));
  EXPECT_TRUE(has(refusal("/dev/null"), "Not a directory"));
  EXPECT_EQ(refusal("/dev/shm"),
            "group \"llm\": files in \"/dev/shm\" are in memory, so they free none; accepted: a "
            "folder on a disk");
  EXPECT_EQ(figures(group).settings.file, "");
}

TEST_F(FileGroupsTest, DevicesHaveToReachOrdinaryMemory) {
  start(without_thread_caches());
  const GroupNumber group = groups()->open("llm");
  EXPECT_TRUE(has(message_of([&] { groups()->set(group, {.file = folder_}); }),
                  "does not reach ordinary memory (pageable memory access)"));
}

TEST_F(FileGroupsTest, SettingsOfTheEnvironmentNameAFolder) {
  Configuration configuration = without_thread_caches();
  configuration.groups = "llm:priority=1,file=" + folder_ + ";bad:file=/no/such/folder";
  start(configuration, 1, std::as_const(*machine).capabilities);
  EXPECT_EQ(figures(groups()->open("llm")).settings.file, folder_);
  EXPECT_TRUE(has(message_of([&] { groups()->open("bad"); }), "/no/such/folder"));
}

TEST_F(FileGroupsTest, TheCInterfaceAllocatesAndDescribes) {
  auto* handle = reinterpret_cast<uvmalloc_allocator*>(allocator.get());
  uvmalloc_group group = 0;
  ASSERT_EQ(uvmalloc_group_open(handle, "llm", &group), UVMALLOC_OK);
  uvmalloc_group_options options{};
  options.struct_bytes = sizeof options;
  options.file = "/no/such/folder";
  EXPECT_EQ(uvmalloc_group_configure(handle, group, &options), UVMALLOC_ERROR_INVALID_ARGUMENT);
  options.file = folder_.c_str();
  ASSERT_EQ(uvmalloc_group_configure(handle, group, &options), UVMALLOC_OK);
  void* memory = nullptr;
  EXPECT_EQ(uvmalloc_group_allocate(handle, group, 3, kMiB, nullptr, &memory),
            UVMALLOC_ERROR_NO_DEVICE);
  EXPECT_EQ(uvmalloc_group_allocate(handle, group, 0, kMiB, nullptr, nullptr),
            UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_group_allocate(handle, group + 1, 0, kMiB, nullptr, &memory),
            UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_group_allocate(handle, group, 0, SIZE_MAX, nullptr, &memory),
            UVMALLOC_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(uvmalloc_group_allocate(handle, group, 0, 4 * kMiB, stream(1), &memory), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_group_sleep(handle, group, 0, stream(1), 0, nullptr), UVMALLOC_OK);
  uvmalloc_group_info info{};
  info.struct_bytes = sizeof info;
  ASSERT_EQ(uvmalloc_group_describe(handle, group, &info), UVMALLOC_OK);
  EXPECT_EQ(info.state, UVMALLOC_GROUP_IN_FILE);
  EXPECT_EQ(info.spill_bytes, 4 * kMiB);
  EXPECT_EQ(info.file_bytes, 4 * kMiB);
  EXPECT_EQ(uvmalloc_free(handle, memory), UVMALLOC_OK);
}

// Groups while the host's memory is short, as the test says.
class ShortMemoryTest : public FileGroupsTest {
 protected:
  void SetUp() override {
    FileGroupsTest::SetUp();
    begin(true);
  }
  void begin(bool integrated) {
    registry.reset();
    DeviceCapabilities capabilities = machine->capabilities;
    capabilities.integrated = integrated;
    start(without_thread_caches(), 1, capabilities);
    machine->now = std::chrono::seconds(100);
    registry = std::static_pointer_cast<GroupRegistry>(allocator->engine().groups.owner([this] {
      return std::make_shared<GroupRegistry>(allocator->engine(), false, [this] {
        return MemoryReading{{16'000, available(++readings)}, stalled};
      });
    }));
  }
  void TearDown() override {
    registry.reset();
    FileGroupsTest::TearDown();
  }
  GroupNumber open(const char* name, int priority = 0, bool pinned = false) {
    const GroupNumber group = registry->open(name);
    registry->set(group, {.priority = priority, .pinned = pinned, .file = folder_});
    return group;
  }
  std::chrono::nanoseconds look_after(std::chrono::nanoseconds time) {
    *machine->now += time;
    return registry->look_for_idle_groups();
  }
  bool is_in_file(GroupNumber group) {
    return figures(group).state == GroupState::kInFile && figures(group).file_bytes != 0;
  }
  static constexpr std::chrono::nanoseconds kSecond = std::chrono::seconds(1);

  std::function<std::size_t(int)> available = [](int) { return 8000; };
  std::chrono::microseconds stalled{0};
  int readings = 0;
  std::shared_ptr<GroupRegistry> registry;
};

TEST_F(ShortMemoryTest, IdleGroupsGoToTheFileTheLeastImportantFirst) {
  const GroupNumber important = open("important", 2);
  const GroupNumber first = open("first");
  *machine->now += kSecond / 10;
  const GroupNumber second = open("second");
  const GroupNumber pinned = open("pinned", -1, true);
  for (const GroupNumber each : {important, first, second, pinned}) block(each, 1);
  EXPECT_EQ(look_after(kSecond), policy::kMemoryLook);
  available = [](int) { return 1500; };
  EXPECT_EQ(look_after(kSecond), policy::kNearMemoryLook) << "uses are observed now";
  EXPECT_EQ(figures(first).sleeps, 0u);
  available = [](int) { return 900; };
  look_after(kSecond / 2);
  EXPECT_EQ(figures(first).sleeps, 0u) << "it may be in use";
  // Once the first one is gone there is enough.
  readings = 0;
  available = [](int reading) { return reading == 1 ? 900 : 1100; };
  look_after(kSecond);
  EXPECT_TRUE(is_in_file(first));
  EXPECT_EQ(figures(first).idle_sleeps, 1u);
  EXPECT_EQ(figures(second).sleeps, 0u);
  available = [](int) { return 900; };
  look_after(kSecond);
  EXPECT_TRUE(is_in_file(second));
  EXPECT_TRUE(is_in_file(important));
  EXPECT_EQ(figures(pinned).sleeps, 0u);
  available = [](int) { return 8000; };
  EXPECT_EQ(look_after(kSecond), policy::kMemoryLook);
}

TEST_F(ShortMemoryTest, AGroupInUseStays) {
  const GroupNumber group = open("llm");
  const char* memory = block(group, 1);
  available = [](int) { return 900; };
  look_after(kSecond);
  for (int i = 0; i < 20; ++i) {
    registry->group_used(group, {page_of(address_of(memory)), 1}, kUser);
    look_after(kSecond / 10);
  }
  EXPECT_EQ(figures(group).sleeps, 0u);
  look_after(kSecond);
  EXPECT_TRUE(is_in_file(group));
}

TEST_F(ShortMemoryTest, KernelsOfOtherGroupsDoNotWaitForAFileAndCountAsUses) {
  const GroupNumber idle = open("idle", -1);
  const GroupNumber busy = open("busy");
  char* written = block(idle, 1);
  const char* memory = block(busy, 2);
  available = [](int) { return 900; };
  look_after(kSecond);
  std::thread later;
  std::atomic<bool> has_begun = false;
  machine->after_device_wait = [&] {
    std::thread([&] {
      registry->group_used(busy, {page_of(address_of(memory)), 1}, kUser);
    }).join();
    // A kernel of the group that is being written waits, so what it writes is not lost.
    later = std::thread([&] {
      has_begun = true;
      registry->group_used(idle, {page_of(address_of(written)), 1}, kUser);
      written[0] = 99;
    });
    while (!has_begun) std::this_thread::yield();
  };
  look_after(kSecond);
  later.join();
  EXPECT_TRUE(is_in_file(idle));
  EXPECT_FALSE(is_in_file(busy));
  registry->wake(idle, kUser, false);
  EXPECT_EQ(written[0], 99);
}

TEST_F(ShortMemoryTest, WaitsForMemoryAreAShortageToo) {
  const GroupNumber group = open("llm");
  block(group, 1);
  look_after(kSecond);
  stalled += std::chrono::milliseconds(60);
  EXPECT_EQ(look_after(kSecond), policy::kNearMemoryLook);
  stalled += std::chrono::milliseconds(120);
  look_after(kSecond);
  EXPECT_TRUE(is_in_file(group));
}

TEST_F(ShortMemoryTest, MemoryOfADeviceOfItsOwnDoesNotHelpTheHost) {
  begin(false);
  const GroupNumber group = open("llm");
  block(group, 1);
  available = [](int) { return 900; };
  look_after(kSecond);
  look_after(kSecond);
  EXPECT_EQ(figures(group).sleeps, 0u);
}

TEST_F(ShortMemoryTest, AFullDiskDoesNotEndTheProgram) {
  const GroupNumber group = open("llm");
  const char* memory = block(group, 1);
  std::filesystem::remove(folder_);
  available = [](int) { return 900; };
  look_after(kSecond);
  look_after(kSecond);
  EXPECT_EQ(figures(group).file_bytes, 0u);
  EXPECT_TRUE(is_right(memory, 1));
  std::filesystem::create_directory(folder_);
}

}  // namespace
}  // namespace uvm
