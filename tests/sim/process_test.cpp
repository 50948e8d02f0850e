// Tests that need a process: environment variables, forks, audit library, kernel plug-in, report.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include <uvmalloc/sim/uvmsim.h>

#include "stand_in_library.hpp"

namespace uvmsim::test {
namespace {

constexpr std::size_t kSharedBytes = std::size_t{3} << 20;

struct Outcome {
  int code;  // exit code, or 128 + signal
  std::string output;
};

// Runs a shell command and returns its exit code and its output.
Outcome run(const std::string& command) {
  std::FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  Outcome outcome{};
  std::array<char, 4096> buffer;
  for (std::size_t read; (read = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), read);
  }
  const int status = pclose(pipe);
  outcome.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return {path.data(), static_cast<std::size_t>(length)};
}

Outcome run_probe(const std::string& settings, const std::string& probe) {
  // Runs this program again as that probe. A shard could leave the probe out.
  return run("env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " + settings +
             " UVMSIM_TEST_PROBE=" + probe + " " + own_path() + " --gtest_filter=Probe.Run");
}

// Returns the lines of the probe, without their prefix "probe: ".
std::string printed(const Outcome& outcome) {
  std::istringstream lines(outcome.output);
  std::string printed;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("probe: ", 0) == 0) printed += line.substr(7) + "\n";
  }
  return printed;
}

void probe_devices() {
  int count = -1;
  const int error = RT(cudaGetDeviceCount)(&count);
  std::printf("probe: error %d count %d\n", error, count);
  for (int device = 0; device < count; ++device) {
    char id[32];
    RT(cudaDeviceGetPCIBusId)(id, sizeof id, device);
    std::printf("probe: %s\n", id);
  }
}

// Changes the list of visible devices when both libraries are loaded and none is initialised, and
// again after one library is initialised.
void probe_late_list(bool driver_first) {
  const StandIn& driver = StandIn::driver();
  const StandIn& runtime = StandIn::runtime();
  const auto count_of_runtime = [&] {
    int count = -1;
    runtime.function<decltype(cudaGetDeviceCount)>("cudaGetDeviceCount")(&count);
    return count;
  };
  const auto count_of_driver = [&] {
    int count = -1;
    driver.function<decltype(cuInit)>("cuInit")(0);
    driver.function<decltype(cuDeviceGetCount)>("cuDeviceGetCount")(&count);
    return count;
  };
  int version = 0;
  RT(cudaDriverGetVersion)(&version);
  int count = -1;
  const int before = CU(cuDeviceGetCount)(&count);
  setenv("CUDA_VISIBLE_DEVICES", "3,1,2", 1);
  const int first = driver_first ? count_of_driver() : count_of_runtime();
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  const int second = driver_first ? count_of_runtime() : count_of_driver();
  char id[32];
  RT(cudaDeviceGetPCIBusId)(id, sizeof id, 0);
  std::printf("probe: error %d counts %d %d first %s\n", before, first, second, id);
}

// Prints what other libraries learn of the driver, before and after the runtime initialises it.
void probe_driver_library() {
  const auto ask = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return -1;
    int count = 0;
    auto* function =
        reinterpret_cast<decltype(&cuDeviceGetCount)>(dlsym(driver, "cuDeviceGetCount"));
    return static_cast<int>(function(&count));
  };
  int version = 0;
  RT(cudaDriverGetVersion)(&version);
  const int before = ask();
  int count = 0;
  RT(cudaGetDeviceCount)(&count);
  std::printf("probe: before %d after %d\n", before, ask());
}

void probe_memory() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  RT(cudaMemGetInfo)(&free_bytes, &total_bytes);
  std::printf("probe: %zu\n", total_bytes);
}

