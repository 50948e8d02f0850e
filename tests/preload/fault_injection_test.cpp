// The intercepted calls of CUDA while the host has no memory for uvmalloc's own records: each
// allocation that libuvmalloc_preload.so makes during a call fails once, in turn. uvmalloc then
// serves the call without that memory, or CUDA serves the call. Nothing is broken, lost or leaked,
// and later calls are served.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <uvmalloc/uvmalloc.h>
#include "allocator/interface.hpp"
#include "allocator/process/process_allocator.hpp"
#include "storage/pages.hpp"

#include "tests/support/failing_memory.hpp"

namespace uvm {
namespace {

using testing::failing;

constexpr std::size_t kBytes = 3 << 20;

std::string_view file_of(const void* code) {
  Dl_info found{};
  if (dladdr(code, &found) == 0 || found.dli_fname == nullptr) return {};
  const std::string_view path = found.dli_fname;
  return path.substr(path.rfind('/') + 1);
}

// Returns whether libuvmalloc_preload.so requests the memory, itself or through the C++ library.
// The simulated driver stands for a machine, so its memory does not run out here.
bool is_ours() {
  static const std::string_view kProgram = file_of(reinterpret_cast<const void*>(&is_ours));
  std::array<void*, 24> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int frame = 0; frame < count; ++frame) {
    const std::string_view file = file_of(frames[static_cast<std::size_t>(frame)]);
    if (file == kProgram || file.starts_with("libstdc++") || file.starts_with("libasan") ||
        file.starts_with("libtsan")) {
      continue;
    }
    return file.starts_with("libuvmalloc");
  }
  return false;
}

// What the parts of a call pass on to each other.
struct State {
  void* block = nullptr;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle piece = 0;
  cudaStream_t stream = nullptr;
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(4096);
};

struct Call {
  const char* name;
  std::function<int(State&)> prepare;  // without failures; may be empty
  std::function<int(State&)> run;      // the call
  std::function<int(State&)> finish;   // without failures; may be empty
  bool can_be_first = false;           // works differently as a process's first call
  friend void PrintTo(const Call& call, std::ostream* out) { *out << call.name; }
};

int free_block(State& state) {
  return cudaFree(std::exchange(state.block, nullptr));
}
int free_host_block(State& state) {
  return cudaFreeHost(std::exchange(state.block, nullptr));
}
int free_address(State& state) {
  return cuMemFree(std::exchange(state.address, 0));
}
int make_block(State& state) {
  return cudaMalloc(&state.block, kBytes);
}
int make_host_block(State& state) {
  return cudaMallocHost(&state.block, kBytes);
}
int make_stream(State& state) {
  return cudaStreamCreate(&state.stream);
}

// Without host memory, a call of virtual memory management may fail as without device memory.
int served_or_full(CUresult result) {
  return result == CUDA_ERROR_OUT_OF_MEMORY && failing == 0 ? 0 : result;
}
int reserve(State& state) {
  return cuMemAddressReserve(&state.address, 4 * kPageBytes, 0, 0, 0);
}
int free_addresses(State& state) {
  if (state.address == 0) return 0;
  return cuMemAddressFree(std::exchange(state.address, 0), 4 * kPageBytes);
}
// Mappings use addresses that stay reserved, because the simulated device keeps a record of each
// page that was ever touched.
int find_addresses(State& state) {
  static State kept;
  const int result = kept.address == 0 ? reserve(kept) : 0;
  state.address = kept.address;
  return result;
}
int create_piece(State& state) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return cuMemCreate(&state.piece, kPageBytes, &properties, 0);
}
int release_piece(State& state) {
  return state.piece == 0 ? 0 : cuMemRelease(std::exchange(state.piece, 0));
}
int map_piece(State& state) {
  return cuMemMap(state.address, kPageBytes, 0, state.piece, 0);
}
// Ends whatever of the mapping there is.
int unmap_piece(State& state) {
  const int result = cuMemUnmap(state.address, kPageBytes);
  EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE) << result;
  return release_piece(state);
}

