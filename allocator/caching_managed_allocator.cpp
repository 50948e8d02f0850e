#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <uvmalloc/allocator/machine_memory.hpp>
#include <uvmalloc/runtime/log.hpp>

namespace uvm {
namespace {

// Above this no driver has address space; refused before rounding can overflow.
constexpr std::size_t kLargestRequest = std::size_t{1} << 47;

constexpr std::size_t kLazySpanBytes =
    256u << 20;  // virtual until touched, and dead pages can be discarded
constexpr std::size_t kEagerSpanBytes = 32u << 20;  // freed to give pages back, so small

Place wanted_place(Facade facade, int device) {
  return facade == Facade::kDevice ? Place::device(device) : Place::host();
}

std::vector<DeviceDescription> describe_devices(const DeviceRuntime& runtime) {
  std::vector<DeviceDescription> devices(static_cast<std::size_t>(runtime.device_count()));
  for (int device = 0; device < runtime.device_count(); ++device) {
    auto& description = devices[static_cast<std::size_t>(device)];
    if (RuntimeStatus status = runtime.describe(device, &description); !status.ok()) {
      throw std::runtime_error(fmt::format("device {} cannot be asked: {}", device, status.text()));
    }
    if (!description.capabilities.concurrent_managed_access) {
      throw std::runtime_error(
          fmt::format("device {} ({}) cannot use managed memory concurrently with the host", device,
                      description.name));
    }
  }
  if (devices.empty()) throw std::runtime_error("there is no device");
  return devices;
}

}  // namespace

const char* to_string(CopyReason reason) {
  switch (reason) {
    case CopyReason::kSmallBlock:
      return "small_block";
    case CopyReason::kForeign:
      return "foreign_memory";
    case CopyReason::kExported:
      return "exported_pointer";
    case CopyReason::kPartialStorage:
      return "partial_storage";
    case CopyReason::kLayout:
      return "layout";
    case CopyReason::kConversion:
      return "conversion";
    case CopyReason::kCapturing:
      return "capturing";
    case CopyReason::kDeviceToDevice:
      return "device_to_device";
    case CopyReason::kMode:
      return "mode";
  }
  return "unknown";
}

CachingManagedAllocator::CachingManagedAllocator(std::unique_ptr<DeviceRuntime> runtime,
                                                 const Configuration& configuration)
    : configuration_(configuration),
      runtime_(std::move(runtime)),
      devices_(describe_devices(runtime_)),
      budget_(machine_budget(devices_, configuration, available_host_bytes())),
      events_(runtime_, runtime_.device_count()),
      sender_(runtime_, events_, hint_counters_),
      planner_(configuration.policy, budget_.devices, ledger_, hint_counters_) {
  statistics_.budget_bytes = budget_.hard_bytes;
  for (auto& facade : statistics_.classes) facade.resize(devices_.size());
}

CachingManagedAllocator::~CachingManagedAllocator() {
  if (forked_child_) return;
  for (int device = 0; device < runtime_.device_count(); ++device) {
    if (statistics_.span_bytes.increased != 0) runtime_.synchronize_device(device);
  }
  for (Pending& pending : fenced_) release_events(&pending.block->fences);
  for (Pool* pool : pools_.pools()) {
    for (Block& block : pool->guests) release_events(&block.fences);
  }
  for (const auto& span : spans_.spans()) runtime_.free_managed(span->device, span->raw);
}

// ---- allocation

void* CachingManagedAllocator::allocate(Facade facade, int device, std::size_t size_bytes,
                                        StreamHandle stream) {
  if (forked_child_) return allocate_in_child(facade, size_bytes);
  if (device < 0 || device >= runtime_.device_count()) {
    throw std::invalid_argument(
        fmt::format("device {} does not exist; there are {}", device, runtime_.device_count()));
  }
  if (size_bytes == 0) return nullptr;
  Request request{facade,
                  device,
                  0,
                  size_bytes,
                  facade == Facade::kDevice ? stream : nullptr,
                  BlockPools::class_of(size_bytes),
                  nullptr};
  if (size_bytes > kLargestRequest) {
    out_of_memory(request,
                  {RuntimeError::kOutOfMemory, 0, "larger than any address space", "allocate"});
  }
  request.size_bytes = BlockPools::rounded(size_bytes);
  {
    // The usual case: one lock, no driver call.
    std::lock_guard lock(lock_);
    request.pool = &pools_.pool({facade, device, request.stream, request.size_class});
    if (fenced_.empty()) {
      if (Found found = find_cached(request); found.block != nullptr) return occupy(request, found);
    }
  }
  drain_fences(false);
  Found found;
  RuntimeStatus status;
  {
    std::lock_guard lock(lock_);
    found = find_cached(request);
  }
  if (found.block == nullptr) found = recall(request);
  if (found.block == nullptr) found = grow(request, false, &status);
  if (found.block == nullptr) found = under_pressure(request, &status);
  if (found.block == nullptr) out_of_memory(request, status);
  return hand_out(request, found);
}

// With the lock: the best fit among the pool's own blocks, then among its guests.
CachingManagedAllocator::Found CachingManagedAllocator::find_cached(const Request& request) {
  Pool& pool = *request.pool;
  Block* block = pools_.take(pool.own, request.size_bytes);
  if (block == nullptr && request.size_class == SizeClass::kLarge) {
    block = pools_.take(pool.guests, request.size_bytes);
  }
  if (block == nullptr) return {};
  pools_.trim(block, request.size_bytes, block->pool);
  // What is left here guarded a whole guest against its home; this caller is ordered by its stream.
  release_events(&block->fences);
  return {block, true, false};
}

// A block made for this pool whose pages have moved elsewhere, once nobody works on it there.
CachingManagedAllocator::Found CachingManagedAllocator::recall(const Request& request) {
  if (request.size_class == SizeClass::kSmall) return {};
  Block* block = nullptr;
  {
    std::lock_guard lock(lock_);
    block = pools_.take(request.pool->away, request.size_bytes);
  }
  if (block == nullptr) return {};
  bool done = fences_done(block->fences);
  std::lock_guard lock(lock_);
  if (!done) {
    pools_.put(block, block->pool);
    return {};
  }
  release_events(&block->fences);
  pools_.trim(block, request.size_bytes, block->pool);
  ++statistics_.recalls;
  return {block, true, true};
}

std::size_t CachingManagedAllocator::span_size(const Request& request) const {
  const DeviceCapabilities& can = devices_[static_cast<std::size_t>(request.device)].capabilities;
  bool lazy = can.discard && !can.integrated;
  std::size_t usual = round_up(
      configuration_.span_bytes.value_or(lazy ? kLazySpanBytes : kEagerSpanBytes), kPageBytes);
  return std::max(usual, round_up(request.size_bytes, kPageBytes));
}

RuntimeStatus CachingManagedAllocator::add_span(const Request& request) {
  auto span = std::make_unique<Span>();
  span->facade = request.facade;
  span->device = request.device;
  span->size_bytes = span_size(request);
  RuntimeStatus status = runtime_.allocate_managed(request.device, span->size_bytes, &span->raw);
  if (!status.ok()) return status;
  if (address_of(span->raw) % kPageBytes != 0) {
    // Drivers align large managed allocations to 2 MiB; where one does not, a page more holds an
    // aligned span.
    runtime_.free_managed(request.device, span->raw);
    status = runtime_.allocate_managed(request.device, span->size_bytes + kPageBytes, &span->raw);
    if (!status.ok()) return status;
  }
  span->base = reinterpret_cast<char*>(round_up(address_of(span->raw), kPageBytes));
  HintPlan plan;
  {
    std::lock_guard lock(lock_);
    plan = planner_.plan_span(span->base, span->size_bytes, span->facade, span->device,
                              &span->placement);
  }
  // Before anyone can see the span: its pages are to be populated under this advice.
  sender_.send(plan, request.device);
  std::lock_guard lock(lock_);
  ledger_.add_span(span->base, span->size_bytes);
  statistics_.span_bytes.increase(span->size_bytes);
  spans_.add(std::move(span));
  return {};
}

// A new segment, from a span that has room or a new one; none where the budget or the driver
// refuses.
CachingManagedAllocator::Found CachingManagedAllocator::grow(const Request& request,
                                                             bool any_facade,
                                                             RuntimeStatus* status) {
  const std::size_t size_bytes = round_up(request.size_bytes, kPageBytes);
  constexpr RuntimeStatus kOverBudget{RuntimeError::kOutOfMemory, 0, "the budget is used up",
                                      "budget"};
  for (;;) {
    HintPlan plan;
    Found found;
    {
      std::lock_guard lock(lock_);
      SpanStore::Run run = spans_.find(request.facade, request.device, size_bytes, any_facade);
      std::size_t more = run.span != nullptr ? run.untouched_bytes : size_bytes;
      if (more != 0 && spans_.touched_bytes() + more > budget_.hard_bytes) {
        *status = kOverBudget;
        return {};
      }
      if (run.span != nullptr) {
        spans_.take(run, size_bytes);
        statistics_.touched_bytes.increase(run.untouched_bytes);
        Block* block = pools_.add_segment(run.span, run.base(), size_bytes, request.pool);
        ClassStatistics& figures = class_statistics(*block);
        figures.segments.increase(1);
        figures.reserved_bytes.increase(size_bytes);
        if (run.span->facade != request.facade || run.span->device != request.device) {
          plan = planner_.plan_move(block->address, size_bytes, &block->segment->placement,
                                    wanted_place(request.facade, request.device));
        }
        block->pool = request.pool;
        pools_.trim(block, request.size_bytes, request.pool);
        found = {block, false, request.facade == Facade::kDevice};
      }
    }
    if (found.block != nullptr) {
      sender_.send(plan, request.device);
      return found;
    }
    *status = add_span(request);
    if (!status->ok()) return {};
  }
}

// The block is taken before the device is waited for: one that is freed meanwhile may have work
// pending.
CachingManagedAllocator::Found CachingManagedAllocator::steal_from_other_streams(
    const Request& request) {
  if (request.facade != Facade::kDevice) return {};
  Block* block = nullptr;
  {
    std::lock_guard lock(lock_);
    for (Pool* pool : pools_.pools()) {
      if (pool->key.facade != request.facade || pool->key.device != request.device ||
          pool->key.size_class != request.size_class) {
        continue;
      }
      block = pools_.take(pool->own, request.size_bytes);
      if (block == nullptr) block = pools_.take(pool->guests, request.size_bytes);
      if (block != nullptr) break;
    }
  }
  if (block == nullptr) return {};
  runtime_.synchronize_device(request.device);
  std::lock_guard lock(lock_);
  release_events(&block->fences);
  pools_.trim(block, request.size_bytes, block->pool);
  return {block, true, false};
}

CachingManagedAllocator::Found CachingManagedAllocator::under_pressure(const Request& request,
                                                                       RuntimeStatus* status) {
  auto cached = [&] {
    std::unique_lock lock(lock_);
    Found found = find_cached(request);
    lock.unlock();
    return found.block != nullptr ? found : recall(request);
  };
  drain_fences(true);
  if (Found found = cached(); found.block != nullptr) return found;
  if (Found found = steal_from_other_streams(request); found.block != nullptr) return found;
  for (const PressureCallback& callback : pressure_callbacks_) {
    if (!callback()) continue;
    if (Found found = cached(); found.block != nullptr) return found;
  }
  {
    std::lock_guard lock(lock_);
    ++statistics_.pressure_rounds;
  }
  release_segments();
  if (Found found = grow(request, false, status); found.block != nullptr) return found;
  return grow(request, true, status);
}

// With the lock: gives a taken block to the caller, with its pair of records.
void* CachingManagedAllocator::occupy(const Request& request, const Found& found) {
  Block* block = found.block;
  block->state = BlockState::kLive;
  block->requested_bytes = request.requested_bytes;
  block->facade = request.facade;
  block->device = request.device;
  block->stream = request.stream;
  block->exported = false;
  block->uses.clear();
  Place place = wanted_place(request.facade, request.device);
  block->real = {block->address, block->size_bytes, Place::device(block->segment->span->device), 0,
                 nullptr};
  block->use = {nullptr, 0, request.requested_bytes, place, request.stream, nullptr, true};
  block->real.attach(&block->use);
  count_allocation(*block, found.from_cache);
  return block->address;
}

void* CachingManagedAllocator::hand_out(const Request& request, const Found& found) {
  HintPlan plan;
  void* address = nullptr;
  {
    std::lock_guard lock(lock_);
    address = occupy(request, found);
    if (found.populate) {
      const Segment& segment = *found.block->segment;
      plan = planner_.plan_use(segment.base, segment.size_bytes,
                               wanted_place(request.facade, request.device));
    }
  }
  DeviceStream consumer;
  if (request.facade == Facade::kDevice) consumer = {request.device, request.stream};
  if (!plan.empty()) sender_.send(plan, request.device, {}, consumer);
  return address;
}

void CachingManagedAllocator::out_of_memory(const Request& request, const RuntimeStatus& status) {
  std::string message;
  {
    std::lock_guard lock(lock_);
    ++statistics_.out_of_memory;
    message = fmt::format(
        "uvmalloc: out of memory: {} asked of the {} facade on device {} cannot be had ({}).\n{}"
        "Everything cached was given back and the request tried again. To allow more, raise "
        "UVMALLOC_BUDGET; to need less, use smaller batches or free tensors first.",
        format_size(request.requested_bytes), to_string(request.facade), request.device,
        status.ok() ? "no memory" : std::string(status.native_name), holders_table());
  }
  throw OutOfMemoryError(request.requested_bytes, std::move(message));
}

std::string CachingManagedAllocator::holders_table() const {
  std::string table =
      fmt::format("  {:<8} {:>12} {:>12} {:>10}\n", "facade", "in use", "peak", "blocks");
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    std::uint64_t blocks = 0;
    for (const auto& device : statistics_.classes[facade]) {
      for (const auto& figures : device) blocks += figures.allocations.current;
    }
    const Gauge& bytes = statistics_.facade_bytes[facade];
    table += fmt::format("  {:<8} {:>12} {:>12} {:>10}\n", to_string(static_cast<Facade>(facade)),
                         format_size(bytes.current), format_size(bytes.peak), blocks);
  }
  return table + fmt::format("  touched {} of a budget of {}\n",
                             format_size(spans_.touched_bytes()), format_size(budget_.hard_bytes));
}