// The capacity exceeds the memory of any host, so the free memory is the host's.
void probe_profile() {
  int integrated = -1;
  RT(cudaDeviceGetAttribute)(&integrated, cudaDevAttrIntegrated, 0);
  int direct = -1;
  RT(cudaDeviceGetAttribute)(&direct, cudaDevAttrDirectManagedMemAccessFromHost, 0);
  cudaDeviceProp properties;
  RT(cudaGetDeviceProperties)(&properties, 0);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  RT(cudaMemGetInfo)(&free_bytes, &total_bytes);
  constexpr std::size_t kContextBytes = std::size_t{512} << 20;
  std::printf("probe: integrated %d direct %d properties %d all free %d\n", integrated, direct,
              properties.integrated, free_bytes + kContextBytes == total_bytes);
}

// How the calls that place memory treat the program's own memory.
void probe_ordinary_memory() {
  const auto attribute = [](cudaDeviceAttr which) {
    int value = -1;
    RT(cudaDeviceGetAttribute)(&value, which, 0);
    return value;
  };
  std::printf("probe: reaches %d by page tables %d atomics %d direct %d\n",
              attribute(cudaDevAttrPageableMemoryAccess),
              attribute(cudaDevAttrPageableMemoryAccessUsesHostPageTables),
              attribute(cudaDevAttrHostNativeAtomicSupported),
              attribute(cudaDevAttrDirectManagedMemAccessFromHost));
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  cudaStream_t stream = nullptr;
  RT(cudaStreamCreate)(&stream);
  const auto place = [&] {
    const cudaMemLocation device{cudaMemLocationTypeDevice, 0};
    const int advised =
        RT(cudaMemAdvise)(memory, kBytes, cudaMemAdviseSetPreferredLocation, device);
    const int prefetched = RT(cudaMemPrefetchAsync)(memory, kBytes, device, 0, stream);
    void* address = memory;
    std::size_t bytes = kBytes;
    const int discarded = RT(cudaMemDiscardBatchAsync)(&address, &bytes, 1, 0, stream);
    int last = -3;
    const int last_error = RT(cudaMemRangeGetAttribute)(
        &last, sizeof last, cudaMemRangeAttributeLastPrefetchLocation, memory, kBytes);
    std::printf("probe: advise %d prefetch %d discard %d attribute %d last %d\n", advised,
                prefetched, discarded, last_error, last);
  };
  place();
  cudaPointerAttributes attributes{};
  const int error = RT(cudaPointerGetAttributes)(&attributes, memory);
  std::printf("probe: error %d type %d device %d\n", error, attributes.type, attributes.device);
  munmap(memory, kBytes);
  place();
}

// Allocates a device's memory in two halves.
void probe_halves() {
  size_t total_bytes = 0;
  CU(cuInit)(0);
  CU(cuDeviceTotalMem_v2)(&total_bytes, 0);
  CUcontext context = nullptr;
  CU(cuDevicePrimaryCtxRetain)(&context, 0);
  CU(cuCtxSetCurrent)(context);
  size_t free_bytes = 0;
  CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes);
  CUdeviceptr half = 0;
  const int first = CU(cuMemAlloc_v2)(&half, total_bytes / 2);
  const int second = CU(cuMemAlloc_v2)(&half, total_bytes / 2);
  std::printf("probe: context %zu first %d second %d\n", total_bytes - free_bytes, first, second);
}

// Prints the results of a machine with little room for arenas.
void probe_limits(bool no_descriptors) {
  auto* init = CU(cuInit);
  if (no_descriptors) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  const int initialized = init(0);
  CUcontext context = nullptr;
  CU(cuDevicePrimaryCtxRetain)(&context, 0);
  CU(cuCtxSetCurrent)(context);
  CUdeviceptr managed = 0;
  const int allocated = CU(cuMemAllocManaged)(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL);
  if (allocated == CUDA_SUCCESS) *reinterpret_cast<char*>(managed) = 1;
  CUdeviceptr device = 0;
  const int on_device = CU(cuMemAlloc_v2)(&device, 8 << 20);
  std::printf("probe: init %d managed %d device %d\n", initialized, allocated, on_device);
}

