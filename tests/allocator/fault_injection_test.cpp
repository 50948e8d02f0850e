// Calls every public function of the allocator and of the C interface while the host has no memory
// for the allocator's records: each allocation that a call makes fails once, in turn. The call then
// throws std::bad_alloc or works without that memory. Nothing is broken, lost or leaked.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <uvmalloc/uvmalloc.h>
#include <uvmalloc/memory_resource.hpp>
#include <uvmalloc/registry.hpp>
#include <uvmalloc/use_range.hpp>

#include "allocator/engine/engine.hpp"
#include "allocator/engine/reserved_addresses.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "tests/support/allocator_fixture.hpp"
#include "tests/support/failing_memory.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {
std::atomic<int> started_threads = 0;
}

// Counts the threads that this process starts.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  ++started_threads;
  return next(thread, attributes, body, argument);
}

namespace uvm {
namespace {

using testing::failing;
using testing::kMiB;
using testing::stream;

constexpr std::uint64_t kPrivate = 7;
constexpr std::uint64_t kOtherPrivate = 8;

// An allocator in the middle of its life: blocks of every kind are live, moved, cached by the
// thread, free in pools, and behind fences.
struct World {
  explicit World(const Configuration& configuration)
      : machine(std::make_shared<testing::FakeMachine>()),
        allocator(std::make_unique<CachingManagedAllocator>(
            std::make_unique<testing::FakeRuntime>(machine), configuration)) {
    small = make(Facade::kDevice, 300, stream(1));
    shared = make(Facade::kDevice, 100000, stream(1));
    large = make(Facade::kDevice, 3 * kMiB, stream(2));
    whole = make(Facade::kHost, 4 * kMiB);
    part = make(Facade::kHost, 700000);
    pinned = make(Facade::kPinned, 5 * kMiB);
    moved = make(Facade::kHost, 6 * kMiB);
    record = allocator->move(moved, {Place::host(), Place::device(0), 0, stream(3), true});
    used = make(Facade::kDevice, 200000, stream(1));
    for (std::uintptr_t user : {2, 3}) allocator->record_use(used, 0, stream(user));
    allocator->private_pools().begin(
        0, kPrivate, [](StreamHandle asks) { return asks == stream(9); }, false);
    in_private = make(Facade::kDevice, 5 * kMiB, stream(9));
    other_private = make(Facade::kDevice, 100000, stream(9));
    allocator->private_pools().end(0, kPrivate);
    // Free blocks: in pools, displaced, in the thread's cache, and behind fences.
    void* displaced = make(Facade::kHost, 8 * kMiB);
    allocator->move(displaced, {Place::host(), Place::device(0), 0, stream(3), true});
    void* fenced = make(Facade::kDevice, 300000, stream(1));
    allocator->record_use(fenced, 0, stream(4));
    machine->busy = {stream(4)};
    for (void* block : {displaced, fenced, make(Facade::kDevice, 400, stream(1)),
                        make(Facade::kDevice, 50000, stream(2)), make(Facade::kHost, 9 * kMiB)}) {
      free(block);
    }
  }

  void* make(Facade facade, std::size_t size_bytes, StreamHandle on = nullptr) {
    return keep(allocator->allocate(facade, 0, size_bytes, on));
  }
  void* keep(void* block) {
    if (block != nullptr) live.push_back(block);
    return block;
  }
  ReservedAddresses addresses() { return ReservedAddresses(allocator->engine()); }
  void reserve() { reserved = addresses().reserve(0, 64 * kMiB); }
  void promise() {
    addresses().promise(0, 4 * kMiB);
    promised_bytes += 4 * kMiB;
  }
  void place() {
    addresses().place(0, reserved + 8 * kMiB, 4 * kMiB);
    promised_bytes -= 4 * kMiB;
    keep(reserved + 8 * kMiB);
  }
  void free(void* block) {
    std::erase(live, block);
    EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
  }
  // Frees everything and checks that nothing is lost.
  void end() {
    allocator->inspection().check_invariants();
    for (void* block : live) EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
    live.clear();
    for (std::uint64_t pool : {kPrivate, kOtherPrivate}) {
      while (allocator->private_pools().release(0, pool)) {
      }
    }
    machine->busy.clear();
    machine->capturing.clear();
    if (promised_bytes != 0) addresses().withdraw(0, promised_bytes);
    if (reserved != nullptr) addresses().release(reserved);
    allocator->release_cached();
    allocator->inspection().check_invariants();
    const Statistics now = allocator->statistics();
    EXPECT_EQ(now.live_bytes.current, 0u);
    EXPECT_EQ(now.touched_bytes.current, 0u);
    EXPECT_EQ(now.span_bytes.current, 0u);
    EXPECT_EQ(machine->allocated_bytes, 0u);
    allocator.reset();
    EXPECT_EQ(machine->allocated_bytes, 0u) << "a span was not given back";
    EXPECT_EQ(machine->events.size(), 0u) << "an event was lost";
    EXPECT_EQ(machine->streams, 0) << "a stream was lost";
  }

