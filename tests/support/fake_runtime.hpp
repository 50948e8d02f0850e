// A device that a test controls. Its memory is ordinary memory, the test decides when a stream's
// work is over, and any call can be made to fail. The device records the hints that it gets. In
// builds without NDEBUG, a call aborts if its thread holds the lock of an arena or a later lock
// (LockRank). Use this device to test uvmalloc's calls; the simulator models the effects of calls.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "hints/hint.hpp"
#include "runtime/log.hpp"
#include "runtime/ranked.hpp"
#include "storage/pages.hpp"

namespace uvm::testing {

// Nonzero while this thread is inside the fake machine: tests do not count the machine's memory.
inline thread_local int inside_fake_machine = 0;

class FakeMutex {
 public:
  void lock() {
    mutex_.lock();
    ++inside_fake_machine;
  }
  void unlock() {
    --inside_fake_machine;
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
};

// Addresses for all machines of the process, lowest free one first: a repeated test gets the same.
// Sanitizers keep a shadow of every address that ever was memory; reuse keeps it small.
class FakeAddresses {
 public:
  static FakeAddresses& of_process() {
    static auto* const all = new FakeAddresses;
    return *all;
  }
  // Returns page-aligned memory of whole pages that no forked child inherits, or nullptr.
  char* take(std::size_t size_bytes) {
    std::lock_guard lock(mutex_);
    char* at = begin_;
    for (const auto& [base, taken_bytes] : taken_) {
      if (static_cast<std::size_t>(base - at) >= size_bytes) break;
      at = base + taken_bytes;
    }
    if (static_cast<std::size_t>(begin_ + kBytes - at) < size_bytes) return nullptr;
    if (map(at, size_bytes, PROT_READ | PROT_WRITE, MAP_FIXED) == MAP_FAILED) return nullptr;
    // Like a driver's memory.
    madvise(at, size_bytes, MADV_DONTFORK);
    taken_.emplace(at, size_bytes);
    return at;
  }
  void give_back(char* base) {
    std::lock_guard lock(mutex_);
    const auto found = taken_.find(base);
    map(base, found->second, PROT_NONE, MAP_FIXED);
    taken_.erase(found);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{256} << 30;
  FakeAddresses() {
    void* all = map(nullptr, kBytes + kPageBytes, PROT_NONE, 0);
    begin_ = reinterpret_cast<char*>(round_up(address_of(all), kPageBytes));
  }
  static void* map(void* at, std::size_t size_bytes, int access, int fixed) {
    return mmap(at, size_bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
  }

  std::mutex mutex_;
  char* begin_ = nullptr;
  std::map<char*, std::size_t> taken_;
};

// Ends with the work that `streams` had at the record. `stream` counts even if it had none.
struct FakeEvent {
  StreamHandle stream = nullptr;
  std::set<StreamHandle> streams;
};

class FakeMachine {
 public:
  explicit FakeMachine(int devices = 1) : device_count(devices) {}
  ~FakeMachine() {
    for (auto& [address, size] : allocations) FakeAddresses::of_process().give_back(address);
  }

  const int device_count;
  DeviceCapabilities capabilities{.managed_memory = true,
                                  .concurrent_managed_access = true,
                                  .migrates_on_fault = true,
                                  .discard = true,
                                  .compute_major = 9};
  std::size_t total_bytes = std::size_t{8} << 30;
  std::optional<std::chrono::nanoseconds> now;  // nullopt means real time
  std::map<int, std::size_t> free_bytes;        // of devices that have less than all of it free
  bool has_fast_links = false;                  // between its devices
  std::set<int> unused_devices;                 // devices without a context
  std::set<char*> pages_on_host;                // as find_pages() answers; others are on its device
  std::size_t allocatable_bytes = std::size_t{64}
                                  << 30;     // limit of all managed allocations together
  std::map<char*, std::size_t> allocations;  // with the margins around them
  std::size_t allocated_bytes = 0;
  std::vector<Hint> hints;
  std::vector<std::vector<Hint>> batches;             // the hints of each batched call
  std::vector<std::pair<int, Hint>> calls_for_hints;  // the same, with the device of each call
  std::set<StreamHandle> busy;                        // their work never ends by itself
  std::map<StreamHandle, int> device_of;  // a stream not in this map ends with any device's work
  std::set<StreamHandle> capturing;       // streams that are captured; no device can be waited for
  std::map<std::string, int> failures;    // by call: how often the call still fails
  std::size_t records = 0;                // recorded events
  std::vector<std::string> waits;         // of streams and of the host, as text
  // By stream: the streams that the stream's later work waits for.
  std::map<StreamHandle, std::set<StreamHandle>> after;
  std::set<FakeEvent*> events;  // alive
  int streams = 0;              // alive
  bool unaligned = false;       // allocations end up 4 KiB beyond a 2 MiB boundary

  // Each function runs once, without the mutex.
  std::function<void()> after_device_wait;  // when a wait for the device has ended
  std::function<void()> before_query;       // when an event is queried
  std::function<void()> before_free;        // when managed memory is about to be freed
  std::function<void()> before_create_stream;
  std::function<void()> before_prefetch;
  std::function<void()> before_destroy_stream;

  FakeMutex mutex;

  // Ends all work of a stream.
  void finish(StreamHandle stream) {
    std::lock_guard lock(mutex);
    end_work(work_of(stream));
  }

  // The stream is destroyed: its work continues, and its handle may name another stream. Returns
  // the handle that now stands for the work.
  StreamHandle retire(StreamHandle handle);

  // Call with the mutex held. Returns `handle` and the streams that finish before `handle` does.
  std::set<StreamHandle> work_of(StreamHandle handle) const {
    std::set<StreamHandle> handles{handle};
    if (auto found = after.find(handle); found != after.end()) {
      handles.insert(found->second.begin(), found->second.end());
    }
    return handles;
  }
  // Call with the mutex held.
  bool is_busy(const std::set<StreamHandle>& handles) const {
    return std::any_of(handles.begin(), handles.end(),
                       [&](StreamHandle handle) { return busy.contains(handle); });
  }
  // Call with the mutex held.
  void end_work(const std::set<StreamHandle>& handles) {
    for (StreamHandle handle : handles) {
      busy.erase(handle);
      for (auto& [later, before] : after) before.erase(handle);
    }
  }

 private:
  std::uintptr_t retired_ = 0;  // number of retired streams
};

inline StreamHandle stream(std::uintptr_t number) {
  return reinterpret_cast<StreamHandle>(number << 8);
}

inline StreamHandle FakeMachine::retire(StreamHandle handle) {
  std::lock_guard lock(mutex);
  const StreamHandle gone = stream(0x100000 + retired_++);
  auto rename = [&](std::set<StreamHandle>* handles) {
    if (handles->erase(handle) != 0) handles->insert(gone);
  };
  rename(&busy);
  for (auto& [later, before] : after) rename(&before);
  if (auto own = after.extract(handle)) after[gone] = std::move(own.mapped());
  for (FakeEvent* event : events) rename(&event->streams);
  if (auto found = device_of.find(handle); found != device_of.end()) {
    device_of[gone] = found->second;
  }
  return gone;
}

class FakeRuntime final : public DeviceRuntime {
 public:
  explicit FakeRuntime(std::shared_ptr<FakeMachine> machine) : machine_(std::move(machine)) {}
  FakeMachine& machine() const { return *machine_; }

  std::string_view name() const override { return "fake"; }
  int device_count() const override { return machine_->device_count; }
  std::chrono::nanoseconds now() const override {
    return machine_->now ? *machine_->now : DeviceRuntime::now();
  }

  RuntimeStatus describe(int, DeviceDescription* out) const override {
    is_called_without_locks("describe");
    *out = {"Fake Device", machine_->total_bytes, machine_->capabilities, ""};
    return {};
  }
  RuntimeStatus memory_figures(int device, MemoryFigures* out) const override {
    is_called_without_locks("memory_figures");
    *out = {machine_->total_bytes, machine_->total_bytes};
    std::lock_guard lock(machine_->mutex);
    const auto found = machine_->free_bytes.find(device);
    if (found != machine_->free_bytes.end()) out->free_bytes = found->second;
    return {};
  }
  bool has_context(int device) const override { return !machine_->unused_devices.contains(device); }
  RuntimeStatus has_fast_link(int, int, bool* out) const override {
    is_called_without_locks("has_fast_link");
    *out = machine_->has_fast_links;
    return {};
  }
  RuntimeStatus find_pages(int device, const void* address, std::size_t size_bytes,
                           std::size_t page_bytes, Place* out) const override {
    is_called_without_locks("find_pages");
    std::lock_guard lock(machine_->mutex);
    auto* page = static_cast<char*>(const_cast<void*>(address));
    for (std::size_t done = 0; done < size_bytes; done += page_bytes, page += page_bytes)
      *out++ = machine_->pages_on_host.contains(page) ? Place::host() : Place::device(device);
    return {};
  }
  RuntimeStatus pointer_attributes(const void*, PointerAttributes* out) const override {
    is_called_without_locks("pointer_attributes");
    *out = {};
    return {};
  }

  RuntimeStatus allocate_managed(int, std::size_t size_bytes, void** out) const override {
    is_called_without_locks("allocate_managed");
    std::lock_guard lock(machine_->mutex);
    if (fails("anything")) return {RuntimeError::kOther, 700, "FAKE_FAILURE", "allocate_managed"};
    if (fails("allocation_in_capture")) return capture_refused("allocate_managed");
    if (fails("allocate_managed") ||
        machine_->allocated_bytes + size_bytes > machine_->allocatable_bytes) {
      return {RuntimeError::kOutOfMemory, 2, "FAKE_OUT_OF_MEMORY", "allocate_managed"};
    }
    const std::size_t with_margin = round_up(size_bytes, kPageBytes) + kPageBytes;
    char* raw = FakeAddresses::of_process().take(with_margin);
    if (raw == nullptr) {
      return {RuntimeError::kOutOfMemory, 2, "FAKE_OUT_OF_ADDRESSES", "allocate_managed"};
    }
    *out = raw + (machine_->unaligned ? 4096 : 0);
    machine_->allocations[raw] = with_margin;
    machine_->allocated_bytes += size_bytes;
    real_[*out] = {raw, size_bytes};
    return {};
  }
  RuntimeStatus free_managed(int, void* address) const override {
    is_called_without_locks("free_managed");
    run_once(&machine_->before_free);
    std::lock_guard lock(machine_->mutex);
    if (fails("free_managed")) return {RuntimeError::kOther, 99, "FAKE_FAILURE", "free_managed"};
    auto found = real_.find(address);
    if (found == real_.end()) {
      return {RuntimeError::kInvalidValue, 1, "FAKE_INVALID", "free_managed"};
    }
    const auto [raw, size_bytes] = found->second;
    FakeAddresses::of_process().give_back(raw);
    machine_->allocations.erase(raw);
    machine_->allocated_bytes -= size_bytes;
    real_.erase(found);
    return {};
  }

  RuntimeStatus advise(int device, void* address, std::size_t size_bytes, Advice advice,
                       Place place) const override {
    is_called_without_locks("advise");
    std::lock_guard lock(machine_->mutex);
    if (fails("advice_in_capture")) return capture_refused("advise");
    if (fails("advice_on_nothing"))
      return {RuntimeError::kInvalidValue, 1, "FAKE_INVALID", "advise"};
    if (fails("advise")) return {RuntimeError::kOther, 99, "FAKE_FAILURE", "advise"};
    machine_->hints.push_back({HintKind::kAdvise, advice, place, address, size_bytes});
    machine_->calls_for_hints.emplace_back(device, machine_->hints.back());
    return {};
  }
  RuntimeStatus prefetch(int device, void* address, std::size_t size_bytes, Place destination,
                         StreamHandle) const override {
    is_called_without_locks("prefetch");
    run_once(&machine_->before_prefetch);
    std::lock_guard lock(machine_->mutex);
    if (fails("prefetch")) return {RuntimeError::kOther, 99, "FAKE_FAILURE", "prefetch"};
    machine_->hints.push_back({HintKind::kPrefetch, {}, destination, address, size_bytes});
    machine_->calls_for_hints.emplace_back(device, machine_->hints.back());
    return {};
  }
  RuntimeStatus discard(int, void*, std::size_t, StreamHandle) const override {
    is_called_without_locks("discard");
    std::lock_guard lock(machine_->mutex);
    if (fails("discard")) return {RuntimeError::kOther, 99, "FAKE_FAILURE", "discard"};
    return {};
  }
  RuntimeStatus prefetch_batch(int device, std::span<const RangeMove> moves,
                               StreamHandle) const override {
    return take_batch(device, "prefetch_batch", HintKind::kPrefetch, moves);
  }
  RuntimeStatus discard_batch(int device, std::span<const RangeMove> moves,
                              StreamHandle) const override {
    return take_batch(device, "discard_batch", HintKind::kDiscard, moves);
  }
  RuntimeStatus discard_and_prefetch_batch(int device, std::span<const RangeMove> moves,
                                           StreamHandle) const override {
    return take_batch(device, "discard_and_prefetch_batch", HintKind::kPrefetch, moves);
  }
  RuntimeStatus copy(int, void* to, const void* from, std::size_t size_bytes,
                     StreamHandle) const override {
    is_called_without_locks("copy");
    std::copy_n(static_cast<const char*>(from), size_bytes, static_cast<char*>(to));
    return {};
  }

  RuntimeStatus create_stream(int, StreamHandle* out) const override {
    is_called_without_locks("create_stream");
    run_once(&machine_->before_create_stream);
    std::lock_guard lock(machine_->mutex);
    if (fails("create_stream")) return {RuntimeError::kOther, 99, "FAKE_FAILURE", "create_stream"};
    ++machine_->streams;
    *out = stream(0x1000 + next_stream_++);
    return {};
  }
  RuntimeStatus destroy_stream(int, StreamHandle) const override {
    is_called_without_locks("destroy_stream");
    run_once(&machine_->before_destroy_stream);
    std::lock_guard lock(machine_->mutex);
    --machine_->streams;
    return {};
  }
  RuntimeStatus synchronize_stream(int, StreamHandle handle) const override {
    is_called_without_locks("synchronize_stream");
    std::lock_guard lock(machine_->mutex);
    if (machine_->capturing.contains(handle)) return capture_refused("synchronize_stream");
    if (fails("synchronize_stream"))
      return {RuntimeError::kOther, 99, "FAKE_FAILURE", "synchronize_stream"};
    machine_->end_work(machine_->work_of(handle));
    machine_->waits.push_back("host waits for stream " + text(handle));
    return {};
  }
  RuntimeStatus stream_wait_event(int, StreamHandle handle, EventHandle event) const override {
    is_called_without_locks("stream_wait_event");
    std::lock_guard lock(machine_->mutex);
    const FakeEvent& before = *static_cast<FakeEvent*>(event);
    machine_->waits.push_back("stream " + text(handle) + " waits for stream " +
                              text(before.stream));
    for (StreamHandle one : before.streams) {
      if (one != handle && machine_->busy.contains(one)) machine_->after[handle].insert(one);
    }
    return {};
  }
  RuntimeStatus is_capturing(int, StreamHandle handle, bool* out) const override {
    is_called_without_locks("is_capturing");
    std::lock_guard lock(machine_->mutex);
    if (fails("is_capturing")) return capture_refused("is_capturing");
    if (fails("stream_exists"))
      return {RuntimeError::kInvalidValue, 400, "FAKE_INVALID", "is_capturing"};
    *out = machine_->capturing.contains(handle);
    return {};
  }

  RuntimeStatus create_event(int, EventHandle* out) const override {
    is_called_without_locks("create_event");
    std::lock_guard lock(machine_->mutex);
    if (fails("create_event")) return {RuntimeError::kOther, 99, "FAKE_FAILURE", "create_event"};
    auto* event = new FakeEvent;
    machine_->events.insert(event);
    *out = event;
    return {};
  }
  RuntimeStatus destroy_event(int, EventHandle event) const override {
    is_called_without_locks("destroy_event");
    std::lock_guard lock(machine_->mutex);
    machine_->events.erase(static_cast<FakeEvent*>(event));
    delete static_cast<FakeEvent*>(event);
    return {};
  }
  RuntimeStatus record_event(int, EventHandle event, StreamHandle handle) const override {
    is_called_without_locks("record_event");
    std::lock_guard lock(machine_->mutex);
    if (fails("record_event")) return {RuntimeError::kOther, 99, "FAKE_FAILURE", "record_event"};
    *static_cast<FakeEvent*>(event) = {handle, machine_->work_of(handle)};
    ++machine_->records;
    return {};
  }
  RuntimeStatus query_event(int, EventHandle event) const override {
    is_called_without_locks("query_event");
    run_once(&machine_->before_query);
    std::lock_guard lock(machine_->mutex);
    bool pending = machine_->is_busy(static_cast<FakeEvent*>(event)->streams);
    if (!pending) return {};
    return {RuntimeError::kNotReady, 600, "FAKE_NOT_READY", "query_event"};
  }
  RuntimeStatus synchronize_event(int, EventHandle event) const override {
    is_called_without_locks("synchronize_event");
    std::lock_guard lock(machine_->mutex);
    if (fails("synchronize_event"))
      return {RuntimeError::kOther, 99, "FAKE_FAILURE", "synchronize_event"};
    machine_->end_work(static_cast<FakeEvent*>(event)->streams);
    return {};
  }
  RuntimeStatus synchronize_device(int device) const override {
    is_called_without_locks("synchronize_device");
    {
      std::lock_guard lock(machine_->mutex);
      if (!machine_->capturing.empty()) return capture_refused("synchronize_device");
      machine_->waits.push_back("host waits for device " + std::to_string(device));
      std::set<StreamHandle> idle = machine_->busy;
      std::erase_if(idle, [&](StreamHandle handle) {
        auto found = machine_->device_of.find(handle);
        return found != machine_->device_of.end() && found->second != device;
      });
      machine_->end_work(idle);
    }
    run_once(&machine_->after_device_wait);
    return {};
  }

 private:
  // A driver call may wait long, even for work that a thread with the lock has not submitted yet.
  static void is_called_without_locks(std::string_view call) {
    if (!detail::holds_rank_from(LockRank::kArena)) return;
    log(LogLevel::kError, "the driver's {} is called with a lock of the allocator held", call);
    std::abort();
  }

  RuntimeStatus take_batch(int device, const char* call, HintKind kind,
                           std::span<const RangeMove> moves) const {
    is_called_without_locks(call);
    std::lock_guard lock(machine_->mutex);
    if (!machine_->capabilities.batches || fails("batches"))
      return {RuntimeError::kNotSupported, 801, "FAKE_NOT_SUPPORTED", call};
    if (moves.empty() || moves.size() > kMostBatchMoves)
      return {RuntimeError::kInvalidValue, 1, "FAKE_INVALID", call};
    if (fails(call)) return {RuntimeError::kOther, 99, "FAKE_FAILURE", call};
    std::vector<Hint>& hints = machine_->batches.emplace_back();
    for (const RangeMove& move : moves)
      hints.push_back({kind, {}, move.destination, move.address, move.size_bytes});
    if (kind != HintKind::kPrefetch) return {};
    for (const Hint& hint : hints) {
      machine_->hints.push_back(hint);
      machine_->calls_for_hints.emplace_back(device, hint);
    }
    return {};
  }

  static RuntimeStatus capture_refused(std::string_view call) {
    return {RuntimeError::kCapture, 900, "FAKE_CAPTURE", call};
  }
  void run_once(std::function<void()>* hook) const {
    std::function<void()> run;
    {
      std::lock_guard lock(machine_->mutex);
      run.swap(*hook);
    }
    if (run) run();
  }
  bool fails(const char* call) const {
    auto found = machine_->failures.find(call);
    if (found == machine_->failures.end() || found->second == 0) return false;
    --found->second;
    return true;
  }
  static std::string text(StreamHandle handle) {
    auto number = reinterpret_cast<std::uintptr_t>(handle) >> 8;
    return number >= 0x1000 ? "lane" : std::to_string(number);
  }

  std::shared_ptr<FakeMachine> machine_;
  mutable std::map<void*, std::pair<char*, std::size_t>>
      real_;  // where their memory begins, and their sizes
  mutable std::uintptr_t next_stream_ = 0;
};

}  // namespace uvm::testing