// A newly started child opens the parent's memory and event.
void probe_sharing() {
  void* memory = nullptr;
  RT(cudaMalloc)(&memory, kSharedBytes);
  RT(cudaMemset)(memory, 7, kSharedBytes);
  cudaIpcMemHandle_t handle{};
  int error = RT(cudaIpcGetMemHandle)(&handle, static_cast<char*>(memory) + 5);
  cudaEvent_t event = nullptr;
  RT(cudaEventCreateWithFlags)(&event, cudaEventInterprocess | cudaEventDisableTiming);
  RT(cudaEventRecord)(event, nullptr);
  cudaIpcEventHandle_t event_handle{};
  const int event_error = RT(cudaIpcGetEventHandle)(&event_handle, event);
  void* own = nullptr;
  const int own_error = RT(cudaIpcOpenMemHandle)(&own, handle, cudaIpcMemLazyEnablePeerAccess);
  std::printf("probe: export %d %d own %d\n", error, event_error, own_error);
  void* managed = nullptr;
  RT(cudaMallocManaged)(&managed, 1, cudaMemAttachGlobal);
  error = RT(cudaIpcGetMemHandle)(&handle, managed);
  std::printf("probe: managed %d\n", error);
  RT(cudaIpcGetMemHandle)(&handle, memory);
  const std::string path = ::testing::TempDir() + "uvmsim_handles_" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary)
      .write(handle.reserved, sizeof handle.reserved)
      .write(event_handle.reserved, sizeof event_handle.reserved);
  std::fflush(stdout);
  const std::string importer = "UVMSIM_TEST_PROBE=import UVMSIM_TEST_HANDLES=" + path + " " +
                               own_path() + " --gtest_filter=Probe.Run";
  const int status = std::system(importer.c_str());
  unsigned char first = 0;
  RT(cudaMemcpy)(&first, memory, 1, cudaMemcpyDeviceToHost);
  std::printf("probe: importer %d sees %d\n", status, first);
  std::remove(path.c_str());
}

void probe_import() {
  cudaIpcMemHandle_t handle{};
  cudaIpcEventHandle_t event_handle{};
  std::ifstream(std::getenv("UVMSIM_TEST_HANDLES"), std::ios::binary)
      .read(handle.reserved, sizeof handle.reserved)
      .read(event_handle.reserved, sizeof event_handle.reserved);
  void* memory = nullptr;
  void* again = nullptr;
  const int error = RT(cudaIpcOpenMemHandle)(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
  RT(cudaIpcOpenMemHandle)(&again, handle, cudaIpcMemLazyEnablePeerAccess);
  unsigned char last = 0;
  RT(cudaMemcpy)(&last, static_cast<char*>(memory) + kSharedBytes - 1, 1, cudaMemcpyDeviceToHost);
  cudaEvent_t event = nullptr;
  const int event_error = RT(cudaIpcOpenEventHandle)(&event, event_handle);
  const int complete = RT(cudaEventQuery)(event);
  std::printf("probe: import %d again %d reads %d event %d %d\n", error, memory == again, last,
              event_error, complete);
  RT(cudaMemset)(memory, 9, 1);
  const int freed = RT(cudaFree)(memory);
  const int closed = RT(cudaIpcCloseMemHandle)(memory);
  const int closed_again = RT(cudaIpcCloseMemHandle)(memory);
  std::printf("probe: free %d close %d %d %d\n", freed, closed, closed_again,
              RT(cudaIpcCloseMemHandle)(memory));
  void* fresh = nullptr;
  RT(cudaMalloc)(&fresh, kSharedBytes);
  RT(cudaMemcpy)(&last, fresh, 1, cudaMemcpyDeviceToHost);
  std::printf("probe: same address %d reads %d\n", fresh == memory, last);
}

// Queries before and after the process uses a device.
void probe_nvml() {
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned gpu, memory;
  };
  const StandIn nvml("libnvidia-ml.so.1");
  unsigned count = 0;
  nvml.function<int(unsigned*)>("nvmlDeviceGetCount_v2")(&count);
  void* device = nullptr;
  const int none =
      nvml.function<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2")(2, &device);
  nvml.function<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2")("00000000:02:00.0",
                                                                              &device);
  unsigned index = 0;
  nvml.function<int(void*, unsigned*)>("nvmlDeviceGetIndex")(device, &index);
  char uuid[80];
  nvml.function<int(void*, char*, unsigned)>("nvmlDeviceGetUUID")(device, uuid, sizeof uuid);
  std::printf("probe: count %u none %d index %u %s\n", count, none, index, uuid);
  const auto look = [&] {
    Memory memory{};
    const int failed =
        nvml.function<int(void*, Memory*)>("nvmlDeviceGetMemoryInfo")(device, &memory);
    if (failed != 0) std::printf("probe: error %d\n", failed);
    Utilization utilization{};
    nvml.function<int(void*, Utilization*)>("nvmlDeviceGetUtilizationRates")(device, &utilization);
    std::printf("probe: total %llu used %llu busy %u\n", memory.total >> 20, memory.used >> 20,
                utilization.gpu);
  };
  look();
  RT(cudaSetDevice)(1);
  void* memory = nullptr;
  RT(cudaMalloc)(&memory, 64 << 20);
  RT(cudaMemsetAsync)(memory, 0, 64 << 20, nullptr);
  look();
  RT(cudaDeviceSynchronize)();
  look();
}

