// Every function of the C interface, and every function of the C++ class that programs call, in
// every way in which a program may use them. test_matrix.py compares the names with the headers.
#include <cuda.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <uvmalloc/uvmalloc.h>
#include <uvmalloc/memory_resource.hpp>
#include "allocator/interface.hpp"
#include "runtime/cuda/vendor.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"
#include "tests/support/temporary_folder.hpp"

namespace uvm {
namespace {

// The arguments of a use. During a capture, work on the stream does not run, and nobody can wait
// for that work. A forked child has host memory from malloc, and no device.
struct At {
  uvmalloc_allocator* allocator = nullptr;
  int device = 0;
  StreamHandle stream = nullptr;
  bool is_capturing = false;
  bool is_forked = false;
  std::vector<uvmalloc_allocator*>* left = nullptr;  // to destroy after the capture

  CachingManagedAllocator& own() const {
    return *reinterpret_cast<CachingManagedAllocator*>(allocator);
  }
  const DeviceRuntime& runtime() const { return own().inspection().runtime(); }
  void worked(uvmalloc_status status) const {
    const bool may_refuse = is_forked && status == UVMALLOC_ERROR_NOT_OURS;
    const bool may_not_wait = (is_forked || is_capturing) && status == UVMALLOC_ERROR_NOT_USABLE;
    EXPECT_TRUE(status == UVMALLOC_OK || may_refuse || may_not_wait) << uvmalloc_last_error();
  }
  // Runs a call of the C++ interface that throws if C would return UVMALLOC_ERROR_NOT_USABLE.
  void may_throw(const std::function<void()>& call) const {
    try {
      call();
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(is_forked || is_capturing) << error.what();
    }
  }
};

constexpr std::size_t kBytes = 3 * kMiB;

// A block with known contents, written by the stream.
class Filled {
 public:
  Filled(const At& at, int facade, std::size_t size_bytes)
      : at_(at), size_bytes_(size_bytes), facade_(facade) {
    const uvmalloc_status status =
        uvmalloc_allocate(at.allocator, facade, at.device, size_bytes, 0, at.stream, &block_);
    if (at.is_forked && facade == UVMALLOC_DEVICE) {
      EXPECT_EQ(status, UVMALLOC_ERROR_NOT_USABLE);
      return;
    }
    EXPECT_EQ(status, UVMALLOC_OK) << uvmalloc_last_error();
    if (block_ == nullptr) return;
    if (at.is_forked) {
      std::memset(block_, 7, size_bytes);
      return;
    }
    void* source = nullptr;
    EXPECT_EQ(uvmalloc_allocate(at.allocator, UVMALLOC_PINNED, at.device, size_bytes, 0, nullptr,
                                &source),
              UVMALLOC_OK);
    std::memset(source, 7, size_bytes);
    const RuntimeStatus copied =
        at.runtime().copy(at.device, block_, source, size_bytes, at.stream);
    EXPECT_TRUE(copied.ok()) << copied.text();
    EXPECT_EQ(uvmalloc_record_use(at.allocator, block_, at.device, at.stream), UVMALLOC_OK);
    EXPECT_EQ(uvmalloc_record_use(at.allocator, source, at.device, at.stream), UVMALLOC_OK);
    EXPECT_EQ(uvmalloc_free(at.allocator, source), UVMALLOC_OK);
  }
  ~Filled() { EXPECT_EQ(uvmalloc_free(at_.allocator, block_), UVMALLOC_OK); }
  Filled(const Filled&) = delete;
  Filled& operator=(const Filled&) = delete;

  char* block() const { return static_cast<char*>(block_); }
  int facade() const { return facade_; }
  std::size_t size_bytes() const { return size_bytes_; }
  void expect_contents() const {
    if (block_ == nullptr || at_.is_capturing) return;
    if (!at_.is_forked) {
      EXPECT_TRUE(at_.runtime().synchronize_stream(at_.device, at_.stream).ok());
    }
    // Each byte equals the byte before it.
    EXPECT_EQ(*block(), 7);
    EXPECT_EQ(std::memcmp(block(), block() + 1, size_bytes_ - 1), 0);
  }

