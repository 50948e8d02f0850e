// Devices for tests of storage/. Device memory is memory of the process, separate from the host's
// memory, and every copy is counted. A backend on these devices has a few small kernels of floats.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "pipelines/tensors/backend.hpp"
#include "pipelines/tensors/device_transfers.hpp"

namespace uvm::testing {

class HostDevices final : public DeviceTransfers {
 public:
  explicit HostDevices(int devices = 1, std::string_view name = "test device")
      : devices_(devices), name_(name) {}
  ~HostDevices() override {
    if (!live_.empty() || pinned != 0) std::abort();  // memory that nobody freed
  }

  std::string_view name() const override { return name_; }
  int device_count() const { return devices_; }
  void* allocate(int device, std::size_t size_bytes) const override {
    if (refuses_memory) throw std::bad_alloc();
    void* const address = std::malloc(size_bytes + 1);
    std::memset(address, 0xee, size_bytes + 1);  // garbage
    std::lock_guard lock(mutex_);
    live_[{device, address}] = size_bytes;
    live_bytes += size_bytes;
    if (live_bytes > peak_bytes) peak_bytes = live_bytes.load();
    return address;
  }
  void free(int device, void* address) const noexcept override {
    std::lock_guard lock(mutex_);
    const auto found = live_.find({device, address});
    if (found == live_.end()) std::abort();
    live_bytes -= found->second;
    live_.erase(found);
    std::free(address);
  }
  void to_device(int, void* destination, const void* host, std::size_t bytes) const override {
    refuse_if_set("to_device");
    std::memcpy(destination, host, bytes);
    ++copies_to_device;
  }
  void to_host(int, void* host, const void* source, std::size_t bytes) const override {
    refuse_if_set("to_host");
    std::memcpy(host, source, bytes);
    ++copies_to_host;
  }
  bool has_peer_access(int, int) const override { return are_peers; }
  void between(int, const void* source, int, void* destination, std::size_t bytes) const override {
    refuse_if_set("between");
    std::memcpy(destination, source, bytes);
    ++copies_between;
  }
  HostFormat host_format(int) const override { return {256, 64}; }
  void* allocate_pinned(int device, std::size_t size_bytes) const override {
    void* address = nullptr;
    const HostFormat format = host_format(device);
    if (posix_memalign(&address, format.alignment_bytes, size_bytes + format.padding_bytes) != 0)
      throw std::bad_alloc();
    ++pinned;
    return address;
  }
  void free_pinned(int, void* address) const noexcept override {
    --pinned;
    std::free(address);
  }

  bool are_peers = true;
  bool refuses_memory = false;
  bool refuses_copies = false;
  mutable std::atomic<int> copies_to_device = 0, copies_to_host = 0, copies_between = 0, pinned = 0;
  mutable std::atomic<std::size_t> live_bytes = 0, peak_bytes = 0;

 private:
  void refuse_if_set(const char* call) const {
    if (refuses_copies) throw TransferError(std::string(call) + ": the link is down");
  }
  int devices_;
  std::string_view name_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<int, void*>, std::size_t> live_;
};

// Kernels: "add" (a + b), "double" (2 a), "sum" (of all inputs, as one float), "descend" (w,
// gradient -> w - gradient / 2).
class HostBackend final : public Backend {
 public:
  explicit HostBackend(const HostDevices& devices, std::string_view name = "test")
      : devices_(devices), name_(name) {}
  std::string_view name() const override { return name_; }
  int device_count() const override { return devices_.device_count(); }
  const DeviceTransfers& transfers() const override { return devices_; }
  Kernel kernel(std::string_view name) const override {
    if (name == "add") {
      return each([](const float* const* in, std::size_t at) { return in[0][at] + in[1][at]; });
    }
    if (name == "double") {
      return each([](const float* const* in, std::size_t at) { return 2 * in[0][at]; });
    }
    if (name == "descend") {
      return each([](const float* const* in, std::size_t at) { return in[0][at] - in[1][at] / 2; });
    }
    if (name == "sum") {
      return [](int, std::span<const DeviceSpan> in, std::span<const DeviceSpan> out) {
        float total = 0;
        for (std::size_t at = 0; at < in[0].size_bytes / sizeof(float); ++at)
          total += static_cast<const float*>(in[0].address)[at];
        *static_cast<float*>(out[0].address) = total;
      };
    }
    return {};
  }

 private:
  template <class Function>
  static Kernel each(Function function) {
    return [function](int, std::span<const DeviceSpan> in, std::span<const DeviceSpan> out) {
      const float* inputs[2] = {};
      for (std::size_t place = 0; place < in.size(); ++place)
        inputs[place] = static_cast<const float*>(in[place].address);
      for (std::size_t at = 0; at < out[0].size_bytes / sizeof(float); ++at)
        static_cast<float*>(out[0].address)[at] = function(inputs, at);
    };
  }
  const HostDevices& devices_;
  std::string_view name_;
};

}  // namespace uvm::testing