  std::shared_ptr<testing::FakeMachine> machine;
  std::unique_ptr<CachingManagedAllocator> allocator;
  std::vector<void*> live;
  void* small = nullptr;
  void* shared = nullptr;
  void* large = nullptr;
  void* whole = nullptr;
  void* part = nullptr;
  void* pinned = nullptr;
  void* moved = nullptr;  // to the device, with a record
  MovedStorage* record = nullptr;
  void* used = nullptr;  // by streams 2 and 3
  void* in_private = nullptr;
  void* other_private = nullptr;
  char* reserved = nullptr;  // addresses
  std::size_t promised_bytes = 0;
};

struct Call {
  const char* name;
  // Sets the world up before the call; may be empty.
  std::function<void(World&)> prepare;
  std::function<void(World&)> run;
  friend void PrintTo(const Call& call, std::ostream* out) { *out << call.name; }
};

Call call(const char* name, std::function<void(World&)> run) {
  return {name, {}, std::move(run)};
}

// A free of `block`, which must succeed even without memory.
Call free_of(const char* name, void* World::*block) {
  return {name, {}, [block](World& world) { world.free(world.*block); }};
}

void begin_capture(World& world) {
  world.allocator->private_pools().begin(
      0, kPrivate, [](StreamHandle asks) { return asks == stream(8); }, true);
  world.machine->capturing = {stream(8)};
}
void end_capture(World& world) {
  world.machine->capturing.clear();
  world.allocator->private_pools().end(0, kPrivate);
}

std::string trace_file() {
  return ::testing::TempDir() + "uvmalloc-fault-injection.trace";
}

// Returns the path of the figures that an allocator left, as if its process had been killed.
std::string figures_file() {
  static const std::string kFile = [] {
    std::string file = ::testing::TempDir() + "uvmalloc-fault-injection.figures";
    std::filesystem::remove(file);
    CachingManagedAllocator allocator(
        std::make_unique<testing::FakeRuntime>(std::make_shared<testing::FakeMachine>()), {}, file);
    allocator.free(allocator.allocate(Facade::kHost, 0, 3 * kMiB));
    FrameworkBridge(allocator).note_copy(CopyReason::kForeign, 100);
    EXPECT_TRUE(
        allocator.engine().machine.figure_store.describe(R"({"program": "a", "devices": []})"));
    return file;
  }();
  return kFile;
}

// A text has a length; the length is -1 if there was no memory for the text.
void expect_text_or_no_memory(std::int64_t length_bytes) {
  EXPECT_TRUE(length_bytes > 100 || length_bytes == -1) << length_bytes;
  EXPECT_TRUE(length_bytes > 0 || failing == 0);
}

uvmalloc_allocator* handle(World& world) {
  return reinterpret_cast<uvmalloc_allocator*>(world.allocator.get());
}

// A C function reports errors by its status and throws nothing.
void expect_ok_or_no_memory(uvmalloc_status status) {
  EXPECT_TRUE(status == UVMALLOC_OK || status == UVMALLOC_ERROR_OUT_OF_MEMORY) << status;
  if (failing == 0 && status == UVMALLOC_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
  EXPECT_NE(std::strlen(uvmalloc_status_name(status)), 0u);
}

std::vector<Call> calls() {
  std::vector<Call> all;
  auto allocate = [&](const char* name, Facade facade, std::size_t size_bytes, StreamHandle on) {
    all.push_back(call(name, [=](World& world) { world.make(facade, size_bytes, on); }));
  };
  allocate("allocate a small object", Facade::kDevice, 200, stream(1));
  allocate("allocate a small object of another stream", Facade::kDevice, 200, stream(5));
  allocate("allocate a small host object", Facade::kHost, 700, nullptr);
  allocate("allocate a shared block", Facade::kDevice, 90000, stream(1));
  allocate("allocate a shared block of another stream", Facade::kDevice, 90000, stream(5));
  allocate("allocate in new pages", Facade::kDevice, 20 * kMiB, stream(1));
  allocate("allocate in a new span", Facade::kDevice, 40 * kMiB, stream(1));
  allocate("allocate a shared host block", Facade::kHost, 800000, nullptr);
  allocate("allocate a whole block", Facade::kHost, 3 * kMiB, nullptr);
  allocate("allocate what has moved away", Facade::kHost, 8 * kMiB, nullptr);
  allocate("allocate a displaced block", Facade::kDevice, 8 * kMiB, stream(3));
  allocate("allocate a pinned block", Facade::kPinned, 7 * kMiB, nullptr);
  allocate("allocate in a private pool", Facade::kDevice, 2 * kMiB, stream(9));
  all.push_back({"allocate in a new private pool",
                 [](World& world) {
                   world.allocator->private_pools().begin(
                       0, kOtherPrivate, [](StreamHandle asks) { return asks == stream(7); },
                       false);
                 },
                 [](World& world) { world.make(Facade::kDevice, 2 * kMiB, stream(7)); }});
  all.push_back(call("allocate more than there is", [](World& world) {
    try {
      world.make(Facade::kDevice, 300 * kMiB, stream(1));
      ADD_FAILURE() << "it is beyond the budget";
    } catch (const std::bad_alloc&) {
    }
  }));
  all.push_back({"allocate while a callback frees",
                 [](World& world) {
                   void* spare = world.make(Facade::kDevice, 150 * kMiB, stream(6));
                   world.allocator->limits().add_pressure_callback([&world, spare]() mutable {
                     if (spare == nullptr) return false;
                     world.free(std::exchange(spare, nullptr));
                     return true;
                   });
                 },
                 [](World& world) {
                   void* block = world.make(Facade::kDevice, 120 * kMiB, stream(1));
                   world.free(block);
                 }});
  all.push_back(call("allocate_aligned for the host", [](World& world) {
    world.keep(world.allocator->allocate_aligned(Facade::kHost, 0, 100, 4096, nullptr));
  }));
  all.push_back(call("allocate_aligned for the device", [](World& world) {
    world.keep(world.allocator->allocate_aligned(Facade::kDevice, 0, 100000, 65536, stream(1)));
  }));
  all.push_back(call("reserve addresses", [](World& world) { world.reserve(); }));
  all.push_back(call("promise memory", [](World& world) { world.promise(); }));
  all.push_back({"place memory at an address",
                 [](World& world) {
                   world.reserve();
                   world.promise();
                 },
                 [](World& world) { world.place(); }});
  all.push_back({"remove memory from an address",
                 [](World& world) {
                   world.reserve();
                   world.promise();
                   world.place();
                 },
                 [](World& world) {
                   std::erase(world.live, world.reserved + 8 * kMiB);
                   world.addresses().remove(world.reserved + 8 * kMiB);
                 }});
  all.push_back(free_of("free a small object", &World::small));
  all.push_back(free_of("free a shared block", &World::shared));
  all.push_back(free_of("free a large block", &World::large));
  all.push_back(free_of("free a whole block", &World::whole));
  all.push_back(free_of("free a shared host block", &World::part));
  all.push_back(free_of("free a pinned block", &World::pinned));
  all.push_back(free_of("free a block that has moved", &World::moved));
  all.push_back(free_of("free a block that others use", &World::used));
  all.push_back(free_of("free a block of a private pool", &World::in_private));
  all.push_back({"free a block of a private pool that was released",
                 [](World& world) {
                   world.free(world.other_private);
                   world.allocator->private_pools().release(0, kPrivate);
                   world.allocator->private_pools().release_cached(0, kPrivate);
                 },
                 [](World& world) { world.free(world.in_private); }});
  all.push_back({"free during a capture", begin_capture, [](World& world) {
                   world.free(world.used);
                   const long left = std::exchange(failing, 0);
                   end_capture(world);
                   failing = left;
                 }});
  all.push_back({"free a block of a stream that is gone",
                 [](World& world) {
                   world.allocator->record_use(world.shared, 0, stream(2));
                   world.allocator->streams().forget(0, stream(2));
                 },
                 [](World& world) {
                   world.free(world.shared);
                   world.free(world.large);
                 }});
  all.push_back({"free a block that its stream's end leaves moved",
                 [](World& world) { world.allocator->streams().forget(0, stream(3)); },
                 [](World& world) { world.free(world.moved); }});
  all.push_back(call("free what is no block", [](World& world) {
    EXPECT_EQ(world.allocator->free(&world), FreeResult::kNotOurs);
    EXPECT_EQ(world.allocator->free(static_cast<char*>(world.whole) + 512), FreeResult::kInterior);
  }));
  all.push_back(call("record_use", [](World& world) {
    EXPECT_TRUE(world.allocator->record_use(world.shared, 0, stream(7)));
  }));
  all.push_back(call("record_use_of_all", [](World& world) {
    EXPECT_TRUE(world.allocator->streams().record_use_of_all(world.whole, 0));
  }));
  all.push_back(
      call("uses_of", [](World& world) { world.allocator->streams().uses_of(world.used); }));
  all.push_back(call("mark_exported", [](World& world) {
    EXPECT_TRUE(FrameworkBridge(*world.allocator).mark_exported(world.whole));
  }));
  all.push_back(call("mark_live_exported",
                     [](World& world) { FrameworkBridge(*world.allocator).mark_live_exported(); }));
  auto move = [&](const char* name, void* World::*block, MoveRequest how) {
    all.push_back(call(
        name, [=](World& world) { EXPECT_NE(world.allocator->move(world.*block, how), nullptr); }));
  };
  move("move to a device", &World::whole, {Place::host(), Place::device(0), 0, stream(1), true});
  move("move to the host", &World::moved, {Place::device(0), Place::host(), 0, stream(3), true});
  move("move to the host without waiting", &World::moved,
       {Place::device(0), Place::host(), 0, stream(5), false});
  move("move a shared block", &World::shared,
       {Place::device(0), Place::host(), 0, stream(1), true});
  move("move a part", &World::whole,
       {Place::host(), Place::device(0), 0, stream(5), true, 3 * kMiB, false});
  all.push_back(call("prefetch", [](World& world) {
    world.allocator->prefetch(world.whole, 4 * kMiB, Place::device(0), 0, stream(1));
  }));
  all.push_back(call("advise", [](World& world) {
    world.allocator->advise(world.whole, {.preferred = Place::device(0), .read_mostly = true});
  }));
  all.push_back(call("residency", [](World& world) {
    world.allocator->inspection().residency(world.whole, 4 * kMiB);
  }));
  all.push_back({"release a record", {}, [](World& world) {
                   if (world.record == nullptr) return;
                   world.allocator->release(std::exchange(world.record, nullptr));
                 }});
  all.push_back(call("wait_for_uses",
                     [](World& world) { world.allocator->streams().wait_for_uses(world.used); }));
  all.push_back(call("find", [](World& world) {
    EXPECT_TRUE(world.allocator->find(world.used)->waits_when_freed);
    EXPECT_FALSE(world.allocator->find(&world).has_value());
  }));
  all.push_back(call("release_cached", [](World& world) { world.allocator->release_cached(); }));
  all.push_back({"release_cached with all free",
                 [](World& world) {
                   while (!world.live.empty()) world.free(world.live.back());
                 },
                 [](World& world) { world.allocator->release_cached(); }});
  all.push_back(call("release_cached_of a facade",
                     [](World& world) { world.allocator->release_cached_of(Facade::kHost); }));
  all.push_back(
      {"release_cached_of a private pool",
       [](World& world) {
         world.free(world.in_private);
         world.allocator->private_pools().release(0, kPrivate);
       },
       [](World& world) { world.allocator->private_pools().release_cached(0, kPrivate); }});
  all.push_back(
      call("forget_stream", [](World& world) { world.allocator->streams().forget(0, stream(1)); }));
  all.push_back(call("forget_stream of a private pool",
                     [](World& world) { world.allocator->streams().forget(0, stream(9)); }));
  all.push_back({"allocate on a new stream that takes pools over",
                 [](World& world) { world.allocator->streams().forget(0, stream(1)); },
                 [](World& world) { world.make(Facade::kDevice, 90000, stream(5)); }});
  all.push_back(call("decay", [](World& world) {
    world.allocator->limits().decay(std::chrono::steady_clock::now() + std::chrono::hours(1));
  }));
  all.push_back(call("begin_private_pool", [](World& world) {
    world.allocator->private_pools().begin(
        0, kPrivate, [](StreamHandle asks) { return asks == stream(8); }, false);
  }));
  all.push_back({"end_private_pool with frees put off",
                 [](World& world) {
                   begin_capture(world);
                   world.free(world.used);
                   world.free(world.moved);
                   world.machine->capturing.clear();
                 },
                 [](World& world) { world.allocator->private_pools().end(0, kPrivate); }});
  all.push_back({"release_private_pool with frees put off",
                 [](World& world) {
                   begin_capture(world);
                   world.free(world.used);
                   world.machine->capturing.clear();
                 },
                 [](World& world) { world.allocator->private_pools().release(0, kPrivate); }});
  all.push_back(call("retain_private_pool", [](World& world) {
    world.allocator->private_pools().retain(0, kOtherPrivate);
  }));
  all.push_back(call("private_pool_users",
                     [](World& world) { world.allocator->private_pools().users(0, kPrivate); }));
  all.push_back(call("give_whole_pages", [](World& world) {
    world.allocator->private_pools().give_whole_pages(0, kPrivate);
  }));
  all.push_back(call("private_blocks",
                     [](World& world) { world.allocator->private_pools().blocks(0, kPrivate); }));
  all.push_back(call("restore_private_pool", [](World& world) {
    // Removes all blocks of the pool, then restores the blocks.
    const long left = std::exchange(failing, 0);
    const auto before = world.allocator->private_pools().blocks(0, kPrivate);
    failing = left;
    std::erase(world.live, world.in_private);
    std::erase(world.live, world.other_private);
    struct Known {
      ~Known() {
        const long later = std::exchange(failing, 0);
        for (const auto& block : world.allocator->private_pools().blocks(0, kPrivate)) {
          world.keep(block.address);
        }
        failing = later;
      }
      World& world;
    } known{world};
    world.allocator->private_pools().restore(0, kPrivate, {});
    world.allocator->private_pools().restore(0, kPrivate, before);
  }));
  all.push_back(call("add_pressure_callback", [](World& world) {
    world.allocator->limits().add_pressure_callback([] { return false; });
  }));
  all.push_back(call("set_device_limit", [](World& world) {
    world.allocator->limits().set_device_limit(0, 200 * kMiB);
    world.allocator->limits().free_bytes(0, {1u << 30, 1u << 30});
  }));
  all.push_back(call("notes", [](World& world) {
    FrameworkBridge(*world.allocator).note_left_host(world.whole);
    FrameworkBridge(*world.allocator).note_left_host(world.moved);
    FrameworkBridge(*world.allocator).note_copy(CopyReason::kForeign, 100);
    FrameworkBridge(*world.allocator).note_materialization(100, false);
  }));
  all.push_back(call("statistics", [](World& world) { world.allocator->statistics(); }));
  all.push_back(call("segments", [](World& world) { world.allocator->inspection().segments(); }));
  all.push_back(call("reset_peaks and reset_totals", [](World& world) {
    world.allocator->reset_peaks(Facade::kDevice, 0);
    world.allocator->reset_totals(Facade::kDevice, 0);
  }));
  all.push_back(call("a trace", [](World& world) {
    world.allocator->tracing().start(trace_file());
    world.allocator->tracing().mark("here");
    world.free(world.make(Facade::kDevice, 90000, stream(1)));
    world.allocator->record_use(world.shared, 0, stream(2));
    world.allocator->tracing().stop();
  }));
  all.push_back(call("check_invariants",
                     [](World& world) { world.allocator->inspection().check_invariants(); }));
  all.push_back(call("fork", [](World& world) {
    const pid_t child = fork();
    if (child == 0) {
      failing = 0;
      alarm(20);
      world.allocator->statistics();
      const bool fine = world.allocator->free(world.whole) == FreeResult::kFreed &&
                        world.allocator->free(world.allocator->allocate(Facade::kHost, 0, 100)) ==
                            FreeResult::kFreed;
      _exit(fine ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }));
  all.push_back(call("free_after", [](World& world) {
    std::erase(world.live, world.shared);
    free_after(*world.allocator, world.shared, 0, stream(7));
  }));
  all.push_back(call("ManagedMemoryResource", [](World& world) {
    ManagedMemoryResource resource(*world.allocator);
    resource.deallocate(resource.allocate(90000), 90000);
    free_or_log(*world.allocator, nullptr);
  }));

  // The C interface.
  auto c_allocate = [&](const char* name, int facade, std::size_t size_bytes) {
    all.push_back(call(name, [=](World& world) {
      void* block = nullptr;
      expect_ok_or_no_memory(
          uvmalloc_allocate(handle(world), facade, 0, size_bytes, 0, stream(5), &block));
      world.keep(block);
    }));
  };
  c_allocate("uvmalloc_allocate a small object", UVMALLOC_DEVICE, 100);
  c_allocate("uvmalloc_allocate a host block", UVMALLOC_HOST, 20 * kMiB);
  all.push_back(call("uvmalloc_free", [](World& world) {
    std::erase(world.live, world.used);
    EXPECT_EQ(uvmalloc_free(handle(world), world.used), UVMALLOC_OK);
  }));
  all.push_back(call("uvmalloc_free of what is no block", [](World& world) {
    EXPECT_EQ(uvmalloc_free(handle(world), &world), UVMALLOC_ERROR_NOT_OURS);
  }));
  all.push_back(call("uvmalloc_record_use", [](World& world) {
    expect_ok_or_no_memory(uvmalloc_record_use(handle(world), world.shared, 0, stream(7)));
  }));
  all.push_back(call("uvmalloc_forget_stream", [](World& world) {
    expect_ok_or_no_memory(uvmalloc_forget_stream(handle(world), 0, stream(1)));
  }));
  all.push_back(call("uvmalloc_wait_for_uses", [](World& world) {
    expect_ok_or_no_memory(uvmalloc_wait_for_uses(handle(world), world.used));
  }));
  all.push_back(call("uvmalloc_release_cached and uvmalloc_decay", [](World& world) {
    expect_ok_or_no_memory(uvmalloc_release_cached(handle(world)));
    expect_ok_or_no_memory(uvmalloc_decay(handle(world)));
  }));
  all.push_back(call("uvmalloc_describe", [](World& world) {
    uvmalloc_block block{};
    block.struct_bytes = sizeof block;
    expect_ok_or_no_memory(uvmalloc_describe(handle(world), world.whole, &block));
  }));
  all.push_back(call("uvmalloc_get_statistics and uvmalloc_reset_peaks", [](World& world) {
    uvmalloc_statistics figures{};
    figures.struct_bytes = sizeof figures;
    expect_ok_or_no_memory(uvmalloc_get_statistics(handle(world), &figures));
    expect_ok_or_no_memory(uvmalloc_reset_peaks(handle(world)));
  }));
  all.push_back(
      call("uvmalloc_set_device_limit and uvmalloc_add_pressure_callback", [](World& world) {
        int count = 0;
        expect_ok_or_no_memory(uvmalloc_device_count(handle(world), &count));
        expect_ok_or_no_memory(uvmalloc_set_device_limit(handle(world), 0, 200 * kMiB));
        expect_ok_or_no_memory(uvmalloc_set_budget(handle(world), 200 * kMiB));
        expect_ok_or_no_memory(uvmalloc_add_pressure_callback(
            handle(world), [](void*) { return 0; }, nullptr));
      }));
  all.push_back(call("uvmalloc_start_trace and uvmalloc_stop_trace", [](World& world) {
    const std::string file = trace_file();
    struct Stopped {
      ~Stopped() { EXPECT_EQ(uvmalloc_stop_trace(handle(world)), UVMALLOC_OK); }
      World& world;
    } stopped{world};
    expect_ok_or_no_memory(uvmalloc_start_trace(handle(world), file.c_str()));
    expect_ok_or_no_memory(uvmalloc_mark_trace(handle(world), "here"));
  }));
  all.push_back(call("uvmalloc_doctor_json", [](World&) {
    setenv("UVMALLOC_RUNTIME", "fault injection", 1);
    expect_text_or_no_memory(uvmalloc_doctor_json(nullptr, 0));
    unsetenv("UVMALLOC_RUNTIME");
  }));
  all.push_back({"uvmalloc_report_json_of", [](World&) { figures_file(); },
                 [](World&) {
                   const std::string file = figures_file();
                   expect_text_or_no_memory(uvmalloc_report_json_of(file.c_str(), nullptr, 0));
                 }});
  all.push_back(call("uvmalloc_create and uvmalloc_destroy", [](World&) {
    uvmalloc_options options{};
    options.struct_bytes = sizeof options;
    options.runtime = "fault injection";
    uvmalloc_allocator* made = nullptr;
    expect_ok_or_no_memory(uvmalloc_create(&options, &made));
    EXPECT_EQ(uvmalloc_destroy(made), UVMALLOC_OK);
  }));
  return all;
}

class FaultInjection : public ::testing::TestWithParam<Call> {
 protected:
  static Configuration configuration() {
    Configuration configuration;
    configuration.budget_bytes = 256 * kMiB;
    configuration.span_bytes = 32 * kMiB;
    return configuration;
  }

  void SetUp() override {
    set_log_level(LogLevel::kOff);
    static const bool kAdded = add_runtime("fault injection", [](std::string*) {
      return std::make_unique<testing::FakeRuntime>(std::make_shared<testing::FakeMachine>());
    });
    ASSERT_TRUE(kAdded);
  }
  void TearDown() override {
    std::filesystem::remove(trace_file());
    set_log_level(LogLevel::kWarning);
  }

  // Calls that build long texts make thousands of similar allocations. Sanitized builds are slow,
  // so they skip some of these allocations.
  static constexpr long kLeastInTurn = 100;
  static constexpr long kStep = testing::kIsSanitized ? 23 : 1;

  // Runs the call once with allocation `number` failing, on this thread, which has used the
  // allocator, or on a new thread. Returns whether the call made that many allocations.
  static bool run_failing(bool on_new_thread, long number) {
    World world(configuration());
    if (GetParam().prepare) GetParam().prepare(world);
    bool has_failed = false;
    auto run = [&] {
      failing = number;
      try {
        GetParam().run(world);
      } catch (const std::bad_alloc&) {
        // Expected. OutOfMemoryError is a std::bad_alloc, too.
      }
      has_failed = std::exchange(failing, 0) == 0;
    };
    if (on_new_thread) {
      std::thread(run).join();
    } else {
      run();
    }
    // Hangs if the call has left a lock taken.
    std::thread([&] { world.allocator->inspection().check_invariants(); }).join();
    world.end();
    return has_failed;
  }

  static void run_with_each_failing(bool on_new_thread) {
    SCOPED_TRACE(on_new_thread ? "on a new thread" : "on a thread with a cache");
    run_failing(on_new_thread, 0);  // allocates what is made only once per process
    bool has_failed = true;
    for (long number = 1; has_failed; number += number < kLeastInTurn ? 1 : kStep) {
      SCOPED_TRACE("allocation " + std::to_string(number));
      const std::int64_t before = testing::live_allocations();
      has_failed = run_failing(on_new_thread, number);
      if (const std::int64_t after = testing::live_allocations(); after != before) {
        // A message that is logged only once adds one record. Only a leak adds memory in each run.
        run_failing(on_new_thread, number);
        EXPECT_EQ(testing::live_allocations(), after) << "a leak";
      }
      if (HasFailure()) return;
      ASSERT_LT(number, 10000);
    }
  }
};

TEST_P(FaultInjection, GoesOnWithoutMemoryOrFailsAsAWhole) {
  run_with_each_failing(false);
  run_with_each_failing(true);
}

INSTANTIATE_TEST_SUITE_P(Calls, FaultInjection, ::testing::ValuesIn(calls()),
                         [](const ::testing::TestParamInfo<Call>& of) {
                           std::string name;
                           bool capital = true;
                           for (const char* at = of.param.name; *at != '\0'; ++at) {
                             const bool letter = std::isalnum(static_cast<unsigned char>(*at)) != 0;
                             if (letter) {
                               name += capital ? static_cast<char>(std::toupper(*at)) : *at;
                             }
                             capital = !letter;
                           }
                           return name;
                         });

// Two devices of 64 MiB with a fast link. The first device has too little memory, so moves are
// planned, and some of its pages are on the second device.
struct PlannedWorld {
  PlannedWorld() : machine(std::make_shared<testing::FakeMachine>(2)) {
    machine->total_bytes = 64 * kMiB;
    machine->has_fast_links = true;
    Configuration configuration;
    configuration.policy = Policy::kPlanned;
    configuration.budget_bytes = 256 * kMiB;
    configuration.span_bytes = 256 * kMiB;
    configuration.thread_cache_bytes = 0;
    allocator = std::make_unique<CachingManagedAllocator>(
        std::make_unique<testing::FakeRuntime>(machine), configuration);
    for (int i = 0; i < 36; ++i) pages.push_back(page());
    for (int i = 0; i < 4; ++i) step(live::kReads | live::kWrites);
  }
  void* page() { return allocator->allocate(Facade::kDevice, 0, kPageBytes, stream(1)); }
  void step(std::uint8_t access) {
    for (void* each : pages) allocator->kernel_uses().note(each, kPageBytes, stream(1), access);
  }
  // Allocation `number` fails, and the step continues.
  void run(long number) {
    failing = number;
    try {
      step(live::kReads);
      allocator->free(std::exchange(pages[3], nullptr));
      pages[3] = page();
      step(live::kReads | live::kOnce);
      allocator->kernel_uses().step_boundary();
    } catch (const std::bad_alloc&) {
    }
  }
  void end() {
    allocator->inspection().check_invariants();
    for (void* each : pages) allocator->free(each);
    allocator->release_cached();
    EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u) << "a page was lost";
    allocator.reset();
    EXPECT_EQ(machine->allocated_bytes, 0u);
    EXPECT_EQ(machine->events.size(), 0u) << "an event was lost";
    EXPECT_EQ(machine->streams, 0) << "a stream was lost";
  }

  std::shared_ptr<testing::FakeMachine> machine;
  std::unique_ptr<CachingManagedAllocator> allocator;
  std::vector<void*> pages;
};

TEST(FaultInjectionInPlans, AProgramWhoseMovesArePlannedGoesOnWithoutMemory) {
  set_log_level(LogLevel::kOff);
  bool has_failed = true;
  for (long number = 1; has_failed; number += testing::kIsSanitized ? 7 : 1) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    PlannedWorld world;
    ASSERT_GT(world.allocator->inspection().live_figures().pages_to_peers, 0u);
    if (number % 3 == 0) world.machine->failures["advise"] = 1000;
    world.run(number);
    has_failed = std::exchange(failing, 0) == 0;
    world.end();
    if (::testing::Test::HasFailure()) break;
  }
  set_log_level(LogLevel::kWarning);
}

// The sharing thread uses all parts of an allocator, so the constructor starts this thread only
// when nothing can fail any more.
TEST(FaultInjectionInSharing, AnAllocatorThatCannotBeMadeHasStartedNoThread) {
  set_log_level(LogLevel::kOff);
  const testing::TemporaryFolder folder;
  Configuration configuration;
  configuration.budget_bytes = 256 * kMiB;
  configuration.share = true;
  configuration.share_folder = folder.path();
  configuration.trace_file = trace_file();
  bool is_made = false;
  for (long number = 1; !is_made; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    const int threads = started_threads;
    failing = number;
    std::unique_ptr<CachingManagedAllocator> made;
    try {
      made = std::make_unique<CachingManagedAllocator>(
          std::make_unique<testing::FakeRuntime>(std::make_shared<testing::FakeMachine>()),
          configuration);
    } catch (const std::bad_alloc&) {
    }
    is_made = std::exchange(failing, 0) != 0;
    EXPECT_EQ(started_threads != threads, made != nullptr);
  }
  EXPECT_GT(started_threads, 0);
  std::filesystem::remove(trace_file());
  set_log_level(LogLevel::kWarning);
}

}  // namespace
}  // namespace uvm
