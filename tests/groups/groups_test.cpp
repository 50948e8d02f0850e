// Groups of blocks that sleep and wake.
#include <uvmalloc/groups.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#include <uvmalloc/kernel_uses.hpp>
#include <uvmalloc/tracing.hpp>

#include "tools/trace/trace_reader.hpp"

#include "allocator/policy/allocation_policy.hpp"
#include "groups/group_registry.hpp"
#include "groups/policy.hpp"
#include "tests/support/allocator_fixture.hpp"
#include "tests/support/message_of.hpp"

namespace uvm {
namespace {

using namespace std::chrono_literals;

using testing::kMiB;
using testing::message_of;
using testing::stream;

const DeviceStream kStream{0, stream(1)};

class GroupsTest : public testing::AllocatorTest {
 protected:
  void SetUp() override { start(without_thread_caches()); }

  std::shared_ptr<Groups> groups() { return Groups::of(*allocator); }
  // A group with blocks of its own pages.
  GroupNumber make_group(const char* name, std::size_t blocks = 2,
                         std::size_t size_bytes = 4 * kMiB) {
    const GroupNumber group = groups()->open(name);
    for (std::size_t i = 0; i < blocks; ++i) {
      members.push_back(device(size_bytes, stream(1)));
      EXPECT_TRUE(groups()->add(group, members.back()));
    }
    return group;
  }
  std::size_t on_device(GroupNumber group) { return groups()->figures(group).device_bytes; }
  // The bytes of prefetches since the last call.
  std::size_t prefetched_to(Place place) {
    std::size_t bytes = 0;
    for (const Hint& hint : machine->hints) {
      if (hint.kind == HintKind::kPrefetch && hint.place == place) bytes += hint.size_bytes;
    }
    machine->hints.clear();
    return bytes;
  }
  std::ptrdiff_t advice(Advice kind) const {
    return std::ranges::count_if(machine->hints, [kind](const Hint& hint) {
      return hint.kind == HintKind::kAdvise && hint.advice == kind;
    });
  }
  std::vector<char*> members;
};

TEST_F(GroupsTest, AGroupLeavesTheDeviceAndComesBackByItsPages) {
  const GroupNumber group = make_group("llm");
  char* other = device(2 * kMiB, stream(1));
  machine->hints.clear();
  EXPECT_EQ(groups()->sleep(group, kStream), 8 * kMiB);
  EXPECT_EQ(prefetched_to(Place::host()), 8 * kMiB);
  EXPECT_EQ(allocator->find(other)->location, Place::device(0));
  EXPECT_EQ(on_device(group), 0u);
  EXPECT_EQ(groups()->sleep(group, kStream), 0u) << "it sleeps already";
  EXPECT_EQ(groups()->wake(group, kStream), 8 * kMiB);
  EXPECT_EQ(prefetched_to(Place::device(0)), 8 * kMiB);
  EXPECT_EQ(on_device(group), 8 * kMiB);
  const GroupFigures figures = groups()->figures(group);
  EXPECT_EQ(figures.blocks, 2u);
  EXPECT_EQ(figures.bytes, 8 * kMiB);
  EXPECT_EQ(figures.sleeps, 2u);
  EXPECT_EQ(figures.wakes, 1u);
  EXPECT_EQ(figures.left_bytes, 8 * kMiB);
}

TEST_F(GroupsTest, PagesLeaveAfterTheStreamAndItWaitsForThoseThatCome) {
  const GroupNumber group = make_group("llm", 1);
  machine->waits.clear();
  groups()->sleep(group, kStream);
  ASSERT_FALSE(machine->waits.empty());
  for (const std::string& wait : machine->waits) EXPECT_EQ(wait, "stream lane waits for stream 1");
  machine->waits.clear();
  groups()->wake(group, kStream);
  EXPECT_TRUE(std::ranges::count(machine->waits, "stream 1 waits for stream lane"));
}

TEST_F(GroupsTest, PagesThatAreSharedWithOtherMemoryStay) {
  const GroupNumber group = groups()->open("llm");
  char* member = device(3 * kMiB, stream(1));
  char* other = device(3 * kMiB, stream(1));
  groups()->add(group, member);
  EXPECT_EQ(groups()->figures(group).page_bytes, 2 * kMiB) << "the second page is shared";
  groups()->add(group, other);
  EXPECT_EQ(groups()->figures(group).page_bytes, 6 * kMiB);
  groups()->remove(member);
  EXPECT_EQ(groups()->figures(group).page_bytes, 2 * kMiB);
  allocator->free(member);
  EXPECT_EQ(groups()->figures(group).page_bytes, 4 * kMiB) << "its neighbour is free";
}

TEST_F(GroupsTest, SmallBlocksCountButTheirPagesStay) {
  const GroupNumber group = make_group("small", 20, 1024);
  const GroupFigures figures = groups()->figures(group);
  EXPECT_EQ(figures.blocks, 20u);
  EXPECT_EQ(figures.page_bytes, 0u);
  EXPECT_EQ(groups()->sleep(group, kStream), 0u);
}

TEST_F(GroupsTest, ABlockLeavesItsGroupWhenItIsFreedOrJoinsAnother) {
  const GroupNumber first = make_group("first", 2);
  const GroupNumber second = groups()->open("second");
  groups()->add(second, members[0] + kMiB);
  EXPECT_EQ(groups()->figures(first).blocks, 1u);
  EXPECT_EQ(groups()->figures(second).blocks, 1u);
  allocator->free(members[1]);
  EXPECT_EQ(groups()->figures(first).blocks, 0u);
  char* again = device(4 * kMiB, stream(1));
  EXPECT_EQ(again, members[1]) << "the same memory";
  EXPECT_EQ(groups()->figures(first).blocks, 0u);
}

TEST_F(GroupsTest, OneNameIsOneGroup) {
  EXPECT_EQ(groups()->open("a"), groups()->open("a"));
  EXPECT_NE(groups()->open("a"), groups()->open("b"));
  EXPECT_EQ(groups()->names(), (std::vector<std::string>{"a", "b"}));
}

TEST_F(GroupsTest, BadInputNamesWhatIsAccepted) {
  EXPECT_EQ(message_of([&] { groups()->open("two words"); }),
            "group: the name is \"two words\"; accepted: 1 to 64 letters, digits and _ - . / :");
  EXPECT_THROW(groups()->open(""), std::invalid_argument);
  EXPECT_THROW(groups()->open(std::string(65, 'a')), std::invalid_argument);
  EXPECT_EQ(message_of([&] { groups()->sleep(GroupNumber{7}, kStream); }),
            "group: there is no group 7; there are 0");
  const GroupNumber group = groups()->open("a");
  EXPECT_THROW(groups()->figures(GroupNumber{0}), std::invalid_argument);
  EXPECT_THROW(groups()->sleep(group, {3, stream(1)}), std::out_of_range);
  EXPECT_THROW(groups()->wake(group, {3, stream(1)}), std::out_of_range);
  EXPECT_THROW(groups()->set(group, {.limit_bytes = kMiB}), std::invalid_argument);
  int outside = 0;
  EXPECT_FALSE(groups()->add(group, &outside));
  EXPECT_FALSE(groups()->remove(&outside));
}

TEST_F(GroupsTest, NothingMovesDuringACapture) {
  const GroupNumber group = make_group("llm");
  machine->capturing.insert(stream(1));
  EXPECT_EQ(message_of([&] { groups()->sleep(group, kStream); }),
            "group \"llm\": it cannot sleep while a stream is being captured");
  EXPECT_THROW(groups()->wake(group, kStream), std::logic_error);
  machine->capturing.clear();
  EXPECT_EQ(groups()->sleep(group, kStream), 8 * kMiB);
}

TEST_F(GroupsTest, ATraceHasTheMovesOfAGroup) {
  const GroupNumber group = make_group("llm");
  const std::string file = fmt::format("{}groups-{}.trace", ::testing::TempDir(), getpid());
  ASSERT_EQ(allocator->tracing().start(file), "");
  groups()->sleep(group, kStream);
  machine->failures["prefetch"] = 1;
  groups()->wake(group, kStream);
  allocator->tracing().stop();
  std::size_t sent = 0;
  std::size_t failed = 0;
  const Trace trace = read_trace(file);
  std::filesystem::remove(file);
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceKind::kPrefetch) {
      EXPECT_EQ(event.place, kHostPlace);
      sent += event.size_bytes;
    }
    if (event.kind == TraceKind::kFailure) failed += event.size_bytes;
  }
  EXPECT_EQ(sent, 8 * kMiB);
  EXPECT_EQ(failed, 8 * kMiB) << "the first piece, in which all come";
}