std::vector<Call> calls() {
  return {
      {"cudaMalloc", {}, make_block, free_block, true},
      {"cudaMallocSmall", {}, [](State& s) { return cudaMalloc(&s.block, 100); }, free_block},
      {"cudaMallocHost", {}, make_host_block, free_host_block},
      {"cudaHostAlloc",
       {},
       [](State& s) { return cudaHostAlloc(&s.block, kBytes, cudaHostAllocPortable); },
       free_host_block},
      {"cudaMallocPitch",
       {},
       [](State& s) {
         std::size_t pitch = 0;
         return cudaMallocPitch(&s.block, &pitch, 1000, 700);
       },
       free_block},
      {"cudaMallocAsync", make_stream,
       [](State& s) { return cudaMallocAsync(&s.block, kBytes, s.stream); },
       [](State& s) {
         return cudaFreeAsync(std::exchange(s.block, nullptr), s.stream) +
                cudaStreamDestroy(s.stream);
       }},
      {"cudaMallocFromPoolAsync",
       {},
       [](State& s) {
         cudaMemPool_t pool = nullptr;
         const int found = cudaDeviceGetDefaultMemPool(&pool, 0);
         return found + cudaMallocFromPoolAsync(&s.block, kBytes, pool, nullptr);
       },
       free_block},
      {"cuMemAlloc", {}, [](State& s) { return cuMemAlloc(&s.address, kBytes); }, free_address},
      {"cuMemAllocHost",
       {},
       [](State& s) { return cuMemAllocHost(&s.block, kBytes); },
       [](State& s) { return cuMemFreeHost(std::exchange(s.block, nullptr)); }},
      {"cuMemAllocAsync",
       {},
       [](State& s) { return cuMemAllocAsync(&s.address, kBytes, nullptr); },
       [](State& s) { return cuMemFreeAsync(std::exchange(s.address, 0), nullptr); }},
      {"cuMemAddressReserve",
       {},
       [](State& s) { return served_or_full(static_cast<CUresult>(reserve(s))); },
       free_addresses},
      {"cuMemAddressFree", reserve, free_addresses, {}},
      {"cuMemCreate",
       {},
       [](State& s) { return served_or_full(static_cast<CUresult>(create_piece(s))); },
       release_piece},
      {"cuMemMap", [](State& s) { return find_addresses(s) + create_piece(s); },
       [](State& s) { return served_or_full(static_cast<CUresult>(map_piece(s))); }, unmap_piece},
      {"cuMemMapElsewhere",
       [](State& s) {
         return find_addresses(s) + create_piece(s) + map_piece(s) +
                cuMemUnmap(s.address, kPageBytes);
       },
       [](State& s) {
         const CUdeviceptr other = s.address + 2 * kPageBytes;
         const CUresult result = cuMemMap(other, kPageBytes, 0, s.piece, 0);
         if (result == CUDA_SUCCESS) return static_cast<int>(cuMemUnmap(other, kPageBytes));
         return served_or_full(result);
       },
       unmap_piece},
      {"cuMemUnmap",
       [](State& s) {
         return find_addresses(s) + create_piece(s) + map_piece(s) + release_piece(s);
       },
       [](State& s) { return static_cast<int>(cuMemUnmap(s.address, kPageBytes)); },
       {}},
      {"cuMemRelease", create_piece, release_piece, {}},
      {"cudaFree", make_block, free_block, {}},
      {"cudaFreeHost", make_host_block, free_host_block, {}},
      {"cudaFreeOfNothing", {}, [](State&) { return cudaFree(nullptr); }, {}, true},
      {"cudaFreeOfManyBlocks",
       {},
       [](State& s) {
         int failed = 0;
         for (int i = 0; i < 300; ++i) failed += cudaMalloc(&s.block, 70000) + free_block(s);
         return failed;
       },
       {}},
      {"cudaFreeAsyncOfAnotherStream", [](State& s) { return make_stream(s) + make_block(s); },
       [](State& s) { return cudaFreeAsync(std::exchange(s.block, nullptr), s.stream); },
       [](State& s) { return cudaStreamDestroy(s.stream); }},
      {"cuMemFree", [](State& s) { return cuMemAlloc(&s.address, kBytes); }, free_address, {}},
      {"cudaDeviceSynchronize",
       [](State& s) { return make_block(s) + free_block(s); },
       [](State&) { return cudaDeviceSynchronize(); },
       {}},
      {"cuCtxSynchronizeDuringACapture",
       [](State& s) {
         return make_stream(s) + make_block(s) + free_block(s) +
                cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeGlobal);
       },
       [](State&) {
         EXPECT_NE(cuCtxSynchronize(), CUDA_SUCCESS);
         return 0;
       },
       [](State& s) {
         cudaGraph_t graph = nullptr;
         cudaStreamEndCapture(s.stream, &graph);
         cudaGetLastError();
         if (graph != nullptr) cudaGraphDestroy(graph);
         return cudaStreamDestroy(s.stream);
       }},
      {"cudaStreamDestroy",
       [](State& s) {
         return make_stream(s) + cudaMallocAsync(&s.block, kBytes, s.stream) +
                cudaFreeAsync(std::exchange(s.block, nullptr), s.stream);
       },
       [](State& s) { return cudaStreamDestroy(s.stream); },
       {}},
      {"cudaMemGetInfo",
       {},
       [](State&) {
         std::size_t free = 0;
         std::size_t total = 0;
         return cudaMemGetInfo(&free, &total);
       },
       {},
       true},
      {"cudaPointerGetAttributes", make_block,
       [](State& s) {
         cudaPointerAttributes attributes{};
         return cudaPointerGetAttributes(&attributes, s.block);
       },
       free_block},
      {"cudaHostRegister",
       {},
       [](State& s) { return cudaHostRegister(s.memory.data(), 8 * s.memory.size(), 0); },
       [](State& s) { return cudaHostUnregister(s.memory.data()); },
       true},
      {"cudaHostUnregister",
       [](State& s) { return cudaHostRegister(s.memory.data(), 8 * s.memory.size(), 0); },
       [](State& s) { return cudaHostUnregister(s.memory.data()); },
       {}},
      {"cuMemGetAddressRange", [](State& s) { return cuMemAlloc(&s.address, kBytes); },
       [](State& s) {
         CUdeviceptr base = 0;
         std::size_t size = 0;
         return cuMemGetAddressRange(&base, &size, s.address + 100);
       },
       free_address},
      {"cuMemHostGetDevicePointer", make_host_block,
       [](State& s) { return cuMemHostGetDevicePointer(&s.address, s.block, 0); }, free_host_block},
      {"cuGetProcAddress",
       [](State&) { return cuInit(0); },
       [](State&) {
         void* found = nullptr;
         CUdriverProcAddressQueryResult status{};
         return cuGetProcAddress("cuMemAlloc", &found, 12000, 0, &status);
       },
       {},
       true},
      {"uvmalloc_report_json",
       {},
       [](State&) {
         const std::int64_t bytes = uvmalloc_report_json(nullptr, 0);
         return bytes > 100 || (bytes == -1 && failing == 0) ? 0 : 1;
       },
       {},
       true},
      {"dlsym",
       {},
       [](State&) { return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemAlloc_v2") == nullptr; },
       {},
       true},
  };
}