void probe_driver_version() {
  int version = 0;
  RT(cudaDriverGetVersion)(&version);
  const auto newest = [](const char* name) {
    void* address = nullptr;
    CU(cuGetProcAddress_v2)(name, &address, 13000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    return address;
  };
  std::printf("probe: %d discards %d new form %d\n", version,
              newest("cuMemDiscardBatchAsync") != nullptr,
              newest("cuEventElapsedTime") == StandIn::driver().find("cuEventElapsedTime_v2"));
}

// Forks before and after the machine exists.
void probe_fork() {
  const auto malloc_in_child = [] {
    const pid_t child = fork();
    if (child == 0) {
      void* memory = nullptr;
      const int error = RT(cudaMalloc)(&memory, 1);
      const int last = RT(cudaGetLastError)();
      _exit(error == last ? error : 99);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const int before = malloc_in_child();
  void* memory = nullptr;
  const int parent = RT(cudaMalloc)(&memory, 1);
  const int after = malloc_in_child();
  std::printf("probe: before %d parent %d after %d still %d\n", before, parent, after,
              RT(cudaFree)(memory));
}

// Prints attributes of the machine, and whether it takes a prefetch and a discard.
void probe_machine() {
  void* memory = nullptr;
  RT(cudaMallocManaged)(&memory, 2 << 20, cudaMemAttachGlobal);
  cudaStream_t stream = nullptr;
  RT(cudaStreamCreate)(&stream);
  const cudaMemLocation device{cudaMemLocationTypeDevice, 0};
  const int prefetch = RT(cudaMemPrefetchAsync)(memory, 2 << 20, device, 0, stream);
  std::size_t size = 2 << 20;
  const int discard = RT(cudaMemDiscardBatchAsync)(&memory, &size, 1, 0, stream);
  int concurrent = -1;
  RT(cudaDeviceGetAttribute)(&concurrent, cudaDevAttrConcurrentManagedAccess, 0);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  RT(cudaMemGetInfo)(&free_bytes, &total_bytes);
  std::printf("probe: concurrent %d prefetch %d discard %d total %zu\n", concurrent, prefetch,
              discard, total_bytes >> 30);
}

void probe_plugin() {
  int count = 0;
  for (int i = 0; i < 5; ++i) RT(cudaGetDeviceCount)(&count);
  std::printf("probe: count %d calls %d\n", count,
              static_cast<int>(uvmsim_call_count("cudaGetDeviceCount")));
}

void probe_report() {
  void* memory = nullptr;
  RT(cudaMalloc)(&memory, 1);
  RT(cudaFreeMipmappedArray)(nullptr);
  if (fork() == 0) exit(0);
  wait(nullptr);
}

TEST(Probe, Run) {
  const char* probe = std::getenv("UVMSIM_TEST_PROBE");
  if (probe == nullptr) return;  // not started as a probe
  const std::string name = probe;
  if (name == "devices") probe_devices();
  if (name == "list_before_runtime") probe_late_list(false);
  if (name == "list_before_driver") probe_late_list(true);
  if (name == "driver_library") probe_driver_library();
  if (name == "memory") probe_memory();
  if (name == "profile") probe_profile();
  if (name == "ordinary_memory") probe_ordinary_memory();
  if (name == "halves") probe_halves();
  if (name == "limits") probe_limits(/*no_descriptors=*/false);
  if (name == "no_descriptors") probe_limits(/*no_descriptors=*/true);
  if (name == "sharing") probe_sharing();
  if (name == "import") probe_import();
  if (name == "nvml") probe_nvml();
  if (name == "driver_version") probe_driver_version();
  if (name == "fork") probe_fork();
  if (name == "machine") probe_machine();
  if (name == "plugin") probe_plugin();
  if (name == "report") probe_report();
}

TEST(ProcessTest, DevicesAndCapacityComeFromTheEnvironment) {
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=3", "devices")),
            "error 0 count 3\n0000:01:00.0\n0000:02:00.0\n0000:03:00.0\n");
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=0", "devices")), "error 100 count 0\n");
  EXPECT_EQ(printed(run_probe("UVMSIM_CAPACITY=96GiB", "memory")), "103079215104\n");
}

TEST(ProcessTest, AnIntegratedDeviceSharesTheHostsMemory) {
  const std::string large = "UVMSIM_CAPACITY=64T UVMSIM_PROFILE=";
  EXPECT_EQ(printed(run_probe(large + "integrated", "profile")),
            "integrated 1 direct 1 properties 1 all free 0\n");
  const std::string discrete = "integrated 0 direct 0 properties 0 all free 1\n";
  EXPECT_EQ(printed(run_probe(large + "discrete", "profile")), discrete);
  const Outcome unknown = run_probe(large + "gb10", "profile");
  EXPECT_NE(unknown.output.find("uvmsim: UVMSIM_PROFILE is 'gb10'; accepted: discrete, integrated, "
                                "hmm, coherent; using discrete\n"),
            std::string::npos);
  EXPECT_EQ(printed(unknown), discrete);
}

TEST(ProcessTest, OrdinaryMemoryIsPlacedWhereDevicesReachIt) {
  const std::string unregistered = "error 0 type 0 device -2\n";
  const std::string refused = "advise 1 prefetch 1 discard 1 attribute 1 last -3\n";
  const std::string placed = "advise 0 prefetch 0 discard 0 attribute 0 last 0\n";
  EXPECT_EQ(printed(run_probe("UVMSIM_PROFILE=discrete", "ordinary_memory")),
            "reaches 0 by page tables 0 atomics 0 direct 0\n" + refused + unregistered + refused);
  EXPECT_EQ(printed(run_probe("UVMSIM_PROFILE=hmm", "ordinary_memory")),
            "reaches 1 by page tables 0 atomics 0 direct 0\n" + placed + unregistered + refused);
  EXPECT_EQ(printed(run_probe("UVMSIM_PROFILE=coherent", "ordinary_memory")),
            "reaches 1 by page tables 1 atomics 1 direct 1\n" + placed + unregistered + refused);
  EXPECT_EQ(printed(run_probe("UVMSIM_MACHINE=gb10 UVMSIM_CAPACITY=2GiB", "ordinary_memory")),
            "reaches 1 by page tables 1 atomics 1 direct 1\n" + placed + unregistered + refused);
}

TEST(ProcessTest, AMachineIsNamedByItsProfile) {
  EXPECT_EQ(printed(run_probe("UVMSIM_MACHINE=rtx4090-pcie4", "machine")),
            "concurrent 1 prefetch 0 discard 0 total 24\n");
  EXPECT_EQ(printed(run_probe("UVMSIM_MACHINE=gb10 UVMSIM_CAPACITY=2GiB", "machine")),
            "concurrent 1 prefetch 0 discard 0 total 2\n");
}

TEST(ProcessTest, AMachineThatCannotBeReadHasNoDevices) {
  const Outcome outcome = run_probe("UVMSIM_MACHINE=./none.toml", "devices");
  EXPECT_NE(outcome.output.find("uvmsim: UVMSIM_MACHINE is './none.toml': "), std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("error 100 count 0"), std::string::npos) << outcome.output;
}

TEST(ProcessTest, WithoutConcurrentAccessPrefetchesAndDiscardsAreRefused) {
  std::ifstream file(UVMALLOC_SOURCE_DIR "/sim/profiles/rtx4090-pcie4.toml");
  std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string line = "concurrent_managed_access = ";
  text.replace(text.find(line) + line.size(), 4, "false");
  const std::string path =
      ::testing::TempDir() + "uvmsim-limited-" + std::to_string(getpid()) + ".toml";
  std::ofstream(path) << text;
  EXPECT_EQ(printed(run_probe("UVMSIM_MACHINE=" + path, "machine")),
            "concurrent 0 prefetch 101 discard 101 total 24\n");
  std::remove(path.c_str());
}

TEST(ProcessTest, MalformedSettingsAreNamedAndTheDefaultIsUsed) {
  const Outcome devices = run_probe("UVMSIM_DEVICES=many", "devices");
  EXPECT_NE(
      devices.output.find(
          "uvmsim: UVMSIM_DEVICES is 'many'; accepted: a whole number from 0 to 32; using 1\n"),
      std::string::npos)
      << devices.output;
  EXPECT_EQ(printed(devices), "error 0 count 1\n0000:01:00.0\n");
  const Outcome capacity = run_probe("UVMSIM_CAPACITY=1M", "memory");
  EXPECT_NE(capacity.output.find("uvmsim: UVMSIM_CAPACITY is '1M'; accepted: "), std::string::npos);
  EXPECT_EQ(printed(capacity), "8589934592\n");
  const Outcome version = run_probe("UVMSIM_DRIVER_VERSION=11000", "driver_version");
  EXPECT_NE(version.output.find(
                "uvmsim: UVMSIM_DRIVER_VERSION is '11000'; accepted: 12020, 12080, 13000, 13050"),
            std::string::npos);
  EXPECT_EQ(printed(version), "13050 discards 1 new form 1\n");
}

TEST(ProcessTest, AnOldDriverHasWhatItsVersionHad) {
  EXPECT_EQ(printed(run_probe("UVMSIM_DRIVER_VERSION=12020", "driver_version")),
            "12020 discards 0 new form 0\n");
  EXPECT_EQ(printed(run_probe("UVMSIM_DRIVER_VERSION=12080", "driver_version")),
            "12080 discards 0 new form 1\n");
}

TEST(ProcessTest, AnOldDriverExportsNoNameThatCameLater) {
  const auto exports = [](const char* file, const char* name) {
    return StandIn(file).find(name) != nullptr;
  };
  EXPECT_FALSE(exports("12.2/libcuda.so.1", "cuMemDiscardBatchAsync"));
  EXPECT_FALSE(exports("12.2/libcuda.so.1", "cuEventElapsedTime_v2"));
  EXPECT_TRUE(exports("12.2/libcuda.so.1", "cuMemAdvise_v2"));
  EXPECT_FALSE(exports("12.8/libcuda.so.1", "cuMemDiscardBatchAsync"));
  EXPECT_TRUE(exports("12.8/libcuda.so.1", "cuEventElapsedTime_v2"));
  EXPECT_TRUE(exports("libcuda.so.1", "cuMemDiscardBatchAsync"));
}

TEST(ProcessTest, AContextTakesItsPartOfTheDevicesMemory) {
  EXPECT_EQ(printed(run_probe("UVMSIM_CAPACITY=8GiB", "halves")),
            "context 134217728 first 0 second 2\n");
  EXPECT_EQ(printed(run_probe("UVMSIM_CAPACITY=80GiB", "halves")),
            "context 536870912 first 0 second 2\n");
  EXPECT_EQ(printed(run_probe("UVMSIM_CAPACITY=24MiB", "halves")),
            "context 393216 first 0 second 2\n");
}

TEST(ProcessTest, ArenasTakeWhatTheLimitsLeave) {
  if (UVMSIM_TEST_SANITIZED) return;  // a sanitizer needs more memory than the limits leave
  const auto probe = [](const std::string& limit) {
    return run(limit + "; env UVMSIM_TEST_PROBE=limits " + own_path() +
               " --gtest_filter=Probe.Run");
  };
  // The unit of the limit is 512 bytes.
  EXPECT_EQ(printed(probe("ulimit -f 200000")), "init 0 managed 0 device 0\n");
  const Outcome none = probe("ulimit -f 2000");
  EXPECT_EQ(none.code, 0);
  EXPECT_EQ(printed(none), "init 2 managed 2 device 2\n");
  EXPECT_NE(none.output.find("uvmsim: no address space for uvmsim-managed memory: "),
            std::string::npos)
      << none.output;
  EXPECT_EQ(printed(probe("ulimit -v 300000000")), "init 0 managed 0 device 0\n");
  EXPECT_EQ(printed(probe("ulimit -v 4000000")), "init 0 managed 0 device 0\n");
  EXPECT_EQ(printed(probe("ulimit -v 200000")), "init 2 managed 2 device 2\n");
}

TEST(ProcessTest, WithoutADescriptorThereIsAnError) {
  if (UVMSIM_TEST_SANITIZED) return;  // a sanitizer opens files, too
  const Outcome outcome = run_probe("UVMSIM_DEVICES=1", "no_descriptors");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(printed(outcome), "init 2 managed 2 device 2\n");
  EXPECT_NE(outcome.output.find("memfd_create: Too many open files"), std::string::npos)
      << outcome.output;
}

TEST(ProcessTest, DeviceMemoryAndEventsAreOpenedByOtherProcesses) {
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=1", "sharing")),
            "export 0 0 own 201\n"
            "managed 1\n"
            "import 0 again 1 reads 7 event 0 0\n"
            "free 1 close 0 0 1\n"
            "same address 1 reads 0\n"
            "importer 0 sees 9\n");
}

TEST(ProcessTest, TheManagementLibraryTellsHowFullAndBusyDevicesAre) {
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=2 CUDA_VISIBLE_DEVICES=0,1", "nvml")),
            "count 2 none 2 index 1 GPU-75766d73-696d-2d64-6576-696365000002\n"
            "total 8192 used 0 busy 0\n"
            "total 8192 used 192 busy 100\n"
            "total 8192 used 192 busy 0\n");
}