// ---- free

FreeResult CachingManagedAllocator::free(void* address) noexcept {
  if (address == nullptr) return FreeResult::kFreed;
  Block* block = nullptr;
  {
    std::lock_guard lock(lock_);
    bool is_start = false;
    block = pools_.find(address, &is_start);
    if (forked_child_) {
      // The parent's blocks are not the child's to free: the copy goes with the process.
      if (block != nullptr) return FreeResult::kFreed;
      if (child_blocks_.erase(address) == 0) return FreeResult::kNotOurs;
      std::free(address);
      return FreeResult::kFreed;
    }
    if (block == nullptr) return FreeResult::kNotOurs;
    if (!is_start || block->state != BlockState::kLive) {
      FreeResult result = is_start ? FreeResult::kDouble : FreeResult::kInterior;
      log_line(
          LogLevel::kError,
          fmt::format("free({}): {} of a block of {} at {}, {} facade; nothing was freed", address,
                      is_start ? "a second free" : "not the start", format_size(block->size_bytes),
                      static_cast<void*>(block->address), to_string(block->facade)));
      return result;
    }
    while (IndirectStorage* record = block->real.indirect) {
      block->real.detach(record);
      if (record != &block->use) free_records_.push_back(record);
    }
    count_release(*block);
    Pool* pool = pool_for(*block);
    if (!needs_fence(*block, *pool)) {
      active_ended(*block);
      pools_.put(block, pool);
      return FreeResult::kFreed;
    }
    block->state = BlockState::kReleasing;
  }
  fence_and_give_back(block);
  return FreeResult::kFreed;
}