TEST_F(GroupsTest, DiscardedContentsAreNeverCopied) {
  const GroupNumber group = make_group("cache");
  machine->hints.clear();
  groups()->sleep(group, kStream, /*discard=*/true);
  EXPECT_EQ(allocator->inspection().runtime_calls().at("discard"), 1u);
  EXPECT_EQ(prefetched_to(Place::host()), 0u);
  EXPECT_EQ(groups()->figures(group).state, GroupState::kDiscarded);
  EXPECT_EQ(groups()->wake(group, kStream), 8 * kMiB);
  EXPECT_EQ(groups()->figures(group).state, GroupState::kAwake);
}

TEST_F(GroupsTest, AGroupThatWakesLazilyOrHasALimitBringsNoMore) {
  const GroupNumber group = make_group("llm");
  groups()->sleep(group, kStream);
  EXPECT_EQ(groups()->wake(group, kStream, /*lazily=*/true), 0u);
  EXPECT_EQ(on_device(group), 0u);
  groups()->set(group, {.limit_bytes = 6 * kMiB});
  EXPECT_EQ(groups()->wake(group, kStream), 6 * kMiB);
  EXPECT_EQ(on_device(group), 6 * kMiB);
}

// ---- copies on the host

class GroupCopiesTest : public GroupsTest {
 protected:
  void SetUp() override {
    DeviceCapabilities capabilities = testing::FakeMachine{}.capabilities;
    capabilities.finds_pages = true;
    start(without_thread_caches(), 1, capabilities);
  }
  // As the driver does when copies end: pages that were not written to are on the host.
  void only_read(char* block, std::size_t size_bytes) {
    for (std::size_t at = 0; at < size_bytes; at += kPageBytes)
      machine->pages_on_host.insert(block + at);
  }
};

