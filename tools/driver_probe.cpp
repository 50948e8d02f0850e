// Measures how this machine's CUDA driver behaves where uvmalloc depends on it: the cost of calls
// on managed memory, the alignment of allocations, and the calls that the driver refuses during a
// capture. Prints JSON. Opens libcuda.so.1 at run time, so it also runs on the simulated device,
// where times mean little.
//
//   driver_probe [--sizes-mib 2,16,128,1024] [--rounds 3]
//   driver_probe --limit      prints the device's name and the bytes of managed memory that
//                             programs may use together on it; nothing is allocated
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/cuda/driver_api.hpp"
#include "storage/pages.hpp"

namespace {

using uvm::cuda::DriverApi;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = 1u << 20;
constexpr std::size_t kGiB = 1u << 30;

// ---- the limit

// The limit of all managed allocations together, in bytes. Oversubscribed managed memory on a card
// can crash the machine, so the limit stays far below the card's memory; no measurement needs more.
// Only this function computes the limit; scripts/gpu_check passes it on as UVMALLOC_BUDGET.
std::size_t managed_limit_bytes(std::size_t free_bytes) {
  return std::min(8 * kGiB, free_bytes / 4);
}

// ---- the driver

// Entry points that uvmalloc itself does not use.
struct MoreCalls {
  CUresult (*memset_async)(CUdeviceptr, unsigned char, size_t, CUstream) = nullptr;
  CUresult (*begin_capture)(CUstream, CUstreamCaptureMode) = nullptr;
  CUresult (*end_capture)(CUstream, CUgraph*) = nullptr;
  CUresult (*graph_destroy)(CUgraph) = nullptr;
};

template <class Function>
void bind(void* library, Function*& out, const char* name) {
  out = reinterpret_cast<Function*>(dlsym(library, name));
  if (out == nullptr) throw std::runtime_error(fmt::format("libcuda.so.1 has no {}", name));
}

class Driver {
 public:
  Driver() {
    std::string reason;
    api_ = uvm::cuda::bind_driver(&reason);
    if (api_ == nullptr) throw std::runtime_error(reason);
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    bind(library, more_.memset_async, "cuMemsetD8Async");
    bind(library, more_.begin_capture, "cuStreamBeginCapture_v2");
    bind(library, more_.end_capture, "cuStreamEndCapture");
    bind(library, more_.graph_destroy, "cuGraphDestroy");
    check(api_->primary_ctx_retain(&context_, 0), "cuDevicePrimaryCtxRetain");
    enter();
  }

  const DriverApi* operator->() const { return api_.get(); }
  const MoreCalls& more() const { return more_; }

  // Makes the device's context current on the calling thread.
  void enter() const { check(api_->ctx_set_current(context_), "cuCtxSetCurrent"); }

  std::string name(CUresult result) const {
    const char* text = nullptr;
    api_->get_error_name(result, &text);
    return text != nullptr ? text : fmt::format("error {}", static_cast<int>(result));
  }
  void check(CUresult result, const char* call) const {
    if (result != CUDA_SUCCESS) {
      throw std::runtime_error(fmt::format("{}: {}", call, name(result)));
    }
  }

  int attribute(CUdevice_attribute which) const {
    int value = 0;
    api_->device_get_attribute(&value, which, 0);
    return value;
  }
  std::size_t free_bytes() const {
    std::size_t free = 0;
    std::size_t total = 0;
    check(api_->mem_get_info(&free, &total), "cuMemGetInfo");
    return free;
  }

