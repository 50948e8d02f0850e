// A stand-in for libnvidia-ml.so.1: all devices of the simulated machine, whatever
// CUDA_VISIBLE_DEVICES hides, with their utilization and memory use. It does not create the
// simulated machine: in a process that has used no device, and in a forked child, devices are idle
// and empty. Each process has its own devices, so no other process appears on them.
//
// Like NVML of DGX Spark, it reports no memory of an integrated device. All other functions of NVML
// return "not supported" (../nvml_symbols.txt lists their names). NCCL fails at its first call of
// such a function.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>

#include <cuda.h>

#include "sim/cuda/common/device_attributes.hpp"
#include "sim/cuda/common/version.hpp"
#include "sim/cuda/management/entry.hpp"
#include "sim/engine/machine.hpp"
#include "sim/engine/thread_context.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

extern "C" int uvmsim_management_not_implemented(void** record, const char* name);

int uvmsim_management_not_implemented(void**, const char*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

namespace {

constexpr const char* kVersion = "580.00";

constexpr const char* kNoNccl =
    "NCCL cannot run on the simulated device; use torch.distributed's backend gloo, and "
    "DistributedDataParallel instead of DataParallel";

bool is_nccl(const void* caller) {
  Dl_info library{};
  return dladdr(caller, &library) != 0 && library.dli_fname != nullptr &&
         std::string_view(library.dli_fname).find("libnccl") != std::string_view::npos;
}

// Figures of an idle device, whatever the program does.
constexpr unsigned kCelsius = 40;
constexpr unsigned kMilliwatts = 70'000;
constexpr unsigned kGraphicsClockMhz = 1980;
constexpr unsigned kMemoryClockMhz = 3201;
constexpr int kMemoryClock = 2;
constexpr int kLastClock = 3;
// The usual size of the window through which the host accesses device memory over PCIe.
constexpr unsigned long long kWindowBytes = 256ULL << 20;

// A device handle is the address of an element.
std::array<char, kMostDevices> devices;

NvmlDevice device_of(int number) {
  return &devices[static_cast<std::size_t>(number)];
}

int device_count() {
  return process_settings().devices;
}

// Returns -1 for a foreign handle.
int number_of(NvmlDevice device) {
  const auto offset =
      reinterpret_cast<std::uintptr_t>(device) - reinterpret_cast<std::uintptr_t>(devices.data());
  return offset < static_cast<std::size_t>(device_count()) ? static_cast<int>(offset) : -1;
}

std::string uuid_of(int number) {
  std::array<char, 16> bytes;
  device_uuid_of_number(number, bytes.data());
  std::string text = "GPU";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    char part[4];
    std::snprintf(part, sizeof part, "%02x", static_cast<unsigned char>(bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += part;
  }
  return text;
}

NvmlReturn copy_text(const std::string& text, char* out, unsigned size) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (size <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

NvmlReturn find_device(int number, NvmlDevice* out) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (number < 0 || number >= device_count()) return NVML_ERROR_NOT_FOUND;
  *out = device_of(number);
  return NVML_SUCCESS;
}

bool has_own_memory() {
  return process_settings().machine.memory != Profile::kIntegrated;
}

NvmlMemory memory_of(int number) {
  Machine* machine = Machine::existing();
  if (machine == nullptr) {
    const unsigned long long capacity = process_settings().machine.capacity_bytes;
    return {capacity, capacity, 0};
  }
  const MemoryUse use = machine->memory().use(number);
  return {use.capacity_bytes, use.free_bytes(), use.unevictable_bytes + use.managed_bytes};
}

template <class Process>
NvmlReturn list_processes(NvmlDevice device, unsigned* count, Process* out) {
  const int number = number_of(device);
  if (number < 0 || count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned long long used_bytes = memory_of(number).used;
  const unsigned room = *count;
  *count = used_bytes == 0 ? 0 : 1;
  if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (*count != 0) {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *out = {};
    out->pid = static_cast<unsigned>(getpid());
    out->used_bytes = used_bytes;
  }
  return NVML_SUCCESS;
}

}  // namespace

// ---- the library

NVML_API nvmlInit_v2() {
  return NVML_SUCCESS;
}

NVML_API nvmlInit() {
  return NVML_SUCCESS;
}

NVML_API nvmlInitWithFlags(unsigned) {
  return NVML_SUCCESS;
}

NVML_API nvmlShutdown() {
  return NVML_SUCCESS;
}

// NCCL quotes the message in its own error, which some programs do not show.
NVML_API_AS(const char*) nvmlErrorString(NvmlReturn error) {
  if (error == NVML_ERROR_NOT_SUPPORTED && is_nccl(__builtin_return_address(0))) {
    static std::once_flag printed;
    std::call_once(printed, [] { std::fprintf(stderr, "uvmsim: %s\n", kNoNccl); });
    return kNoNccl;
  }
  switch (error) {
    case NVML_SUCCESS:
      return "The operation was successful";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "A supplied argument is invalid";
    case NVML_ERROR_NOT_SUPPORTED:
      return "The requested operation is not available on target device";
    case NVML_ERROR_NOT_FOUND:
      return "A query to find an object was unsuccessful";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "An input argument is not large enough";
  }
  return "Unknown error";
}

NVML_API nvmlSystemGetDriverVersion(char* text, unsigned size) {
  return copy_text(kVersion, text, size);
}

NVML_API nvmlSystemGetNVMLVersion(char* text, unsigned size) {
  return copy_text(kVersion, text, size);
}

NVML_API nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = driver_version();
  return NVML_SUCCESS;
}

NVML_API nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

// ---- devices

NVML_API nvmlDeviceGetCount_v2(unsigned* count) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = static_cast<unsigned>(device_count());
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCount(unsigned* count) {
  return nvmlDeviceGetCount_v2(count);
}

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice* device) {
  if (device == nullptr || index >= static_cast<unsigned>(device_count()))
    return NVML_ERROR_INVALID_ARGUMENT;
  return find_device(static_cast<int>(index), device);
}

NVML_API nvmlDeviceGetHandleByIndex(unsigned index, NvmlDevice* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API nvmlDeviceGetHandleByUUID(const char* text, NvmlDevice* device) {
  if (text == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  int number = 0;
  while (number < device_count() && uuid_of(number) != text) ++number;
  return find_device(number, device);
}

// Accepts "0000:01:00.0", or a domain of eight digits; letters may be in upper or lower case.
NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char* text, NvmlDevice* device) {
  unsigned domain = 0;
  unsigned bus = 0;
  if (text == nullptr || std::sscanf(text, "%x:%x", &domain, &bus) != 2)
    return NVML_ERROR_INVALID_ARGUMENT;
  int number = 0;
  while (number < device_count() && static_cast<unsigned>(pci_bus_of_number(number)) != bus)
    ++number;
  return find_device(domain == 0 ? number : -1, device);
}

NVML_API nvmlDeviceGetHandleByPciBusId(const char* text, NvmlDevice* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

NVML_API nvmlDeviceGetIndex(NvmlDevice device, unsigned* index) {
  const int number = number_of(device);
  if (number < 0 || index == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *index = static_cast<unsigned>(number);
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPciInfo_v3(NvmlDevice device, NvmlPciInfo* out) {
  const int number = number_of(device);
  if (number < 0 || out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *out = {};
  out->bus = static_cast<unsigned>(pci_bus_of_number(number));
  std::snprintf(out->legacy_bus_id, sizeof out->legacy_bus_id, "0000:%02X:00.0", out->bus);
  std::snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetName(NvmlDevice device, char* text, unsigned size) {
  if (number_of(device) < 0) return NVML_ERROR_INVALID_ARGUMENT;
  return copy_text(device_name(), text, size);
}

NVML_API nvmlDeviceGetUUID(NvmlDevice device, char* text, unsigned size) {
  const int number = number_of(device);
  return number < 0 ? NVML_ERROR_INVALID_ARGUMENT : copy_text(uuid_of(number), text, size);
}

// ---- memory and utilization

NVML_API nvmlDeviceGetMemoryInfo(NvmlDevice device, NvmlMemory* out) {
  const int number = number_of(device);
  if (number < 0 || out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (!has_own_memory()) return NVML_ERROR_NOT_SUPPORTED;
  *out = memory_of(number);
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryInfo_v2(NvmlDevice device, NvmlMemoryV2* out) {
  const int number = number_of(device);
  if (number < 0 || out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (!has_own_memory()) return NVML_ERROR_NOT_SUPPORTED;
  const NvmlMemory memory = memory_of(number);
  *out = {out->version, memory.total, 0, memory.free, memory.used};
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetBAR1MemoryInfo(NvmlDevice device, NvmlMemory* out) {
  if (number_of(device) < 0 || out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (!has_own_memory()) return NVML_ERROR_NOT_SUPPORTED;
  *out = {kWindowBytes, kWindowBytes, 0};
  return NVML_SUCCESS;
}

// A device is busy while, by the virtual clock, it has work that the host has not waited for.
// Kernels count as memory-bound.
NVML_API nvmlDeviceGetUtilizationRates(NvmlDevice device, NvmlUtilization* out) {
  const int number = number_of(device);
  if (number < 0 || out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  Machine* machine = Machine::existing();
  const unsigned percent = machine != nullptr && machine->streams().is_busy(number) ? 100 : 0;
  *out = {percent, percent};
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTemperature(NvmlDevice device, int sensor, unsigned* celsius) {
  if (number_of(device) < 0 || sensor != 0 || celsius == nullptr)
    return NVML_ERROR_INVALID_ARGUMENT;
  *celsius = kCelsius;
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTemperatureV(NvmlDevice device, NvmlTemperature* out) {
  if (number_of(device) < 0 || out == nullptr || out->sensor != 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  out->celsius = kCelsius;
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPowerUsage(NvmlDevice device, unsigned* milliwatts) {
  if (number_of(device) < 0 || milliwatts == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *milliwatts = kMilliwatts;
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetClockInfo(NvmlDevice device, int clock, unsigned* megahertz) {
  if (number_of(device) < 0 || clock < 0 || clock > kLastClock || megahertz == nullptr)
    return NVML_ERROR_INVALID_ARGUMENT;
  *megahertz = clock == kMemoryClock ? kMemoryClockMhz : kGraphicsClockMhz;
  return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeRunningProcesses(NvmlDevice device, unsigned* count,
                                              NvmlProcess* out) {
  return list_processes(device, count, out);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v2(NvmlDevice device, unsigned* count,
                                                 NvmlProcessV2* out) {
  return list_processes(device, count, out);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(NvmlDevice device, unsigned* count,
                                                 NvmlProcessV2* out) {
  return list_processes(device, count, out);
}