TEST_F(GroupCopiesTest, PagesThatWereOnlyReadLeaveWithoutACopy) {
  const GroupNumber group = make_group("llm", 1, 4 * kMiB);
  groups()->sleep(group, kStream);
  machine->hints.clear();
  groups()->wake(group, kStream);
  EXPECT_EQ(advice(Advice::kSetReadMostly), 1);
  only_read(members[0], 4 * kMiB);
  machine->hints.clear();
  groups()->sleep(group, kStream);
  EXPECT_EQ(advice(Advice::kUnsetReadMostly), 1);
  const GroupFigures figures = groups()->figures(group);
  EXPECT_EQ(figures.kept_bytes, 4 * kMiB);
  EXPECT_EQ(figures.left_bytes, 4 * kMiB) << "of the first sleep";
}

TEST_F(GroupCopiesTest, AGroupThatIsWrittenToKeepsNoCopiesNextTime) {
  const GroupNumber group = make_group("trained", 1, 4 * kMiB);
  groups()->sleep(group, kStream);
  groups()->wake(group, kStream);
  groups()->sleep(group, kStream);
  machine->hints.clear();
  groups()->wake(group, kStream);
  EXPECT_EQ(advice(Advice::kSetReadMostly), 0);
  EXPECT_EQ(groups()->figures(group).kept_bytes, 0u);
  groups()->set(group, {.copies = GroupCopies::kKept});
  groups()->sleep(group, kStream);
  groups()->wake(group, kStream);
  EXPECT_EQ(advice(Advice::kSetReadMostly), 1);
}

TEST_F(GroupCopiesTest, TheNextOwnerOfAFreedBlockInheritsNoAdvice) {
  const GroupNumber group = make_group("llm", 2, 4 * kMiB);
  groups()->sleep(group, kStream);
  groups()->wake(group, kStream);
  machine->hints.clear();
  allocator->free(members[0]);
  EXPECT_EQ(advice(Advice::kUnsetReadMostly), 1);
  machine->hints.clear();
  groups()->remove(members[1]);
  EXPECT_EQ(advice(Advice::kUnsetReadMostly), 1);
}