 private:
  const At at_;
  const std::size_t size_bytes_;
  const int facade_;
  void* block_ = nullptr;
};

using Call = void (*)(const At&, const Filled&);

struct Use {
  const char* names;  // as the headers have them
  Call call;
};

int frees_nothing(void* /*argument*/) {
  return 0;
}

// Each call gets blocks of every memory kind and of two sizes. The blocks must keep their contents.
constexpr Use kUses[] = {
    {"uvmalloc_allocate uvmalloc_free",
     [](const At& at, const Filled& filled) {
       Filled(at, filled.facade(), kBytes).expect_contents();
     }},
    {"uvmalloc_create uvmalloc_destroy",
     [](const At& at, const Filled&) {
       uvmalloc_options options{};
       options.struct_bytes = sizeof options;
       options.runtime = "cuda";
       options.budget_bytes = 64 * kMiB;
       At other = at;
       const uvmalloc_status made = uvmalloc_create(&options, &other.allocator);
       if (at.is_forked) {
         EXPECT_EQ(made, UVMALLOC_ERROR_NO_DEVICE);
         return;
       }
       at.worked(made);
       if (made != UVMALLOC_OK) return;
       Filled(other, UVMALLOC_DEVICE, kBytes).expect_contents();
       void* left = nullptr;
       other.worked(uvmalloc_allocate(other.allocator, UVMALLOC_DEVICE, at.device, kBytes, 0,
                                      at.stream, &left));
       // The header says that destroying waits for the device, which may invalidate a capture.
       if (at.is_capturing) {
         at.left->push_back(other.allocator);
       } else {
         at.worked(uvmalloc_destroy(other.allocator));
       }
     }},
    {"uvmalloc_process_allocator",
     [](const At& at, const Filled& filled) {
       At process = at;
       at.worked(uvmalloc_process_allocator(&process.allocator));
       Filled(process, filled.facade(), kBytes).expect_contents();
     }},
    {"uvmalloc_set_device_limit",
     [](const At& at, const Filled&) {
       at.worked(uvmalloc_set_device_limit(at.allocator, at.device, UINT64_MAX));
     }},
    {"uvmalloc_set_budget",
     [](const At& at, const Filled&) { at.worked(uvmalloc_set_budget(at.allocator, 1 << 30)); }},
    {"uvmalloc_add_pressure_callback",
     [](const At& at, const Filled&) {
       at.worked(uvmalloc_add_pressure_callback(at.allocator, frees_nothing, nullptr));
     }},
    {"uvmalloc_record_use",
     [](const At& at, const Filled& filled) {
       at.worked(uvmalloc_record_use(at.allocator, filled.block(), at.device, at.stream));
     }},
    {"uvmalloc_note_use",
     [](const At& at, const Filled& filled) {
       at.worked(uvmalloc_note_use(at.allocator, filled.block(), 512, at.stream, 3));
     }},
    {"uvmalloc_note_uses",
     [](const At& at, const Filled& filled) {
       const uvmalloc_use use{filled.block(), 512, 1};
       at.worked(uvmalloc_note_uses(at.allocator, &use, 1, at.stream, UVMALLOC_LAUNCH_KERNEL));
       at.worked(uvmalloc_note_uses(at.allocator, &use, 1, at.stream, UVMALLOC_LAUNCH_GRAPH));
     }},
    {"uvmalloc_step_boundary",
     [](const At& at, const Filled&) { at.worked(uvmalloc_step_boundary(at.allocator)); }},
    {"uvmalloc_forget_stream",
     [](const At& at, const Filled&) {
       StreamHandle ending = nullptr;
       if (at.is_forked || !at.runtime().create_stream(at.device, &ending).ok()) return;
       At there = at;
       there.stream = ending;
       there.is_capturing = false;
       if (!at.is_capturing) Filled(there, UVMALLOC_DEVICE, kBytes).expect_contents();
       at.worked(uvmalloc_forget_stream(at.allocator, at.device, ending));
       EXPECT_TRUE(at.runtime().destroy_stream(at.device, ending).ok());
       Filled(at, UVMALLOC_DEVICE, kBytes).expect_contents();
     }},
    {"uvmalloc_wait_for_uses",
     [](const At& at, const Filled& filled) {
       at.worked(uvmalloc_wait_for_uses(at.allocator, filled.block()));
     }},
    {"uvmalloc_move",
     [](const At& at, const Filled& filled) {
       at.worked(uvmalloc_move(at.allocator, filled.block(), at.device, at.stream, 0));
       at.worked(uvmalloc_move(at.allocator, filled.block(), UVMALLOC_PLACE_HOST, at.stream, 1));
       at.worked(uvmalloc_move(at.allocator, filled.block(), at.device, at.stream, 0));
     }},
    {"uvmalloc_get_residency",
     [](const At& at, const Filled& filled) {
       const bool is_known = at.own().inspection().devices()[0].capabilities.finds_pages;
       for (int exact = 0; exact <= (is_known ? 1 : 0); ++exact) {
         std::uint64_t total = 0;
         for (int place : {UVMALLOC_PLACE_HOST, UVMALLOC_PLACE_NOWHERE, 0, 1}) {
           std::uint64_t bytes = 0;
           at.worked(
               uvmalloc_get_residency(at.allocator, filled.block(), kBytes, place, exact, &bytes));
           total += bytes;
         }
         if (!at.is_forked) {
           EXPECT_GE(total, filled.size_bytes());
         }
       }
     }},
    {"uvmalloc_release_cached",
     [](const At& at, const Filled&) {
       // The header says that this call may invalidate a capture that the allocator does not know.
       if (!at.is_capturing) at.worked(uvmalloc_release_cached(at.allocator));
     }},
    {"uvmalloc_decay",
     [](const At& at, const Filled&) { at.worked(uvmalloc_decay(at.allocator)); }},
    {"uvmalloc_reset_peaks",
     [](const At& at, const Filled&) { at.worked(uvmalloc_reset_peaks(at.allocator)); }},
    {"uvmalloc_start_trace uvmalloc_mark_trace uvmalloc_stop_trace",
     [](const At& at, const Filled& filled) {
       static const testing::TemporaryFolder folder;
       const std::string file = folder.path() + "/%p.trace";
       // If two threads run this, only one begins the trace.
       const uvmalloc_status begun = uvmalloc_start_trace(at.allocator, file.c_str());
       EXPECT_TRUE(begun == UVMALLOC_OK || begun == UVMALLOC_ERROR_NOT_USABLE);
       at.worked(uvmalloc_mark_trace(at.allocator, "step"));
       Filled(at, filled.facade(), kBytes).expect_contents();
       at.worked(uvmalloc_stop_trace(at.allocator));
     }},
    {"uvmalloc_trace_kernel uvmalloc_trace_mark uvmalloc_trace_order",
     [](const At& at, const Filled& filled) {
       const uvmalloc_trace_range range{filled.block(), 512, 1};
       uvmalloc_trace_kernel(at.device, at.stream, 1, 0, &range, 1);
       uvmalloc_trace_mark("step");
       uvmalloc_trace_order(at.device, at.stream, &range, -1);
     }},
    {"uvmalloc_set_host_managed",
     [](const At&, const Filled&) {
       const int before = uvmalloc_set_host_managed(0);
       EXPECT_EQ(uvmalloc_set_host_managed(before), 0);
     }},
    {"uvmalloc_set_thread_move_on_copy",
     [](const At&, const Filled&) {
       const int before = uvmalloc_set_thread_move_on_copy(1);
       EXPECT_EQ(uvmalloc_set_thread_move_on_copy(before), 1);
     }},
    {"uvmalloc_set_move_on_copy",
     [](const At&, const Filled&) { uvmalloc_set_move_on_copy(uvmalloc_move_on_copy()); }},
    {"uvm::CachingManagedAllocator::allocate_aligned",
     [](const At& at, const Filled& filled) {
       at.may_throw([&] {
         void* block = at.own().allocate_aligned(static_cast<Facade>(filled.facade()), at.device,
                                                 kBytes, 4096, at.stream);
         EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 4096, 0u);
         EXPECT_EQ(at.own().free(block), FreeResult::kFreed);
       });
     }},
    {"uvm::free_or_log uvm::free_after",
     [](const At& at, const Filled& filled) {
       for (bool after : {false, true}) {
         at.may_throw([&] {
           void* block = at.own().allocate(static_cast<Facade>(filled.facade()), at.device, kBytes,
                                           at.stream);
           if (after) {
             free_after(at.own(), block, at.device, at.stream);
           } else {
             free_or_log(at.own(), block);
           }
         });
       }
     }},
    {"uvm::PrivatePools::begin "
     "uvm::PrivatePools::end "
     "uvm::PrivatePools::retain "
     "uvm::PrivatePools::release",
     [](const At& at, const Filled&) {
       at.may_throw([&] {
         const std::uint64_t id = 1 + this_thread_number();
         const StreamHandle stream = at.stream;
         const std::uint64_t scope = at.own().private_pools().begin(
             at.device, id, [stream](StreamHandle other) { return other == stream; },
             at.is_capturing);
         at.own().private_pools().retain(at.device, id);
         Filled(at, UVMALLOC_DEVICE, kBytes).expect_contents();
         EXPECT_TRUE(at.own().private_pools().end(at.device, id, scope));
         EXPECT_TRUE(at.own().private_pools().release(at.device, id));
         EXPECT_TRUE(at.own().private_pools().release(at.device, id));
       });
     }},
    {"uvm::ManagedMemoryResource::ManagedMemoryResource uvm::ManagedMemoryResource::do_allocate "
     "uvm::ManagedMemoryResource::do_deallocate",
     [](const At& at, const Filled& filled) {
       at.may_throw([&] {
         ManagedMemoryResource resource(at.own(), static_cast<Facade>(filled.facade()), at.device,
                                        at.stream);
         void* block = resource.allocate(kBytes, 64);
         resource.deallocate(block, kBytes, 64);
       });
     }},
};

// These functions change nothing and wait for nothing, or only add to a list of this process.
[[maybe_unused]] constexpr const char* kWithoutRows[] = {
    "uvmalloc_version uvmalloc_version_number uvmalloc_build_info uvmalloc_status_name",
    "uvmalloc_last_error",
    "uvmalloc_device_count uvmalloc_describe uvmalloc_get_statistics uvmalloc_report_json",
    "uvmalloc_report_json_of uvmalloc_doctor_json uvmalloc_is_enabled uvmalloc_move_on_copy",
    "uvmalloc_register_runtime uvm::ManagedMemoryResource::do_is_equal",
};

void run(const At& at, const Use& use) {
  SCOPED_TRACE(use.names);
  for (int facade : {UVMALLOC_HOST, UVMALLOC_PINNED, UVMALLOC_DEVICE}) {
    for (std::size_t size_bytes : {std::size_t{4096}, kBytes}) {
      const Filled filled(at, facade, size_bytes);
      if (filled.block() == nullptr) continue;
      use.call(at, filled);
      filled.expect_contents();
    }
  }
}

class Matrix : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::open("cuda");
    at.allocator = make();
    driver = cuda::load_driver().handle;
    ASSERT_NE(driver, nullptr);
    make_current(0);
  }
  void TearDown() override {
    at.own().inspection().check_invariants();
    EXPECT_EQ(uvmalloc_destroy(at.allocator), UVMALLOC_OK);
  }

  static uvmalloc_allocator* make() {
    uvmalloc_options options{};
    options.struct_bytes = sizeof options;
    options.runtime = "cuda";
    options.budget_bytes = 256 * kMiB;
    uvmalloc_allocator* made = nullptr;
    EXPECT_EQ(uvmalloc_create(&options, &made), UVMALLOC_OK) << uvmalloc_last_error();
    return made;
  }
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(driver, name));
  }
  // Sets the context of the calling thread, as a program does.
  void make_current(int device) const {
    CUcontext context = nullptr;
    ASSERT_EQ(find<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, device),
              CUDA_SUCCESS);
    ASSERT_EQ(find<CUresult(CUcontext)>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
  }
  void run_all() const {
    for (const Use& use : kUses) run(at, use);
  }
  void on_side_stream(const std::function<void()>& body) {
    ASSERT_TRUE(at.runtime().create_stream(at.device, &at.stream).ok());
    body();
    EXPECT_EQ(uvmalloc_forget_stream(at.allocator, at.device, at.stream), UVMALLOC_OK);
    EXPECT_TRUE(at.runtime().destroy_stream(at.device, at.stream).ok());
  }

  At at;
  void* driver = nullptr;
};