TEST(ProcessTest, TheManagementLibraryReportsNoMemoryOfAnIntegratedDevice) {
  EXPECT_EQ(printed(run_probe("UVMSIM_PROFILE=integrated UVMSIM_DEVICES=2", "nvml")),
            "count 2 none 2 index 1 GPU-75766d73-696d-2d64-6576-696365000002\n"
            "error 3\ntotal 0 used 0 busy 0\n"
            "error 3\ntotal 0 used 0 busy 100\n"
            "error 3\ntotal 0 used 0 busy 0\n");
}

TEST(ProcessTest, VisibleDevicesAreChosenAndOrdered) {
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=4 CUDA_VISIBLE_DEVICES=2,0", "devices")),
            "error 0 count 2\n0000:03:00.0\n0000:01:00.0\n");
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=4 CUDA_VISIBLE_DEVICES='2, 0 '", "devices")),
            "error 0 count 2\n0000:03:00.0\n0000:01:00.0\n");
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=4 CUDA_VISIBLE_DEVICES=1,-1,2", "devices")),
            "error 0 count 1\n0000:02:00.0\n");
  EXPECT_EQ(printed(run_probe("CUDA_VISIBLE_DEVICES=", "devices")), "error 100 count 0\n");
}

TEST(ProcessTest, BothLibrariesUseTheListThatTheFirstInitialisationReads) {
  const std::string expected = "error 3 counts 3 3 first 0000:04:00.0\n";
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=4 CUDA_VISIBLE_DEVICES=0", "list_before_runtime")),
            expected);
  EXPECT_EQ(printed(run_probe("UVMSIM_DEVICES=4 CUDA_VISIBLE_DEVICES=0", "list_before_driver")),
            expected);
}