// The pool of the place where the block's pages are. Its records are gone; the last one's place
// stays in `use`.
Pool* CachingManagedAllocator::pool_for(const Block& block) {
  Pool* home = block.segment->home;
  Place place = block.use.location;
  if (home->key.size_class == SizeClass::kSmall) return home;
  if (place == wanted_place(home->key.facade, home->key.device)) return home;
  if (place.is_device()) {
    return &pools_.pool({Facade::kDevice, place.index, block.use.stream, SizeClass::kLarge});
  }
  return &pools_.pool({Facade::kHost, home->key.device, nullptr, SizeClass::kLarge});
}

// Every stream that may have work on the block.
std::vector<DeviceStream> CachingManagedAllocator::users_of(const Block& block) {
  std::vector<DeviceStream> users = block.uses;
  if (block.facade == Facade::kDevice) users.push_back({block.device, block.stream});
  return users;
}

// The streams whose work must be over before the blocks of `pool` may include this one.
std::vector<DeviceStream> CachingManagedAllocator::streams_to_wait_for(const Block& block,
                                                                       const Pool& pool) {
  std::vector<DeviceStream> streams = users_of(block);
  if (pool.key.facade == Facade::kDevice) {
    std::erase(streams, DeviceStream{pool.key.device, pool.key.stream});
  }
  return streams;
}