TEST_F(Matrix, SecondDevice) {
  ASSERT_EQ(at.runtime().device_count(), 2);
  at.device = 1;
  make_current(1);
  run_all();
}

TEST_F(Matrix, SideStream) {
  on_side_stream([&] { run_all(); });
}

TEST_F(Matrix, LegacyDefaultStream) {
  run_all();
  at.stream = reinterpret_cast<StreamHandle>(1);  // CU_STREAM_LEGACY
  run_all();
}

TEST_F(Matrix, PerThreadDefaultStream) {
  at.stream = kPerThreadStream;
  run_all();
  std::thread([&] { run_all(); }).join();
}

// The functions do not invalidate the capture, whatever they do for their own memory.
TEST_F(Matrix, InsideACapture) {
  std::vector<uvmalloc_allocator*> left;
  at.left = &left;
  on_side_stream([&] {
    run_all();
    for (const Use& use : kUses) {
      SCOPED_TRACE(use.names);
      const auto stream = static_cast<CUstream>(at.stream);
      auto* begin = find<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2");
      ASSERT_EQ(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      at.is_capturing = true;
      run(at, use);
      at.is_capturing = false;
      CUgraph graph = nullptr;
      ASSERT_EQ(find<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream, &graph),
                CUDA_SUCCESS);
      EXPECT_EQ(find<CUresult(CUgraph)>("cuGraphDestroy")(graph), CUDA_SUCCESS);
      run(at, use);
      for (uvmalloc_allocator* each : left) EXPECT_EQ(uvmalloc_destroy(each), UVMALLOC_OK);
      left.clear();
    }
  });
}

