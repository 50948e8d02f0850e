// Tensors and kernels on a simulated device, through the simulator's functions of CUDA's driver.
// The simulator counts the bytes over its link.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>

#include <uvmalloc/sim/uvmsim.h>
#include "pipelines/tensors/backend.hpp"

namespace uvm::bench {

class SimulatedDevices final : public DeviceTransfers {
 public:
  // Throws std::runtime_error if libcuda.so.1 is not the simulator's.
  SimulatedDevices() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    void* context = nullptr;
    check(call<int(unsigned)>("cuInit")(0), "cuInit");
    check(call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0), "the context");
    check(call<int(void*)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  }

  std::string_view name() const override { return "simulated"; }
  void* allocate(int, std::size_t size_bytes) const override {
    return allocate_by("cuMemAlloc_v2", size_bytes);
  }
  void free(int, void* address) const noexcept override {
    call<int(void*)>("cuMemFree_v2")(address);
  }
  void to_device(int, void* destination, const void* host, std::size_t bytes) const override {
    check(call<int(void*, const void*, std::size_t)>("cuMemcpyHtoD_v2")(destination, host, bytes),
          "cuMemcpyHtoD");
  }
  void to_host(int, void* host, const void* source, std::size_t bytes) const override {
    check(call<int(void*, const void*, std::size_t)>("cuMemcpyDtoH_v2")(host, source, bytes),
          "cuMemcpyDtoH");
  }
  bool has_peer_access(int, int) const override { return false; }
  void between(int, const void*, int, void*, std::size_t) const override {
    throw TransferError("there is one device");
  }
  HostFormat host_format(int) const override { return {}; }
  void* allocate_pinned(int, std::size_t size_bytes) const override {
    return allocate_by("cuMemAllocHost_v2", size_bytes);
  }
  void free_pinned(int, void* address) const noexcept override {
    call<int(void*)>("cuMemFreeHost")(address);
  }

  // Returns a function of the driver or of the simulator.
  template <class Signature>
  Signature* call(const char* name) const {
    void* const found = dlsym(library_, name);
    if (found == nullptr) throw std::runtime_error(std::string(name) + " is not there");
    return reinterpret_cast<Signature*>(found);
  }
  uvmsim_counters counters() const {
    uvmsim_counters now;
    call<void(uvmsim_counters*)>("uvmsim_get_counters")(&now);
    return now;
  }
  static void check(int error, const char* what) {
    if (error != 0) throw TransferError(std::string(what) + " returns " + std::to_string(error));
  }

 private:
  void* allocate_by(const char* function, std::size_t size_bytes) const {
    void* address = nullptr;
    if (call<int(void**, std::size_t)>(function)(&address, size_bytes) != 0) throw std::bad_alloc();
    return address;
  }

  void* library_;
};

// Kernels of floats: "add" (a + b), "double" (2 a), "sum" (of all, one float), "descend" (w,
// gradient -> w - gradient / 2). Each kernel tells the machine which memory it reads and writes.
class SimulatedBackend final : public Backend {
 public:
  explicit SimulatedBackend(const SimulatedDevices& devices) : devices_(devices) {}
  std::string_view name() const override { return "simulated"; }
  int device_count() const override { return 1; }
  const DeviceTransfers& transfers() const override { return devices_; }
  Kernel kernel(std::string_view name) const override {
    if (name == "add") return each([](float a, float b) { return a + b; });
    if (name == "double") return each([](float a, float) { return 2 * a; });
    if (name == "descend") return each([](float w, float g) { return w - g / 2; });
    if (name != "sum") return {};
    return [this](int device, Spans inputs, Spans outputs) {
      declare(device, inputs, outputs);
      const auto* const values = view<const float>(inputs[0]);
      float total = 0;
      for (std::size_t at = 0; at < inputs[0].size_bytes / sizeof(float); ++at) total += values[at];
      *view<float>(outputs[0]) = total;
    };
  }

 private:
  using Spans = std::span<const DeviceSpan>;

  template <class Function>
  Kernel each(Function function) const {
    return [this, function](int device, Spans inputs, Spans outputs) {
      declare(device, inputs, outputs);
      const auto* const first = view<const float>(inputs.front());
      const auto* const last = view<const float>(inputs.back());
      auto* const output = view<float>(outputs[0]);
      for (std::size_t at = 0; at < outputs[0].size_bytes / sizeof(float); ++at)
        output[at] = function(first[at], last[at]);
    };
  }
  void declare(int device, Spans inputs, Spans outputs) const {
    std::vector<uvmsim_access> accesses;
    for (const DeviceSpan& span : inputs)
      accesses.push_back({span.address, span.size_bytes, UVMSIM_READ});
    for (const DeviceSpan& span : outputs)
      accesses.push_back({span.address, span.size_bytes, UVMSIM_WRITE});
    SimulatedDevices::check(devices_.call<decltype(uvmsim_kernel)>("uvmsim_kernel")(
                                device, nullptr, accesses.data(), accesses.size(), 1000),
                            "uvmsim_kernel");
  }
  template <class Value>
  Value* view(const DeviceSpan& span) const {
    return static_cast<Value*>(
        devices_.call<decltype(uvmsim_device_view)>("uvmsim_device_view")(span.address));
  }

  const SimulatedDevices& devices_;
};

}  // namespace uvm::bench