// Whether anybody but the pool's own stream may still use the block, or its home may want it back.
bool CachingManagedAllocator::needs_fence(const Block& block, const Pool& pool) {
  bool of_device = pool.key.facade == Facade::kDevice;
  bool own_stream_only =
      block.uses.empty() &&
      (block.facade != Facade::kDevice ||
       (of_device && block.device == pool.key.device && block.stream == pool.key.stream));
  return !own_stream_only || (of_device && &pool != block.segment->home);
}

void CachingManagedAllocator::fence_and_give_back(Block* block) {
  Pool* pool = nullptr;
  std::vector<DeviceStream> streams;
  bool guest = false;
  {
    std::lock_guard lock(lock_);
    pool = pool_for(*block);
    streams = streams_to_wait_for(*block, *pool);
    guest = pool != block->segment->home && pool->key.facade == Facade::kDevice;
  }
  bool wait = !streams.empty();
  // A guest of a device pool may be used by its stream at once, by its home only when that stream
  // is through.
  if (guest) streams.push_back({pool->key.device, pool->key.stream});
  std::vector<Fence> fences = record_fences(streams);
  std::lock_guard lock(lock_);
  block->fences = std::move(fences);
  statistics_.fences += block->fences.size();
  if (wait && !block->fences.empty()) {
    block->state = BlockState::kFenced;
    fenced_.push_back({block, pool});
  } else {
    active_ended(*block);
    pools_.put(block, pool);
  }
}