TEST(ProcessTest, TheRuntimeLibraryLoadsTheDriverWhenItIsInitialised) {
  EXPECT_EQ(printed(run_probe("", "driver_library")), "before -1 after 0\n");
}

TEST(ProcessTest, AChildOfAFreshProcessHasDevicesAndOneForkedLaterHasNone) {
  EXPECT_EQ(printed(run_probe("", "fork")), "before 0 parent 0 after 3 still 0\n");
}

TEST(ProcessTest, TheKernelPluginIsPolledUntilDone) {
  const Outcome outcome =
      run_probe("UVMSIM_DEVICES=2 UVMSIM_KERNELS=" UVMSIM_TEST_PLUGIN, "plugin");
  // Each of the two polls also asks for the device count.
  EXPECT_EQ(printed(outcome), "poll 1 sees 2\npoll 2 sees 2\ncount 2 calls 7\n") << outcome.output;
}

TEST(ProcessTest, AKernelPluginThatCannotBeLoadedIsNamedOnce) {
  const Outcome outcome =
      run_probe("UVMSIM_DEVICES=2 UVMSIM_KERNELS=/nowhere/kernels.so", "plugin");
  EXPECT_EQ(printed(outcome), "count 2 calls 5\n");
  const std::string line =
      "uvmsim: UVMSIM_KERNELS is '/nowhere/kernels.so', which cannot be loaded: ";
  const std::size_t first = outcome.output.find(line);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(outcome.output.find(line, first + 1), std::string::npos);
}

