#include "pipelines/tensors/resident_tensor.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

namespace uvm {
namespace {

// Returns at least one byte, so that an empty tensor has an address too.
void* zeroed(std::size_t size_bytes) {
  void* address = std::calloc(std::max<std::size_t>(size_bytes, 1), 1);
  if (address == nullptr) throw std::bad_alloc();
  return address;
}

}  // namespace

std::size_t TensorType::size_bytes() const {
  bool is_empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) {
      throw std::invalid_argument(fmt::format("a dimension is {}; accepted: 0 or more", dimension));
    }
    is_empty = is_empty || dimension == 0;
  }
  if (is_empty) return 0;
  std::int64_t size = 0;
  bool is_too_large = __builtin_add_overflow(element_bytes, 0, &size);
  for (const std::int64_t dimension : shape) {
    is_too_large = is_too_large || __builtin_mul_overflow(size, dimension, &size);
  }
  if (is_too_large) throw std::overflow_error("a tensor has more than 2^63 - 1 bytes");
  return static_cast<std::size_t>(size);
}

ResidentTensor::ResidentTensor(std::string name, TensorType type, HostAccess access, void* host)
    : name_(std::move(name)),
      type_(std::move(type)),
      access_(access),
      size_bytes_(type_.size_bytes()),
      host_(host) {}

ResidentTensor::~ResidentTensor() {
  free_device_memory();
  free_host_memory();
}

bool ResidentTensor::is_pinned_for(const DeviceTransfers& runtime, int device) const {
  return pinned_.is_on(runtime, device);
}

// ---- memory

void* ResidentTensor::host_memory() {
  if (host_ == nullptr) {
    host_ = zeroed(size_bytes_);
    owns_host_ = true;
  }
  return host_;
}

void ResidentTensor::free_host_memory() noexcept {
  if (pinned_.runtime != nullptr) {
    pinned_.runtime->free_pinned(pinned_.device, host_);
  } else if (owns_host_) {
    std::free(host_);
  }
  host_ = nullptr;
  owns_host_ = false;
  pinned_ = {};
}

void ResidentTensor::free_device_memory() noexcept {
  if (device_.runtime != nullptr && owns_device_) {
    device_.runtime->free(device_.device, device_.context);
  }
  device_ = {};
  owns_device_ = is_on_device_ = false;
}

// Allocates on the device without copying. The caller has saved any data on another device.
void ResidentTensor::ensure_device_memory(const DeviceTransfers& runtime, int device,
                                          void* location) {
  const bool is_there =
      device_.is_on(runtime, device) && (location == nullptr || location == device_.context);
  if (is_there) return;
  const bool owns = location == nullptr;
  void* const address = owns ? runtime.allocate(device, size_bytes_) : location;
  free_device_memory();
  device_ = {&runtime, device, address};
  owns_device_ = owns;
}

void ResidentTensor::allocate_pinned(const DeviceTransfers& runtime, int device) {
  if (is_pinned_for(runtime, device)) return;
  void* const made = runtime.allocate_pinned(device, size_bytes_);
  if (is_on_host_ && host_ != nullptr) {
    std::memcpy(made, host_, size_bytes_);
  } else {
    std::memset(made, 0, size_bytes_);
  }
  free_host_memory();
  host_ = made;
  pinned_ = {&runtime, device, made};
}

// ---- transfers

void ResidentTensor::transfer_to_device(const DeviceTransfers& runtime, int device,
                                        void* location) {
  const bool is_there =
      device_.is_on(runtime, device) && (location == nullptr || location == device_.context);
  if (is_on_device_ && is_there) return;
  const bool is_peer =
      is_on_device_ && !is_on_host_ && device_.runtime == &runtime &&
      (device_.device == device || runtime.has_peer_access(device_.device, device));
  if (is_peer) {
    const bool owns = location == nullptr;
    void* const address = owns ? runtime.allocate(device, size_bytes_) : location;
    try {
      runtime.between(device_.device, device_.context, device, address, size_bytes_);
    } catch (...) {
      if (owns) runtime.free(device, address);
      throw;
    }
    free_device_memory();
    device_ = {&runtime, device, address};
    owns_device_ = owns;
    ++transfers_.between_devices;
  } else {
    if (!is_on_host_) transfer_from_device(false);
    const void* const host = host_memory();
    ensure_device_memory(runtime, device, location);
    runtime.to_device(device, device_.context, host, size_bytes_);
    ++transfers_.to_device;
  }
  is_on_device_ = true;
}

bool ResidentTensor::transfer_from_device(bool release) {
  if (!is_on_device_) return false;
  if (!is_on_host_) {
    device_.runtime->to_host(device_.device, host_memory(), device_.context, size_bytes_);
    ++transfers_.to_host;
    is_on_host_ = true;
  }
  if (release) free_device_memory();
  return true;
}

void ResidentTensor::release() {
  free_device_memory();
  is_on_host_ = true;
}

// ---- use

const void* ResidentTensor::host_data() {
  if (!is_on_host_) {
    if (access_ == HostAccess::kError) {
      throw NotResidentError(fmt::format(
          "the data of tensor '{}' is on {} {}, not on the host; call transfer_from_device() first",
          name_, device_.runtime->name(), device_.device));
    }
    transfer_from_device(false);
  }
  return host_memory();
}

void* ResidentTensor::mutable_host_data() {
  host_data();
  is_on_device_ = false;
  return host_memory();
}

const void* ResidentTensor::device_data(const DeviceTransfers& runtime, int device) {
  transfer_to_device(runtime, device);
  return device_.context;
}

void* ResidentTensor::mutable_device_data(const DeviceTransfers& runtime, int device) {
  transfer_to_device(runtime, device);
  is_on_host_ = false;
  return device_.context;
}

void* ResidentTensor::device_output(const DeviceTransfers& runtime, int device) {
  ensure_device_memory(runtime, device, nullptr);
  is_on_device_ = true;
  is_on_host_ = false;
  return device_.context;
}

}  // namespace uvm