std::vector<Fence> CachingManagedAllocator::record_fences(
    const std::vector<DeviceStream>& streams) {
  std::vector<Fence> fences;
  for (const DeviceStream& use : streams) {
    RuntimeStatus status;
    EventHandle event = events_.record(use.device, use.handle, &status);
    if (event != nullptr) {
      fences.push_back({use.device, event});
    } else if (status.error != RuntimeError::kNotUsable) {
      // A stream that is gone or refuses an event: the whole device stands for it.
      runtime_.synchronize_device(use.device);
    }
  }
  return fences;
}

bool CachingManagedAllocator::fences_done(const std::vector<Fence>& fences) {
  return std::all_of(fences.begin(), fences.end(), [&](const Fence& fence) {
    return runtime_.query_event(fence.device, fence.event).error != RuntimeError::kNotReady;
  });
}

void CachingManagedAllocator::release_events(std::vector<Fence>* fences) {
  for (const Fence& fence : *fences) events_.release(fence.device, fence.event);
  fences->clear();
}

void CachingManagedAllocator::drain_fences(bool wait) {
  std::vector<Pending> batch;
  {
    std::lock_guard lock(lock_);
    batch.swap(fenced_);
  }
  if (batch.empty()) return;
  // Oldest first, up to the first that is not over: the younger ones are rarely done before it.
  auto ready_end = batch.begin();
  for (; ready_end != batch.end(); ++ready_end) {
    const std::vector<Fence>& fences = ready_end->block->fences;
    if (wait) {
      for (const Fence& fence : fences) runtime_.synchronize_event(fence.device, fence.event);
    } else if (!fences_done(fences)) {
      break;
    }
  }
  std::lock_guard lock(lock_);
  for (auto ready = batch.begin(); ready != ready_end; ++ready) {
    release_events(&ready->block->fences);
    active_ended(*ready->block);
    pools_.put(ready->block, ready->pool);
  }
  fenced_.insert(fenced_.begin(), ready_end, batch.end());
}

void CachingManagedAllocator::release_cached() {
  if (forked_child_) return;
  drain_fences(true);
  release_segments();
}