TEST_F(Matrix, AnotherThreadReads) {
  const Filled shared(at, UVMALLOC_DEVICE, kBytes);
  shared.expect_contents();
  std::atomic<bool> is_over{false};
  std::thread reader([&] {
    while (!is_over) {
      shared.expect_contents();
      uvmalloc_statistics all{};
      all.struct_bytes = sizeof all;
      EXPECT_EQ(uvmalloc_get_statistics(at.allocator, &all), UVMALLOC_OK);
      uvmalloc_block block{};
      block.struct_bytes = sizeof block;
      EXPECT_EQ(uvmalloc_describe(at.allocator, shared.block(), &block), UVMALLOC_OK);
      EXPECT_EQ(block.live, 1);
    }
  });
  run_all();
  is_over = true;
  reader.join();
}

TEST_F(Matrix, TwoAtOnce) {
  std::thread other([&] { run_all(); });
  run_all();
  other.join();
}

TEST_F(Matrix, AfterAnotherAllocatorHasEnded) {
  for (const Use& use : kUses) {
    At ending = at;
    ending.allocator = make();
    void* left = nullptr;
    EXPECT_EQ(uvmalloc_allocate(ending.allocator, UVMALLOC_DEVICE, 0, kBytes, 0, nullptr, &left),
              UVMALLOC_OK);
    run(ending, use);
    EXPECT_EQ(uvmalloc_destroy(ending.allocator), UVMALLOC_OK);
    run(at, use);
  }
}

// Each use runs in its own child, which must not hang on locks of the parent's threads.
TEST_F(Matrix, AfterFork) {
  run_all();
  for (const Use& use : kUses) {
    SCOPED_TRACE(use.names);
    const pid_t child = fork();
    if (child == 0) {
      alarm(120);
      at.is_forked = true;
      run(at, use);
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

// A signal that the program handles, often Ctrl-C, interrupts system calls.
std::atomic<int> signals_handled{0};

TEST_F(Matrix, SignalsComeMeanwhile) {
  struct sigaction handler {};
  handler.sa_handler = [](int) { ++signals_handled; };  // without SA_RESTART
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGALRM, &handler, &before), 0);
  const itimerval often{{0, 200}, {0, 200}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  do {
    run_all();
  } while (signals_handled < 20);
  const itimerval off{};
  EXPECT_EQ(setitimer(ITIMER_REAL, &off, nullptr), 0);
  EXPECT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
}

}  // namespace
}  // namespace uvm