class InterposedCalls : public ::testing::TestWithParam<Call> {
 protected:
  void SetUp() override {
    is_ours();  // backtrace() and dladdr() allocate in their first call
    testing::counts_call = is_ours;
  }
  void TearDown() override { failing = 0; }

  // Runs the call with allocation `number` failing. Returns whether the call made that many.
  static bool run_failing(long number) {
    State state;
    if (GetParam().prepare) {
      EXPECT_EQ(GetParam().prepare(state), 0);
    }
    failing = number;
    const int result = GetParam().run(state);
    const bool has_failed = std::exchange(failing, 0) == 0;
    EXPECT_EQ(result, 0);
    if (GetParam().finish) {
      EXPECT_EQ(GetParam().finish(state), 0);
    }
    return has_failed;
  }

  static void run_with_each_failing() {
    bool has_failed = true;
    for (long number = 1; has_failed && !HasFailure(); ++number) {
      SCOPED_TRACE("allocation " + std::to_string(number));
      has_failed = run_failing(number);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }

  // Checks that the allocator serves a request.
  static void expect_served() {
    State state;
    ASSERT_EQ(make_block(state), 0);
    ASSERT_NE(process_allocator(), nullptr);
    EXPECT_TRUE(process_allocator()->find(state.block).has_value());
    EXPECT_EQ(free_block(state), 0);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    process_allocator()->inspection().check_invariants();
    EXPECT_EQ(process_allocator()->statistics().live_bytes.current, 0u);
  }
};

TEST_P(InterposedCalls, GoOnWithoutMemory) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);  // makes the context that calls of the driver need
  run_failing(0);                             // makes the allocator
  run_with_each_failing();
  const std::int64_t before = testing::live_allocations();
  run_with_each_failing();
  EXPECT_EQ(testing::live_allocations(), before) << "a leak";
  expect_served();
}

class FirstInterposedCalls : public InterposedCalls {};

// Each call runs in a child, because it needs a process that has not used CUDA.
TEST_P(FirstInterposedCalls, GoOnWithoutMemory) {
  constexpr int kHasFailed = 0;
  constexpr int kHasNotFailed = 1;
  constexpr int kIsBroken = 2;
  int outcome = kHasFailed;
  for (long number = 1; outcome == kHasFailed; ++number) {
    SCOPED_TRACE("allocation " + std::to_string(number));
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      // A call that needs a context fails if there is none, with and without uvmalloc.
      const bool has_failed = run_failing(number);
      expect_served();
      _exit(HasFailure() ? kIsBroken : has_failed ? kHasFailed : kHasNotFailed);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    outcome = WEXITSTATUS(status);
    ASSERT_NE(outcome, kIsBroken);
    ASSERT_LT(number, 2000);
  }
}

std::vector<Call> first_calls() {
  std::vector<Call> all = calls();
  std::erase_if(all, [](const Call& call) { return !call.can_be_first; });
  return all;
}

std::string name_of(const ::testing::TestParamInfo<Call>& of) {
  return of.param.name;
}

INSTANTIATE_TEST_SUITE_P(Each, InterposedCalls, ::testing::ValuesIn(calls()), name_of);
INSTANTIATE_TEST_SUITE_P(Each, FirstInterposedCalls, ::testing::ValuesIn(first_calls()), name_of);

}  // namespace
}  // namespace uvm