// Free segments back to their spans, empty spans back to the driver. Segments leave the pools
// before the devices are waited for, so that nothing freed meanwhile goes back with work pending.
// One thread at a time: another that needs memory must find what is on its way back.
void CachingManagedAllocator::release_segments() {
  std::lock_guard one_at_a_time(release_mutex_);
  struct Run {
    Span* span;
    char* base;
    std::size_t size_bytes;
  };
  std::vector<Run> runs;
  std::vector<Fence> fences;
  std::set<int> devices;
  {
    std::lock_guard lock(lock_);
    for (Pool* pool : pools_.pools()) {
      for (Block& guest : pool->guests) {
        fences.insert(fences.end(), guest.fences.begin(), guest.fences.end());
        guest.fences.clear();
      }
      pools_.release_free_segments(pool, [&](const Segment& segment) {
        runs.push_back({segment.span, segment.base, segment.size_bytes});
        devices.insert(segment.span->device);
        if (pool->key.facade == Facade::kDevice) devices.insert(pool->key.device);
        ClassStatistics& figures =
            statistics_.classes[static_cast<std::size_t>(segment.home->key.facade)]
                               [static_cast<std::size_t>(segment.home->key.device)]
                               [static_cast<std::size_t>(segment.home->key.size_class)];
        figures.segments.decrease(1);
        figures.reserved_bytes.decrease(segment.size_bytes);
      });
    }
  }
  for (int device : devices) runtime_.synchronize_device(device);
  release_events(&fences);
  std::vector<std::unique_ptr<Span>> empty;
  {
    std::lock_guard lock(lock_);
    for (const Run& run : runs) spans_.give_back(run.span, run.base, run.size_bytes);
    empty = spans_.remove_empty();
    for (const auto& span : empty) {
      ledger_.remove_span(span->base);
      statistics_.span_bytes.decrease(span->size_bytes);
      statistics_.touched_bytes.decrease(span->touched_bytes);
    }
  }
  free_spans(std::move(empty));
}

void CachingManagedAllocator::free_spans(std::vector<std::unique_ptr<Span>> spans) {
  for (const auto& span : spans) {
    RuntimeStatus status = runtime_.free_managed(span->device, span->raw);
    if (!status.ok() && status.error != RuntimeError::kNotUsable) {
      log_once(LogLevel::kWarning, status.text(),
               fmt::format("{} could not be given back to the driver: {}",
                           format_size(span->size_bytes), status.text()));
    }
  }
}

// ---- uses and moves

void CachingManagedAllocator::add_use(Block* block, DeviceStream use) {
  bool own = block->facade == Facade::kDevice && use == DeviceStream{block->device, block->stream};
  if (!own && std::find(block->uses.begin(), block->uses.end(), use) == block->uses.end()) {
    block->uses.push_back(use);
  }
}

bool CachingManagedAllocator::record_use(const void* address, int device, StreamHandle stream) {
  std::lock_guard lock(lock_);
  bool is_start = false;
  Block* block = pools_.find(address, &is_start);
  if (block == nullptr || block->state != BlockState::kLive) return false;
  add_use(block, {device, stream});
  return true;
}

bool CachingManagedAllocator::mark_exported(const void* address) {
  std::lock_guard lock(lock_);
  bool is_start = false;
  Block* block = pools_.find(address, &is_start);
  if (block == nullptr || block->state != BlockState::kLive) return false;
  block->exported = true;
  return true;
}

void CachingManagedAllocator::wait_for_uses(const void* address) {
  std::vector<DeviceStream> users;
  {
    std::lock_guard lock(lock_);
    bool is_start = false;
    const Block* block = pools_.find(address, &is_start);
    if (block == nullptr || block->state != BlockState::kLive) return;
    users = users_of(*block);
  }
  for (const DeviceStream& user : users) runtime_.synchronize_stream(user.device, user.handle);
}

// With the lock: the record of a move, attached to the block.
IndirectStorage* CachingManagedAllocator::record_for(Block* block, const Move& move) {
  IndirectStorage* record = nullptr;
  if (!move.held) {
    record = block->real.indirect;
    while (record != nullptr && (record->held || record->location != move.destination)) {
      record = record->next;
    }
    if (record != nullptr) {
      record->stream = move.stream;
      return record;
    }
  }
  if (free_records_.empty()) {
    record = &records_.emplace_back();
  } else {
    record = free_records_.back();
    free_records_.pop_back();
  }
  *record = {nullptr, 0, block->requested_bytes, move.destination, move.stream, nullptr, move.held};
  block->real.attach(record);
  return record;
}

