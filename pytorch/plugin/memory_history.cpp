#include "pytorch/plugin/memory_history.hpp"

#include <limits>
#include <optional>

namespace uvm::torch_plugin {
namespace {

// Set by the calling thread, for its own entries.
thread_local std::vector<std::string> compile_contexts;
thread_local std::string thread_metadata;

// Returns the kind of entry for annotations, or nullopt if this version of torch has none.
template <class Entry>
constexpr std::optional<typename Entry::Action> annotation() {
  if constexpr (requires { Entry::ANNOTATE; }) return Entry::ANNOTATE;
  return std::nullopt;
}

void* stream_of(const StreamKey& pool) {
  return reinterpret_cast<void*>(pool.stream);
}

}  // namespace

std::uint64_t pool_number(c10::MempoolId_t id) {
  constexpr auto kLargest = std::numeric_limits<c10::CaptureId_t>::max() >> 2;
  TORCH_CHECK(
      (id.first == 0 || id.second == 0) && id.first <= kLargest && id.second <= kLargest,
      "memory pool (", id.first, ", ", id.second,
      ") does not exist; accepted: what MemPool.id, graph_pool_handle() or CUDAGraph.pool() "
      "returned");
  return id.first != 0 ? id.first << 1 | 1 : id.second << 1;
}

c10::MempoolId_t pool_id(std::uint64_t number) {
  if (number == StreamKey::kForgotten) return {0, 0};
  return (number & 1) != 0 ? c10::MempoolId_t{number >> 1, 0} : c10::MempoolId_t{0, number >> 1};
}

void MemoryHistory::record(bool enabled, native::CreateContextFn gatherer, std::size_t most_entries,
                           native::RecordContext when, bool clear,
                           const std::vector<std::string>& skip_actions) {
  TORCH_CHECK(when == native::RecordContext::NEVER || gatherer != nullptr,
              "stacks are requested, but no function to gather them is given");
  std::array<bool, kActions> skipped{};
  for (const std::string& action : skip_actions) {
    skipped.at(c10::CachingDeviceAllocator::parseTraceEntryAction(action)) = true;
  }
  std::lock_guard lock(mutex_);
  recording_ = enabled;
  gather_ = enabled ? gatherer : nullptr;
  when_ = enabled ? when : native::RecordContext::NEVER;
  skipped_ = skipped;
  most_entries_ = std::max<std::size_t>(most_entries, 1);
  annotations_.set_most(most_entries_);
  for (auto& trace : traces_) trace.set_most(most_entries_);
  if (!enabled || clear) {
    annotations_.clear();
    for (auto& trace : traces_) trace.clear();
  }
  update_watched();
}

void MemoryHistory::attach(native::AllocatorTraceTracker tracker) {
  std::lock_guard lock(mutex_);
  trackers_.push_back(std::move(tracker));
  update_watched();
}

// Call it with the mutex held. Stacks are kept after the recording ends, so their blocks are
// followed until they are free.
void MemoryHistory::update_watched() {
  watched_ = recording_ || !trackers_.empty() || !contexts_.empty() || !waiting_.empty();
}

void MemoryHistory::annotate(c10::DeviceIndex device,
                             const std::vector<std::pair<std::string, std::string>>& by) {
  if (!is_recording()) return;
  c10::CachingDeviceAllocator::AnnotationEntry entry(device, c10::getApproximateTime());
  for (const auto& [name, value] : by) entry.recordUserMetadata(name, value);
  std::lock_guard lock(mutex_);
  annotations_.add(std::move(entry));
}

void MemoryHistory::push_compile_context(std::string context) {
  compile_contexts.push_back(std::move(context));
}

void MemoryHistory::pop_compile_context() {
  if (!compile_contexts.empty()) compile_contexts.pop_back();
}

void MemoryHistory::set_user_metadata(const std::string& metadata) {
  thread_metadata = metadata;
}

std::string MemoryHistory::user_metadata() const {
  return thread_metadata;
}

MemoryHistory::Context MemoryHistory::gather(native::RecordContext level) const {
  if (when_.load(std::memory_order_relaxed) < level) return nullptr;
  native::CreateContextFn gatherer = gather_.load();
  return gatherer != nullptr ? gatherer() : nullptr;
}

// Call it with the mutex held.
void MemoryHistory::add(Entry::Action action, const StreamKey& pool, std::size_t address,
                        std::size_t size_bytes, const Context& context) {
  add(action, pool, address, size_bytes, context, thread_metadata);
}

// Call it with the mutex held.
void MemoryHistory::add(Entry::Action action, const StreamKey& pool, std::size_t address,
                        std::size_t size_bytes, const Context& context,
                        const std::string& metadata) {
  const bool kept = recording_ && !skipped_[action];
  if (!kept && trackers_.empty()) return;
  const bool with_stack = when_.load() >= native::RecordContext::ALLOC;
  Entry entry(action, static_cast<c10::DeviceIndex>(pool.device), address, size_bytes,
              stream_of(pool), pool_id(pool.private_pool), c10::getApproximateTime(),
              with_stack ? context : nullptr,
              compile_contexts.empty() ? "N/A" : compile_contexts.back(), metadata);
  for (const auto& tracker : trackers_) tracker(entry);
  if (!kept) return;
  const auto device = static_cast<std::size_t>(pool.device);
  while (traces_.size() <= device) traces_.emplace_back().set_most(most_entries_);
  traces_[device].add(std::move(entry));
}

void MemoryHistory::allocated(const StreamKey& pool, const void* address,
                              std::size_t requested_bytes, const Context& context) {
  std::lock_guard lock(mutex_);
  if (context != nullptr) {
    contexts_[address] = context;
    watched_ = true;
  }
  add(Entry::ALLOC, pool, address_of(address), requested_bytes, context);
}

void MemoryHistory::free_requested(const StreamKey& pool, const void* address,
                                   std::size_t requested_bytes, const Context& context,
                                   bool waits) {
  // Declared before the lock, so that it is destroyed after the unlock: releasing the last
  // reference to a stack may release Python objects, which needs Python's lock.
  Context kept;
  std::lock_guard lock(mutex_);
  auto found = contexts_.find(address);
  if (found != contexts_.end()) kept = found->second;
  const Context& shown = context != nullptr ? context : kept;
  add(Entry::FREE_REQUESTED, pool, address_of(address), requested_bytes, shown);
  if (waits) {
    waiting_.insert(address);
    return;
  }
  add(Entry::FREE_COMPLETED, pool, address_of(address), requested_bytes, shown);
  if (found != contexts_.end()) contexts_.erase(found);
  update_watched();
}

void MemoryHistory::free_completed(const StreamKey& pool, void* address,
                                   std::size_t requested_bytes) noexcept {
  if (!is_watched()) return;
  Context kept;
  std::lock_guard lock(mutex_);
  if (waiting_.erase(address) == 0) return;
  auto found = contexts_.find(address);
  if (found != contexts_.end()) kept = found->second;
  add(Entry::FREE_COMPLETED, pool, address_of(address), requested_bytes, kept);
  if (found != contexts_.end()) contexts_.erase(found);
  update_watched();
}

void MemoryHistory::pages_added(const StreamKey& pool, void* base,
                                std::size_t size_bytes) noexcept {
  if (!is_watched()) return;
  const Context* context = PagesScope::current();
  std::lock_guard lock(mutex_);
  add(Entry::SEGMENT_MAP, pool, address_of(base), size_bytes,
      context != nullptr ? *context : nullptr);
}

void MemoryHistory::pages_removed(const StreamKey& pool, void* base,
                                  std::size_t size_bytes) noexcept {
  if (!is_watched()) return;
  const Context* context = PagesScope::current();
  std::lock_guard lock(mutex_);
  add(Entry::SEGMENT_UNMAP, pool, address_of(base), size_bytes,
      context != nullptr ? *context : nullptr);
}

void MemoryHistory::out_of_memory(const StreamKey& pool, std::size_t free_bytes,
                                  std::size_t requested_bytes, const Context& context) {
  std::lock_guard lock(mutex_);
  add(Entry::OOM, pool, free_bytes, requested_bytes, context);
}

void MemoryHistory::annotated(const StreamKey& pool, const void* address,
                              std::size_t requested_bytes, const Context& context,
                              const std::string& note) {
  constexpr std::optional<Entry::Action> kAction = annotation<Entry>();
  if (!kAction) return;
  std::lock_guard lock(mutex_);
  add(*kAction, pool, address_of(address), requested_bytes, context, note);
}

void MemoryHistory::snapshot_taken(c10::DeviceIndex device, std::size_t active_bytes,
                                   c10::MempoolId_t pool) {
  std::lock_guard lock(mutex_);
  add(Entry::SNAPSHOT, {Facade::kDevice, device, nullptr, pool_number(pool)}, 0, active_bytes,
      nullptr);
}

MemoryHistory::Context MemoryHistory::context_of(const void* address) const {
  std::lock_guard lock(mutex_);
  auto found = contexts_.find(address);
  return found != contexts_.end() ? found->second : nullptr;
}

std::vector<MemoryHistory::Entry> MemoryHistory::trace_of(c10::DeviceIndex device) const {
  std::vector<Entry> out;
  std::lock_guard lock(mutex_);
  const auto at = static_cast<std::size_t>(device);
  if (at >= traces_.size() || traces_[at].entries().empty()) return out;
  const auto& entries = traces_[at].entries();
  out.assign(entries.begin(), entries.end());
  const auto to_nanoseconds = clock_.makeConverter();
  for (Entry& entry : out) entry.time_.t_ = to_nanoseconds(entry.time_.approx_t_) / 1000;
  return out;
}

std::vector<c10::CachingDeviceAllocator::AnnotationEntry> MemoryHistory::annotations() const {
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> out;
  std::lock_guard lock(mutex_);
  const auto& entries = annotations_.entries();
  if (entries.empty()) return out;
  out.assign(entries.begin(), entries.end());
  const auto to_nanoseconds = clock_.makeConverter();
  for (auto& entry : out) entry.time_.t_ = to_nanoseconds(entry.time_.approx_t_) / 1000;
  return out;
}

}  // namespace uvm::torch_plugin