  CUresult advise(CUdeviceptr address, std::size_t size_bytes, CUmem_advise advice,
                  bool device) const {
    if (api_->advise_by_location != nullptr) {
      return api_->advise_by_location(address, size_bytes, advice, location(device));
    }
    return api_->advise_by_device(address, size_bytes, advice, device ? 0 : CU_DEVICE_CPU);
  }
  CUresult prefetch(CUdeviceptr address, std::size_t size_bytes, bool device,
                    CUstream stream) const {
    if (api_->prefetch_by_location != nullptr) {
      return api_->prefetch_by_location(address, size_bytes, location(device), 0, stream);
    }
    return api_->prefetch_by_device(address, size_bytes, device ? 0 : CU_DEVICE_CPU, stream);
  }
  CUresult discard(CUdeviceptr address, std::size_t size_bytes, CUstream stream) const {
    if (api_->discard_batch == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    return api_->discard_batch(&address, &size_bytes, 1, 0, stream);
  }

 private:
  static CUmemLocation location(bool device) {
    CUmemLocation out{};
    out.type = device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
    return out;
  }

  std::unique_ptr<const DriverApi> api_;
  MoreCalls more_;
  CUcontext context_ = nullptr;
};

class Stream {
 public:
  explicit Stream(const Driver& driver) : driver_(driver) {
    driver_.check(driver_->stream_create(&handle_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  ~Stream() { driver_->stream_destroy(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator CUstream() const { return handle_; }  // NOLINT(google-explicit-constructor)
  void wait() const { driver_.check(driver_->stream_synchronize(handle_), "cuStreamSynchronize"); }

 private:
  const Driver& driver_;
  CUstream handle_ = nullptr;
};

class Event {
 public:
  explicit Event(const Driver& driver) : driver_(driver) {
    driver_.check(driver_->event_create(&handle_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  ~Event() { driver_->event_destroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator CUevent() const { return handle_; }  // NOLINT(google-explicit-constructor)

 private:
  const Driver& driver_;
  CUevent handle_ = nullptr;
};

// Allocates all managed memory of this program. Refuses requests above the limit without calling
// the driver.
class ManagedMemory {
 public:
  ManagedMemory(const Driver& driver, std::size_t limit_bytes)
      : driver_(driver), limit_bytes_(limit_bytes) {}

  std::size_t limit_bytes() const { return limit_bytes_; }
  bool allows(std::size_t size_bytes) const {
    return size_bytes <= limit_bytes_ && taken_bytes_ <= limit_bytes_ - size_bytes;
  }

  CUresult try_allocate(std::size_t size_bytes, CUdeviceptr* out) {
    if (!allows(size_bytes)) {
      throw std::length_error(
          fmt::format("{} bytes beyond {} in use exceed the limit of {} for managed memory",
                      size_bytes, taken_bytes_, limit_bytes_));
    }
    CUresult result = driver_->mem_alloc_managed(out, size_bytes, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS) taken_bytes_ += size_bytes;
    return result;
  }
  CUresult try_free(CUdeviceptr address, std::size_t size_bytes) {
    CUresult result = driver_->mem_free(address);
    if (result == CUDA_SUCCESS) taken_bytes_ -= size_bytes;
    return result;
  }

 private:
  const Driver& driver_;
  std::size_t limit_bytes_;
  std::size_t taken_bytes_ = 0;
};

class Buffer {
 public:
  Buffer(const Driver& driver, ManagedMemory& memory, std::size_t size_bytes)
      : memory_(memory), size_bytes_(size_bytes) {
    driver.check(memory_.try_allocate(size_bytes, &address_), "cuMemAllocManaged");
  }
  ~Buffer() {
    if (address_ != 0) memory_.try_free(address_, size_bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  CUdeviceptr address() const { return address_; }
  std::size_t size_bytes() const { return size_bytes_; }
  void* host_pointer() const { return reinterpret_cast<void*>(address_); }
  CUresult free_now() {
    CUresult result = memory_.try_free(address_, size_bytes_);
    if (result == CUDA_SUCCESS) address_ = 0;
    return result;
  }

 private:
  ManagedMemory& memory_;
  CUdeviceptr address_ = 0;
  std::size_t size_bytes_;
};

// ---- measuring

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double rounded(double value) {
  return static_cast<double>(static_cast<long long>(value * 100 + 0.5)) / 100;
}

std::string size_key(std::size_t size_bytes) {
  return size_bytes % kMiB == 0 ? fmt::format("{}_mib", size_bytes / kMiB)
                                : fmt::format("{}_kib", size_bytes / 1024);
}

class Probe {
 public:
  Probe(std::vector<std::size_t> sizes, int rounds)
      : memory_(driver_, managed_limit_bytes(driver_.free_bytes())),
        lane_(driver_),
        sizes_(std::move(sizes)),
        rounds_(rounds) {
    std::erase_if(sizes_, [&](std::size_t size) { return !memory_.allows(2 * size); });
  }

  std::size_t limit_bytes() const { return memory_.limit_bytes(); }
  Json device() const;
  Json run();

 private:
  enum class Populated { kNowhere, kByHost, kByDevice };
  static constexpr std::pair<Populated, const char*> kPopulations[] = {
      {Populated::kNowhere, "nowhere"},
      {Populated::kByHost, "by_host"},
      {Populated::kByDevice, "by_device"},
  };

  // A call on a whole buffer. Calls with a stream use the probe's stream.
  struct Call {
    const char* name;
    bool on_stream;
    std::function<CUresult(const Buffer&)> make;
  };

  void populate(const Buffer& buffer, Populated how) const;
  // Large enough that the device takes longer to write it than the host takes to enqueue the write.
  std::size_t scratch_bytes() const { return std::min(sizes_.back(), 64 * kMiB); }
  // Enqueues long work on `stream`.
  void occupy(const Buffer& scratch, CUstream stream) const;

  Json alignment();
  Json allocations();
  std::vector<Call> hint_calls() const;
  Json hints();
  Json hint_times(const Call& call, std::size_t size_bytes, Populated populated);
  Json prefetch_to_host();
  Json default_stream_event();
  Json capture();
  Json captured(CUstreamCaptureMode mode, bool other_thread);
  Json call_costs();
  double cost_ns(const std::function<CUresult()>& call) const;

  Driver driver_;
  ManagedMemory memory_;
  Stream lane_;
  std::vector<std::size_t> sizes_;
  int rounds_;
};

void Probe::populate(const Buffer& buffer, Populated how) const {
  if (how == Populated::kByHost) std::memset(buffer.host_pointer(), 1, buffer.size_bytes());
  if (how == Populated::kByDevice) {
    driver_.check(driver_.more().memset_async(buffer.address(), 1, buffer.size_bytes(), lane_),
                  "cuMemsetD8Async");
    lane_.wait();
  }
}

void Probe::occupy(const Buffer& scratch, CUstream stream) const {
  for (int repeat = 0; repeat < 64; ++repeat) {
    driver_.check(driver_.more().memset_async(scratch.address(), 2, scratch.size_bytes(), stream),
                  "cuMemsetD8Async");
  }
}

Json Probe::device() const {
  char name[256] = {};
  std::size_t total_bytes = 0;
  int version = 0;
  driver_.check(driver_->device_get_name(name, sizeof name, 0), "cuDeviceGetName");
  driver_.check(driver_->device_total_mem(&total_bytes, 0), "cuDeviceTotalMem");
  driver_.check(driver_->driver_get_version(&version), "cuDriverGetVersion");
  auto can = [&](CUdevice_attribute which) { return driver_.attribute(which) != 0; };
  return {
      {"name", name},
      {"simulated", dlopen("libuvmsim.so", RTLD_NOW | RTLD_NOLOAD) != nullptr},
      {"total_bytes", total_bytes},
      {"free_bytes", driver_.free_bytes()},
      {"managed_limit_bytes", limit_bytes()},
      {"driver_version", fmt::format("{}.{}", version / 1000, version % 1000 / 10)},
      {"compute_capability",
       fmt::format("{}.{}", driver_.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                   driver_.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))},
      {"concurrent_managed_access", can(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)},
      {"pageable_memory_access", can(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)},
      {"host_page_tables", can(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)},
      {"direct_host_access", can(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST)},
      {"integrated", can(CU_DEVICE_ATTRIBUTE_INTEGRATED)},
      {"advise_by_location", driver_->advise_by_location != nullptr},
      {"discard", driver_->discard_batch != nullptr},
  };
}

// ---- queries

// Returns, by size, the largest power of two, up to 1 GiB, that divides all buffers' addresses.
Json Probe::alignment() {
  Json out = Json::object();
  std::vector<std::size_t> sizes = {4096, 65536, kMiB, 2 * kMiB, 2 * kMiB + 4096, 3 * kMiB};
  sizes.insert(sizes.end(), sizes_.begin(), sizes_.end());
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  for (std::size_t size_bytes : sizes) {
    std::vector<std::unique_ptr<Buffer>> held;
    CUdeviceptr bits = kGiB;
    while (held.size() < 8 && memory_.allows(size_bytes)) {
      held.push_back(std::make_unique<Buffer>(driver_, memory_, size_bytes));
      bits |= held.back()->address();
    }
    std::size_t aligned_to_bytes = bits & (~bits + 1);
    out[size_key(size_bytes)] = {{"allocations", held.size()},
                                 {"aligned_to_bytes", aligned_to_bytes},
                                 {"aligned_to_2_mib", aligned_to_bytes >= uvm::kPageBytes}};
  }
  return out;
}

Json Probe::allocations() {
  Json out = Json::object();
  for (std::size_t size_bytes : sizes_) {
    Json& entry = out[size_key(size_bytes)];
    for (auto [populated, name] : kPopulations) {
      std::vector<double> allocate_us;
      std::vector<double> free_us;
      for (int round = 0; round < rounds_; ++round) {
        auto start = Clock::now();
        Buffer buffer(driver_, memory_, size_bytes);
        allocate_us.push_back(microseconds_since(start));
        populate(buffer, populated);
        start = Clock::now();
        driver_.check(buffer.free_now(), "cuMemFree");
        free_us.push_back(microseconds_since(start));
      }
      entry[name] = {{"allocate_us", rounded(median(allocate_us))},
                     {"free_us", rounded(median(free_us))}};
    }
  }
  return out;
}

std::vector<Probe::Call> Probe::hint_calls() const {
  auto advise = [this](CUmem_advise advice, bool device) {
    return [this, advice, device](const Buffer& buffer) {
      return driver_.advise(buffer.address(), buffer.size_bytes(), advice, device);
    };
  };
  auto prefetch = [this](bool device) {
    return [this, device](const Buffer& buffer) {
      return driver_.prefetch(buffer.address(), buffer.size_bytes(), device, lane_);
    };
  };
  return {
      {"advise_preferred_device", false, advise(CU_MEM_ADVISE_SET_PREFERRED_LOCATION, true)},
      {"advise_preferred_host", false, advise(CU_MEM_ADVISE_SET_PREFERRED_LOCATION, false)},
      {"advise_accessed_by_device", false, advise(CU_MEM_ADVISE_SET_ACCESSED_BY, true)},
      {"advise_read_mostly", false, advise(CU_MEM_ADVISE_SET_READ_MOSTLY, true)},
      {"prefetch_to_device", true, prefetch(true)},
      {"prefetch_to_host", true, prefetch(false)},
      {"discard", true,
       [this](const Buffer& buffer) {
         return driver_.discard(buffer.address(), buffer.size_bytes(), lane_);
       }},
  };
}

// First: on memory that was just populated. Repeated: the same call again, after the first call has
// taken effect.
Json Probe::hint_times(const Call& call, std::size_t size_bytes, Populated populated) {
  static constexpr const char* kNames[2][2] = {{"first_call_us", "first_done_us"},
                                               {"repeated_call_us", "repeated_done_us"}};
  std::vector<double> call_us[2];
  std::vector<double> done_us[2];
  std::string result = "CUDA_SUCCESS";
  for (int round = 0; round < rounds_; ++round) {
    Buffer buffer(driver_, memory_, size_bytes);
    populate(buffer, populated);
    for (int repeat = 0; repeat < 2; ++repeat) {
      auto start = Clock::now();
      CUresult outcome = call.make(buffer);
      call_us[repeat].push_back(microseconds_since(start));
      lane_.wait();
      done_us[repeat].push_back(microseconds_since(start));
      if (outcome != CUDA_SUCCESS) result = driver_.name(outcome);
    }
  }
  Json out = {{"result", result}};
  for (int repeat = 0; repeat < 2; ++repeat) {
    out[kNames[repeat][0]] = rounded(median(call_us[repeat]));
    if (call.on_stream) out[kNames[repeat][1]] = rounded(median(done_us[repeat]));
  }
  return out;
}

Json Probe::hints() {
  Json out = Json::object();
  for (const Call& call : hint_calls()) {
    for (std::size_t size_bytes : sizes_) {
      for (auto [populated, name] : kPopulations) {
        out[call.name][size_key(size_bytes)][name] = hint_times(call, size_bytes, populated);
      }
    }
  }
  return out;
}

// If the call takes most of the time until the bytes have arrived, the call blocks its caller.
Json Probe::prefetch_to_host() {
  Json out = Json::object();
  for (bool busy : {false, true}) {
    Json& by_size = out[busy ? "behind_other_work" : "on_an_idle_stream"];
    for (std::size_t size_bytes : sizes_) {
      std::vector<double> call_us;
      std::vector<double> done_us;
      for (int round = 0; round < rounds_; ++round) {
        Buffer buffer(driver_, memory_, size_bytes);
        Buffer scratch(driver_, memory_, scratch_bytes());
        populate(buffer, Populated::kByDevice);
        populate(scratch, Populated::kByDevice);
        if (busy) occupy(scratch, lane_);
        auto start = Clock::now();
        driver_.check(driver_.prefetch(buffer.address(), size_bytes, false, lane_),
                      "cuMemPrefetchAsync");
        call_us.push_back(microseconds_since(start));
        lane_.wait();
        done_us.push_back(microseconds_since(start));
      }
      by_size[size_key(size_bytes)] = {
          {"call_us", rounded(median(call_us))},
          {"done_us", rounded(median(done_us))},
          {"blocks_the_caller", median(call_us) > median(done_us) / 2}};
    }
  }
  return out;
}

// Finds out whether an event of the default stream covers other threads' work.
Json Probe::default_stream_event() {
  Json out = Json::object();
  Buffer scratch(driver_, memory_, scratch_bytes());
  populate(scratch, Populated::kByDevice);
  Event event(driver_);
  std::thread([&] {
    out["recorded_without_a_context"] = driver_.name(driver_->event_record(event, nullptr));
  }).join();
  occupy(scratch, nullptr);
  std::thread([&] {
    driver_.enter();
    out["recorded_behind_our_work"] = driver_.name(driver_->event_record(event, nullptr));
    out["queried_there_at_once"] = driver_.name(driver_->event_query(event));
  }).join();
  out["queried_here_at_once"] = driver_.name(driver_->event_query(event));
  out["synchronized_here"] = driver_.name(driver_->event_synchronize(event));
  driver_.check(driver_->ctx_synchronize(), "cuCtxSynchronize");
  out["queried_here_at_last"] = driver_.name(driver_->event_query(event));
  // Does the event cover the work of a thread's own stream after that thread has ended?
  std::thread([&] {
    driver_.enter();
    occupy(scratch, CU_STREAM_PER_THREAD);
  }).join();
  out["recorded_behind_an_ended_thread"] = driver_.name(driver_->event_record(event, nullptr));
  out["queried_behind_it_at_once"] = driver_.name(driver_->event_query(event));
  driver_.check(driver_->ctx_synchronize(), "cuCtxSynchronize");
  return out;
}

// ---- capture

Json Probe::capture() {
  Json out = Json::object();
  static constexpr std::pair<CUstreamCaptureMode, const char*> kModes[] = {
      {CU_STREAM_CAPTURE_MODE_GLOBAL, "global"},
      {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "thread_local"},
      {CU_STREAM_CAPTURE_MODE_RELAXED, "relaxed"},
  };
  for (auto [mode, name] : kModes) {
    out[name]["same_thread"] = captured(mode, false);
    out[name]["other_thread"] = captured(mode, true);
  }
  return out;
}

// Makes each call inside its own capture, because a refused call ends the capture.
Json Probe::captured(CUstreamCaptureMode mode, bool other_thread) {
  constexpr std::size_t kBytes = 4 * kMiB;
  Stream capturing(driver_);
  Stream other(driver_);
  Event recorded_before(driver_);
  Event event(driver_);
  Buffer buffer(driver_, memory_, kBytes);
  populate(buffer, Populated::kByDevice);
  driver_.check(driver_->event_record(recorded_before, other), "cuEventRecord");
  other.wait();
  CUdeviceptr allocated = 0;
  CUdeviceptr to_free = 0;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  std::size_t free = 0;
  std::size_t total = 0;

  CUdeviceptr address = buffer.address();
  const std::pair<const char*, std::function<CUresult()>> kCalls[] = {
      {"nothing", [] { return CUDA_SUCCESS; }},
      {"advise",
       [&] { return driver_.advise(address, kBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, true); }},
      {"prefetch_on_capturing", [&] { return driver_.prefetch(address, kBytes, true, capturing); }},
      {"prefetch_on_other", [&] { return driver_.prefetch(address, kBytes, true, other); }},
      {"discard_on_capturing", [&] { return driver_.discard(address, kBytes, capturing); }},
      {"discard_on_other", [&] { return driver_.discard(address, kBytes, other); }},
      {"allocate_managed", [&] { return memory_.try_allocate(kBytes, &allocated); }},
      {"free", [&] { return memory_.try_free(to_free, kBytes); }},
      {"memset_on_other", [&] { return driver_.more().memset_async(address, 3, kBytes, other); }},
      {"event_record_on_capturing", [&] { return driver_->event_record(event, capturing); }},
      {"event_record_on_other", [&] { return driver_->event_record(event, other); }},
      {"event_query_of_earlier", [&] { return driver_->event_query(recorded_before); }},
      {"event_synchronize_of_earlier", [&] { return driver_->event_synchronize(recorded_before); }},
      {"event_query_of_captured",
       [&] {
         CUresult result = driver_->event_record(event, capturing);
         return result == CUDA_SUCCESS ? driver_->event_query(event) : result;
       }},
      {"is_capturing_of_capturing",
       [&] { return driver_->stream_is_capturing(capturing, &status); }},
      {"is_capturing_of_other", [&] { return driver_->stream_is_capturing(other, &status); }},
      {"is_capturing_of_default", [&] { return driver_->stream_is_capturing(nullptr, &status); }},
      {"synchronize_other", [&] { return driver_->stream_synchronize(other); }},
      {"memory_figures", [&] { return driver_->mem_get_info(&free, &total); }},
  };

  Json out = Json::object();
  for (const auto& [name, call] : kCalls) {
    bool frees = std::string_view(name) == "free";
    if (frees) driver_.check(memory_.try_allocate(kBytes, &to_free), "cuMemAllocManaged");
    CUresult begun = driver_.more().begin_capture(capturing, mode);
    CUresult made = CUDA_SUCCESS;
    if (begun == CUDA_SUCCESS) {
      if (other_thread) {
        std::thread([&] {
          driver_.enter();
          made = call();
        }).join();
      } else {
        made = call();
      }
    }
    CUgraph graph = nullptr;
    CUresult ended = begun == CUDA_SUCCESS ? driver_.more().end_capture(capturing, &graph) : begun;
    if (graph != nullptr) driver_.more().graph_destroy(graph);
    if (begun != CUDA_SUCCESS) made = begun;
    out[name] = {{"result", driver_.name(made)}, {"capture", driver_.name(ended)}};
    if (allocated != 0) memory_.try_free(std::exchange(allocated, 0), kBytes);
    if (frees && made != CUDA_SUCCESS) memory_.try_free(to_free, kBytes);
    driver_->ctx_synchronize();
  }
  return out;
}

// ---- costs

double Probe::cost_ns(const std::function<CUresult()>& call) const {
  constexpr int kCalls = 20000;
  driver_.check(call(), "a call to measure");
  auto start = Clock::now();
  for (int repeat = 0; repeat < kCalls; ++repeat) call();
  return rounded(microseconds_since(start) * 1000 / kCalls);
}

Json Probe::call_costs() {
  Buffer buffer(driver_, memory_, uvm::kPageBytes);
  Event event(driver_);
  driver_.check(driver_->event_record(event, lane_), "cuEventRecord");
  lane_.wait();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUcontext context = nullptr;
  unsigned managed = 0;
  std::size_t free = 0;
  std::size_t total = 0;
  return {
      {"is_capturing_of_own_stream_ns",
       cost_ns([&] { return driver_->stream_is_capturing(lane_, &status); })},
      {"is_capturing_of_default_stream_ns",
       cost_ns([&] { return driver_->stream_is_capturing(nullptr, &status); })},
      {"event_record_ns", cost_ns([&] { return driver_->event_record(event, lane_); })},
      {"event_query_ns", cost_ns([&] {
         CUresult result = driver_->event_query(event);
         return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
       })},
      {"stream_wait_event_ns",
       cost_ns([&] { return driver_->stream_wait_event(lane_, event, 0); })},
      {"current_context_ns", cost_ns([&] { return driver_->ctx_get_current(&context); })},
      {"pointer_attribute_ns", cost_ns([&] {
         return driver_->pointer_get_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                               buffer.address());
       })},
      {"memory_figures_ns", cost_ns([&] { return driver_->mem_get_info(&free, &total); })},
  };
}

Json Probe::run() {
  if (sizes_.empty()) throw std::length_error("the limit allows none of the sizes");
  Json out = {{"device", device()}};
  auto section = [&](const char* name, const std::function<Json()>& measure) {
    auto start = Clock::now();
    try {
      out[name] = measure();
    } catch (const std::runtime_error& error) {
      out[name] = {{"failed", error.what()}};
    }
    std::fprintf(stderr, "driver_probe: %s: %.1f s\n", name, microseconds_since(start) / 1e6);
  };
  section("alignment", [&] { return alignment(); });
  section("allocations", [&] { return allocations(); });
  section("hints", [&] { return hints(); });
  section("prefetch_to_host", [&] { return prefetch_to_host(); });
  section("default_stream_event", [&] { return default_stream_event(); });
  section("capture", [&] { return capture(); });
  section("call_costs", [&] { return call_costs(); });
  return out;
}

std::vector<std::size_t> parse_sizes(const char* text) {
  std::vector<std::size_t> sizes;
  for (const char* at = text; *at != '\0';) {
    char* end = nullptr;
    unsigned long mebibytes = std::strtoul(at, &end, 10);
    if (end == at || mebibytes == 0 || mebibytes > 1024 || (*end != ',' && *end != '\0')) {
      throw std::invalid_argument(
          fmt::format("--sizes-mib is '{}'; accepted: numbers from 1 to 1024, as in 2,16", text));
    }
    sizes.push_back(mebibytes * kMiB);
    at = *end == ',' ? end + 1 : end;
  }
  return sizes;
}

int run(int count, char** words) {
  std::vector<std::size_t> sizes = {2 * kMiB, 16 * kMiB, 128 * kMiB, kGiB};
  int rounds = 3;
  bool limit_only = false;
  for (int index = 1; index < count; ++index) {
    std::string_view word = words[index];
    if (word == "--limit") {
      limit_only = true;
    } else if (word == "--sizes-mib" && index + 1 < count) {
      sizes = parse_sizes(words[++index]);
    } else if (word == "--rounds" && index + 1 < count) {
      rounds = std::clamp(std::atoi(words[++index]), 1, 100);
    } else {
      throw std::invalid_argument(
          fmt::format("'{}' is unknown; accepted: --limit, --sizes-mib LIST, --rounds N", word));
    }
  }
  Probe probe(sizes, rounds);
  Json found = limit_only ? Json{{"device", probe.device()}} : probe.run();
  std::printf("%s\n", found.dump(1).c_str());
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count, words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "driver_probe: %s\n", error.what());
    return 1;
  }
}