IndirectStorage* CachingManagedAllocator::move(void* address, const Move& move) {
  IndirectStorage* record = nullptr;
  HintPlan plan;
  int device = move.stream_device;
  DeviceStream producer;
  {
    std::lock_guard lock(lock_);
    bool is_start = false;
    Block* block = pools_.find(address, &is_start);
    if (block == nullptr || block->state != BlockState::kLive) return nullptr;
    record = record_for(block, move);
    // The block's own record outlives the others and tells, after the free, where the pages are.
    block->use.location = move.destination;
    if (move.destination.is_device()) {
      block->use.stream = move.stream;
      add_use(block, {move.destination.index, move.stream});
    }
    MoveStatistics& moves = statistics_.moves;
    std::uint64_t& direction = !move.destination.is_device() ? moves.device_to_host
                               : move.source.is_device()     ? moves.device_to_device
                                                             : moves.host_to_device;
    ++direction;
    moves.bytes += block->requested_bytes;
    if (move.destination.is_device() && move.source.is_device()) {
      producer = {move.source.index, block->stream};
    }
    Segment* segment = block->segment;
    bool whole = segment->is_large();
    plan = planner_.plan_move(block->address, block->size_bytes,
                              whole ? &segment->placement : nullptr, move.destination);
  }
  DeviceStream consumer;
  if (move.destination.is_device()) {
    consumer = {move.stream_device, move.stream};
  } else if (move.wait) {
    // The producer counts as a user, so that it is waited for with the others, each once.
    record_use(address, move.stream_device, move.stream);
    wait_for_uses(address);
  } else {
    // Nobody waits on the host, so the pages must not leave before the stream is done with them.
    producer = {move.stream_device, move.stream};
  }
  sender_.send(plan, device, producer, consumer);
  return record;
}

void CachingManagedAllocator::release(IndirectStorage* record) noexcept {
  void* address = nullptr;
  {
    std::lock_guard lock(lock_);
    RealStorage* real = record->real;
    if (real == nullptr) return;
    if (real->references > 1) {
      bool is_start = false;
      bool own = record == &pools_.find(real->address, &is_start)->use;
      real->detach(record);
      if (!own) free_records_.push_back(record);
      return;
    }
    address = real->address;
  }
  free(address);
}

// ---- knowledge

std::optional<BlockDescription> CachingManagedAllocator::find(const void* address) const {
  std::lock_guard lock(lock_);
  bool is_start = false;
  const Block* block = pools_.find(address, &is_start);
  if (block == nullptr) return std::nullopt;
  BlockDescription out;
  out.base = block->address;
  out.size_bytes = block->size_bytes;
  out.requested_bytes = block->requested_bytes;
  out.facade = block->facade;
  out.device = block->device;
  out.live = block->state == BlockState::kLive;
  out.location = block->use.location;
  out.exported = block->exported;
  out.whole_pages = block->segment->is_large();
  out.references = block->real.references;
  return out;
}

void CachingManagedAllocator::add_pressure_callback(PressureCallback callback) {
  pressure_callbacks_.push_back(std::move(callback));
}

void CachingManagedAllocator::note_copy(CopyReason reason, std::size_t size_bytes) {
  std::lock_guard lock(lock_);
  MoveStatistics::Copies& copies = statistics_.moves.copies[static_cast<std::size_t>(reason)];
  ++copies.count;
  copies.bytes += size_bytes;
  if (size_bytes >= configuration_.host_threshold_bytes) {
    copies.bytes_at_or_above_threshold += size_bytes;
  }
}

void CachingManagedAllocator::note_materialization(std::size_t copied_bytes, bool steal) {
  std::lock_guard lock(lock_);
  if (steal) {
    ++statistics_.materializations.steals;
  } else {
    ++statistics_.materializations.copies;
    statistics_.materializations.bytes += copied_bytes;
  }
}

Statistics CachingManagedAllocator::statistics() const {
  std::lock_guard lock(lock_);
  return statistics_;
}

void CachingManagedAllocator::reset_peaks(Facade facade, int device) {
  std::lock_guard lock(lock_);
  for (auto& figures :
       statistics_.classes[static_cast<std::size_t>(facade)].at(static_cast<std::size_t>(device))) {
    figures.each_gauge([](Gauge& gauge) { gauge.reset_peak(); });
  }
}

void CachingManagedAllocator::reset_totals(Facade facade, int device) {
  std::lock_guard lock(lock_);
  for (auto& figures :
       statistics_.classes[static_cast<std::size_t>(facade)].at(static_cast<std::size_t>(device))) {
    figures.each_gauge([](Gauge& gauge) { gauge.reset_totals(); });
  }
}