TEST_F(GroupCopiesTest, WithoutTheDriversAnswerAGroupKeepsCopiesOnlyIfItIsToldTo) {
  start(without_thread_caches());
  members.clear();
  const GroupNumber group = make_group("llm", 1);
  groups()->sleep(group, kStream);
  groups()->wake(group, kStream);
  EXPECT_EQ(advice(Advice::kSetReadMostly), 0);
}

// ---- several groups on a device with room for 31 pages

class ManyGroupsTest : public GroupsTest {
 protected:
  void SetUp() override {
    machine = std::make_shared<testing::FakeMachine>(1);
    machine->total_bytes = 64 * kMiB;
    Configuration configuration = without_thread_caches();
    configuration.span_bytes = 256 * kMiB;
    allocator = std::make_unique<CachingManagedAllocator>(
        std::make_unique<testing::FakeRuntime>(machine), configuration);
  }
  void start_again() {
    const auto same = machine;
    allocator.reset();
    Configuration configuration = without_thread_caches();
    configuration.span_bytes = 256 * kMiB;
    allocator = std::make_unique<CachingManagedAllocator>(
        std::make_unique<testing::FakeRuntime>(same), configuration);
  }
  GroupNumber make_sleeping(const char* name) {
    const GroupNumber group = make_group(name, 10, 2 * kMiB);
    groups()->sleep(group, kStream);
    return group;
  }
};

TEST_F(ManyGroupsTest, TheGroupThatWokeFirstMakesRoom) {
  const GroupNumber a = make_sleeping("a");
  const GroupNumber b = make_sleeping("b");
  const GroupNumber c = make_sleeping("c");
  const GroupNumber d = make_sleeping("d");
  for (const GroupNumber each : {a, b, c}) groups()->wake(each, kStream);
  EXPECT_EQ(on_device(a), 20 * kMiB);
  EXPECT_EQ(groups()->wake(d, kStream), 20 * kMiB);
  EXPECT_EQ(on_device(a), 0u);
  EXPECT_EQ(groups()->figures(a).state, GroupState::kAsleep);
  EXPECT_EQ(on_device(b), 20 * kMiB);
}

TEST_F(ManyGroupsTest, TheLeastImportantGroupMakesRoomAndAPinnedOneDoesNot) {
  const GroupNumber a = make_sleeping("a");
  const GroupNumber b = make_sleeping("b");
  const GroupNumber c = make_sleeping("c");
  const GroupNumber d = make_sleeping("d");
  groups()->set(a, {.pinned = true});
  groups()->set(b, {.priority = 1});
  groups()->set(d, {.priority = 1});
  for (const GroupNumber each : {a, b, c, d}) groups()->wake(each, kStream);
  EXPECT_EQ(on_device(a), 20 * kMiB);
  EXPECT_EQ(on_device(b), 20 * kMiB);
  EXPECT_EQ(on_device(c), 0u);
  EXPECT_EQ(groups()->wake(c, kStream), 2 * kMiB) << "nobody less important is awake";
  EXPECT_EQ(on_device(b), 20 * kMiB);
}

TEST_F(ManyGroupsTest, OthersLeaveTheFloorOfAGroupOnTheDevice) {
  const GroupNumber a = make_sleeping("a");
  const GroupNumber b = make_sleeping("b");
  const GroupNumber c = make_sleeping("c");
  const GroupNumber d = make_sleeping("d");
  groups()->set(a, {.floor_bytes = 20 * kMiB});
  groups()->set(b, {.floor_bytes = 12 * kMiB});
  for (const GroupNumber each : {a, b, c}) groups()->wake(each, kStream);
  groups()->wake(d, kStream);
  EXPECT_EQ(on_device(a), 20 * kMiB) << "it has no more than its floor";
  EXPECT_EQ(on_device(b), 12 * kMiB);
  EXPECT_EQ(groups()->figures(b).state, GroupState::kAwake);
  EXPECT_EQ(on_device(c), 0u) << "the rest of b was not enough";
  EXPECT_EQ(groups()->sleep(b, kStream), 12 * kMiB) << "its own sleep takes all pages";
}