TEST(ProcessTest, TheReportIsWrittenByTheFirstProcessOnly) {
  const std::string path =
      ::testing::TempDir() + "uvmsim_report_" + std::to_string(getpid()) + ".json";
  run_probe("UVMSIM_REPORT=" + path, "report");
  std::ifstream file(path);
  ASSERT_TRUE(file.good());
  const std::string report{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_NE(report.find("\"device_allocations\": 1,"), std::string::npos) << report;
  EXPECT_NE(report.find("\"unimplemented_calls\": 1\n"), std::string::npos) << report;
  EXPECT_NE(report.find("\"unimplemented\": {\n    \"cudaFreeMipmappedArray\": 1\n  }"),
            std::string::npos)
      << report;
  std::remove(path.c_str());
}

TEST(ProcessTest, TheAuditLibraryIsSilentAndFindsTheStandIns) {
  if (UVMSIM_TEST_SANITIZED)
    GTEST_SKIP() << "programs of the system cannot load sanitized libraries";
  const std::string audit = "LD_AUDIT=" UVMSIM_TEST_LIBRARY_DIR "/libuvmsim_audit.so ";
  const Outcome shell = run(audit + "sh -c 'echo hello'");
  EXPECT_EQ(shell.code, 0);
  EXPECT_EQ(shell.output, "hello\n");
  const Outcome python =
      run(audit +
          "python3 -c 'import ctypes; n = ctypes.c_int(); "
          "print(ctypes.CDLL(\"/nowhere/libcudart.so.13\").cudaGetDeviceCount(ctypes.byref(n)), "
          "n.value, ctypes.CDLL(\"libcuda.so.1\").cuInit(0))'");
  EXPECT_EQ(python.output, "0 2 0\n");
}

}  // namespace
}  // namespace uvmsim::test

namespace {

// Tests of this program need two devices; probes choose their own number.
const bool environment_is_set = [] {
  if (std::getenv("UVMSIM_TEST_PROBE") == nullptr) setenv("UVMSIM_DEVICES", "2", 1);
  return true;
}();

}  // namespace