std::vector<SegmentDescription> CachingManagedAllocator::segments() const {
  std::lock_guard lock(lock_);
  std::vector<SegmentDescription> out;
  const Segment* current = nullptr;
  pools_.each_block([&](const Block& block) {
    if (block.segment != current) {
      current = block.segment;
      const PoolKey& key = current->home->key;
      out.push_back({current->base,
                     current->size_bytes,
                     key.facade,
                     key.device,
                     key.stream,
                     key.size_class,
                     {}});
    }
    out.back().blocks.push_back({block.size_bytes, block.requested_bytes, block.state});
  });
  return out;
}

void CachingManagedAllocator::check_invariants() const {
  std::lock_guard lock(lock_);
  pools_.check_invariants();
}

// ---- figures

ClassStatistics& CachingManagedAllocator::class_statistics(const Block& block) {
  const PoolKey& key = block.segment->home->key;
  bool in_use = block.state != BlockState::kFree && block.requested_bytes != 0;
  Facade facade = in_use ? block.facade : key.facade;
  int device = in_use ? block.device : key.device;
  return statistics_.classes[static_cast<std::size_t>(facade)][static_cast<std::size_t>(device)]
                            [static_cast<std::size_t>(key.size_class)];
}

void CachingManagedAllocator::count_allocation(const Block& block, bool from_cache) {
  auto facade = static_cast<std::size_t>(block.facade);
  ClassStatistics& figures = class_statistics(block);
  figures.allocations.increase(1);
  figures.allocated_bytes.increase(block.size_bytes);
  figures.requested_bytes.increase(block.requested_bytes);
  figures.active_blocks.increase(1);
  figures.active_bytes.increase(block.size_bytes);
  figures.cache_hits += from_cache;
  statistics_.facade_bytes[facade].increase(block.size_bytes);
  statistics_.live_bytes.increase(block.size_bytes);
  ++statistics_.allocations[facade];
  statistics_.cache_hits[facade] += from_cache;
}

void CachingManagedAllocator::count_release(const Block& block) {
  ClassStatistics& figures = class_statistics(block);
  figures.allocations.decrease(1);
  figures.allocated_bytes.decrease(block.size_bytes);
  figures.requested_bytes.decrease(block.requested_bytes);
  statistics_.facade_bytes[static_cast<std::size_t>(block.facade)].decrease(block.size_bytes);
  statistics_.live_bytes.decrease(block.size_bytes);
}

void CachingManagedAllocator::active_ended(Block& block) {
  ClassStatistics& figures = class_statistics(block);
  figures.active_blocks.decrease(1);
  figures.active_bytes.decrease(block.size_bytes);
  block.requested_bytes = 0;
}

// ---- fork

void CachingManagedAllocator::before_fork() {
  if (forked_child_) return;
  lock_.lock();
  const Segment* current = nullptr;
  pools_.each_block([&](const Block& block) {
    bool wanted = block.state == BlockState::kLive &&
                  (block.facade != Facade::kDevice || block.use.location.is_host());
    if (!wanted) return;
    if (block.segment->is_large()) {
      fork_snapshot_.add(block.address, block.requested_bytes);
    } else if (block.segment != current) {
      // Small blocks share pages: the segment goes as a whole, once.
      current = block.segment;
      fork_snapshot_.add(current->base, current->size_bytes);
    }
  });
  fork_snapshot_.take(configuration_.fork_limit_bytes);
}

void CachingManagedAllocator::after_fork_in_parent() {
  if (forked_child_) return;
  fork_snapshot_.clear();
  lock_.unlock();
}

void CachingManagedAllocator::after_fork_in_child() {
  if (forked_child_) return;
  forked_child_ = true;
  fork_snapshot_.restore();
  fork_snapshot_.clear();
  lock_.unlock();
}

void* CachingManagedAllocator::allocate_in_child(Facade facade, std::size_t size_bytes) {
  if (facade == Facade::kDevice) {
    throw std::runtime_error(
        "uvmalloc: device memory cannot be used in a forked child; start the process with spawn or "
        "forkserver");
  }
  if (size_bytes == 0) return nullptr;
  void* address = nullptr;
  if (posix_memalign(&address, kSmallGranule, size_bytes) != 0) {
    throw OutOfMemoryError(
        size_bytes, fmt::format("uvmalloc: out of memory: {} asked of malloc in a forked child",
                                format_size(size_bytes)));
  }
  std::lock_guard lock(lock_);
  child_blocks_.insert(address);
  return address;
}

}  // namespace uvm