TEST_F(ManyGroupsTest, ASleepingGroupWhosePagesKernelsBroughtBackMakesRoom) {
  machine->capabilities.finds_pages = true;
  start_again();
  const GroupNumber a = make_sleeping("a");
  const GroupNumber b = make_sleeping("b");
  const GroupNumber c = make_sleeping("c");
  const GroupNumber d = make_sleeping("d");
  const GroupNumber e = make_sleeping("e");
  for (const GroupNumber each : {b, c, d}) {
    groups()->wake(each, kStream);
    groups()->set(each, {.pinned = true});
  }
  prefetched_to(Place::host());
  groups()->wake(e, kStream);  // the fake driver says that all pages of a are on the device
  EXPECT_EQ(prefetched_to(Place::host()), 20 * kMiB) << "a leaves again";
  EXPECT_EQ(groups()->figures(a).sleeps, 1u);
}

TEST_F(ManyGroupsTest, WhileMovesArePlannedAGroupMovesByThePlan) {
  const GroupNumber a = make_group("a", 20, 2 * kMiB);
  std::vector<char*> others;
  for (int i = 0; i < 20; ++i) others.push_back(device(2 * kMiB, stream(1)));
  ASSERT_TRUE(allocator->kernel_uses().wanted());
  for (char* each : members) allocator->kernel_uses().note(each, 2 * kMiB, stream(1), 3);
  EXPECT_EQ(on_device(a), 40 * kMiB);
  machine->hints.clear();
  groups()->sleep(a, kStream);
  EXPECT_EQ(on_device(a), 0u);
  EXPECT_EQ(prefetched_to(Place::host()), 40 * kMiB) << "each page leaves once";
  groups()->wake(a, kStream);
  EXPECT_EQ(on_device(a), 40 * kMiB);
}

TEST_F(ManyGroupsTest, ThreadsMaySleepAndWakeAtOnce) {
  std::vector<GroupNumber> all;
  for (const char* name : {"a", "b", "c", "d"}) all.push_back(make_sleeping(name));
  std::vector<std::thread> threads;
  for (std::size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (std::size_t i = 0; i < 50; ++i) {
        groups()->wake(all[(first + i) % 4], kStream);
        groups()->figures(all[i % 4]);
        groups()->sleep(all[(first + 2 * i) % 4], kStream);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (const GroupNumber each : all) groups()->sleep(each, kStream);
  for (const GroupNumber each : all) EXPECT_EQ(on_device(each), 0u);
}

// ---- the order of first use

class GroupOrderTest : public GroupsTest {
 protected:
  void use(std::size_t member) {
    allocator->kernel_uses().note(members[member], 4 * kMiB, stream(1), 1);
  }
  // The members in the order in which their pages were sent to the device since the last call.
  std::vector<std::ptrdiff_t> sent_members() {
    std::vector<std::ptrdiff_t> sent;
    for (const Hint& hint : machine->hints) {
      if (hint.kind != HintKind::kPrefetch || !hint.place.is_device()) continue;
      for (std::size_t bytes = 0; bytes < hint.size_bytes; bytes += 4 * kMiB) {
        const auto found = std::ranges::find(members, static_cast<char*>(hint.address) + bytes);
        sent.push_back(found - members.begin());
      }
    }
    machine->hints.clear();
    return sent;
  }
  void sleep_and_wake(GroupNumber group) {
    groups()->sleep(group, kStream);
    machine->hints.clear();
    machine->waits.clear();
    groups()->wake(group, kStream);
  }
};

TEST_F(GroupOrderTest, PagesWakeInTheOrderInWhichKernelsUsedThem) {
  std::vector<bool> wanted;
  allocator->kernel_uses().set_listener([&](bool wants_uses) { wanted.push_back(wants_uses); });
  const GroupNumber group = make_group("llm", 4);
  EXPECT_EQ(wanted, std::vector<bool>{});
  sleep_and_wake(group);
  EXPECT_EQ(sent_members(), (std::vector<std::ptrdiff_t>{0, 1, 2, 3}));
  EXPECT_EQ(wanted, std::vector<bool>{true});
  for (const std::size_t each : {3, 1, 0, 2}) use(each);
  for (int i = 0; i < 100; ++i) use(3);
  EXPECT_EQ(wanted, (std::vector<bool>{true, false})) << "the order is known";
  sleep_and_wake(group);
  EXPECT_EQ(sent_members(), (std::vector<std::ptrdiff_t>{3, 1, 0, 2}));
  allocator->kernel_uses().set_listener({});
}

TEST_F(GroupOrderTest, IfTheOrderIsKnownKernelsWaitOnlyForTheirOwnPages) {
  const GroupNumber group = make_group("llm", 4);
  sleep_and_wake(group);
  for (const std::size_t each : {3, 1, 0, 2}) use(each);
  machine->busy.insert(stream(1));  // the pages leave after its work, and come back after that
  sleep_and_wake(group);
  EXPECT_EQ(std::ranges::count(machine->waits, "stream 1 waits for stream lane"), 0);
  use(3);
  EXPECT_EQ(std::ranges::count(machine->waits, "stream 1 waits for stream lane"), 1);
  machine->end_work({stream(1)});
  use(1);
  EXPECT_FALSE(allocator->kernel_uses().wanted()) << "all pages have come";
}

TEST_F(GroupOrderTest, AGroupThatKernelsDoNotUseIsNotObservedForLong) {
  const GroupNumber group = make_group("llm", 2);
  char* other = device(4 * kMiB, stream(1));
  sleep_and_wake(group);
  for (std::size_t kernel = 1; kernel < policy::kMostUnrelatedKernels; ++kernel)
    allocator->kernel_uses().note(other, 4 * kMiB, stream(1), 1);
  EXPECT_TRUE(allocator->kernel_uses().wanted());
  allocator->kernel_uses().note(other, 4 * kMiB, stream(1), 1);
  EXPECT_FALSE(allocator->kernel_uses().wanted());
}

TEST_F(GroupOrderTest, AnOrderThatLacksManyPagesIsLearnedAgain) {
  const GroupNumber group = make_group("llm", 2);
  sleep_and_wake(group);
  for (const std::size_t each : {1, 0}) use(each);
  make_group("llm", 2);
  sleep_and_wake(group);
  EXPECT_TRUE(allocator->kernel_uses().wanted());
  for (const std::size_t each : {2, 3, 0, 1}) use(each);
  sleep_and_wake(group);
  EXPECT_EQ(sent_members(), (std::vector<std::ptrdiff_t>{2, 3, 0, 1}));
}

// ---- idle groups, by a clock of the test

class IdleGroupsTest : public GroupsTest {
 protected:
  void SetUp() override { begin(""); }
  void begin(const char* configured) {
    Configuration configuration = without_thread_caches();
    configuration.groups = configured;
    start(configuration);
    machine->now = 100s;
    Engine& engine = allocator->engine();
    engine.groups.owner([&] { return std::make_shared<GroupRegistry>(engine, false); });
  }
  GroupRegistry& registry() { return static_cast<GroupRegistry&>(*groups()); }
  std::chrono::nanoseconds look_after(std::chrono::nanoseconds time) {
    *machine->now += time;
    return registry().look_for_idle_groups();
  }
};

TEST_F(IdleGroupsTest, AGroupThatNothingUsesSleepsAfterItsIdleTime) {
  const GroupNumber group = make_group("llm");
  groups()->set(group, {.idle = 30s});
  EXPECT_EQ(look_after(10s), 5s);
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(look_after(5s), 15s);
  EXPECT_TRUE(allocator->kernel_uses().wanted()) << "in the second half of the idle time";
  EXPECT_EQ(look_after(15s), 15s);
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(on_device(group), 0u);
  EXPECT_EQ(groups()->figures(group).idle_sleeps, 1u);
  EXPECT_EQ(groups()->figures(group).state, GroupState::kAsleep);
  look_after(1h);
  EXPECT_EQ(groups()->figures(group).sleeps, 1u) << "it sleeps already";
}

TEST_F(IdleGroupsTest, KernelsAndCallsAreUses) {
  const GroupNumber group = make_group("llm");
  groups()->set(group, {.idle = 30s});
  look_after(20s);
  allocator->kernel_uses().note(members[1] + kMiB, kMiB, stream(1), 1);
  EXPECT_EQ(look_after(15s), 15s);
  EXPECT_EQ(on_device(group), 8 * kMiB);
  groups()->wake(group, kStream);
  look_after(20s);
  EXPECT_EQ(on_device(group), 8 * kMiB);
  look_after(10s);
  EXPECT_EQ(on_device(group), 0u);
}

TEST_F(IdleGroupsTest, NothingSleepsDuringACapture) {
  const GroupNumber group = make_group("llm");
  groups()->set(group, {.idle = 30s});
  CaptureGuard& captures = CaptureGuard::of_process();
  CaptureGuard::Beginning(captures).begun();
  EXPECT_EQ(look_after(1h), policy::kIdleRetry);
  EXPECT_EQ(on_device(group), 8 * kMiB);
  captures.end();
  look_after(1h);
  EXPECT_EQ(on_device(group), 0u);
}

TEST_F(IdleGroupsTest, GroupsHaveTheSettingsOfTheConfigurationUntilTheProgramSetsOthers) {
  begin("llm:priority=2,floor=4MiB,idle=30s;image:idle=500ms,copies=none");
  const GroupSettings llm{.priority = 2, .floor_bytes = 4 * kMiB, .idle = 30s};
  EXPECT_EQ(groups()->figures(groups()->open("llm")).settings, llm);
  EXPECT_EQ(groups()->figures(groups()->open("image")).settings,
            (GroupSettings{.idle = 500ms, .copies = GroupCopies::kNone}));
  EXPECT_EQ(groups()->figures(groups()->open("other")).settings, GroupSettings{});
  groups()->set(groups()->open("llm"), {});
  EXPECT_EQ(groups()->figures(groups()->open("llm")).settings, GroupSettings{});
  EXPECT_THROW(groups()->set(groups()->open("llm"), {.idle = -1s}), std::invalid_argument);
}

using WatchedGroupsTest = GroupsTest;

TEST_F(WatchedGroupsTest, TheThreadExistsOnlyWhileAGroupHasAnIdleTime) {
  const auto threads = [] {  // of that name: ThreadSanitizer has one of its own
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::ifstream(task.path() / "comm") >> name;
      count += name == "uvmalloc-groups" ? 1 : 0;
    }
    return count;
  };
  const auto soon = [&](int wanted) {
    const auto last = std::chrono::steady_clock::now() + 20s;
    while (threads() != wanted && std::chrono::steady_clock::now() < last) {
      std::this_thread::yield();
    }
    return threads();
  };
  const GroupNumber group = groups()->open("llm");
  EXPECT_EQ(threads(), 0);
  groups()->set(group, {.idle = 30s});
  EXPECT_EQ(soon(1), 1);
  groups()->set(group, {});
  EXPECT_EQ(soon(0), 0);
}

TEST_F(WatchedGroupsTest, TheThreadPutsIdleGroupsToSleep) {
  const GroupNumber group = make_group("llm");
  groups()->set(group, {.idle = 2ms});
  while (groups()->figures(group).idle_sleeps == 0) std::this_thread::yield();
  EXPECT_EQ(on_device(group), 0u);
}

TEST_F(WatchedGroupsTest, TheThreadAndThreadsOfTheProgramMayMoveAGroupAtOnce) {
  const GroupNumber group = make_group("llm");
  groups()->set(group, {.idle = 1us});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        groups()->wake(group, kStream);
        allocator->kernel_uses().note(members[0], kMiB, stream(1), 1);
        groups()->sleep(group, kStream);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  groups()->set(group, {});
  groups()->sleep(group, kStream);
  EXPECT_EQ(on_device(group), 0u);
  EXPECT_EQ(groups()->figures(group).blocks, 2u);
}

TEST_F(GroupsTest, BlocksMayBeFreedWhileTheirGroupSleepsOrComes) {
  const GroupNumber group = make_group("llm", 3);
  groups()->sleep(group, kStream);
  allocator->free(members[0]);
  EXPECT_EQ(groups()->wake(group, kStream), 8 * kMiB);
  allocator->free(members[1]);
  EXPECT_EQ(groups()->sleep(group, kStream), 4 * kMiB);
  allocator->free(members[2]);
  EXPECT_EQ(groups()->wake(group, kStream), 0u);
  EXPECT_EQ(groups()->figures(group).page_bytes, 0u);
}

TEST_F(GroupsTest, AStreamThatDoesNotExistIsNamedAsTheReason) {
  const GroupNumber group = make_group("llm");
  machine->failures["stream_exists"] = 1;
  EXPECT_EQ(message_of([&] { groups()->sleep(group, kStream); }),
            "group \"llm\": it cannot sleep, because the state of the stream is unknown: "
            "is_capturing: FAKE_INVALID (400)");
  EXPECT_EQ(groups()->figures(group).sleeps, 0u);
}

}  // namespace
}  // namespace uvm
