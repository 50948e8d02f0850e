#include "tests/support/call_sequence.hpp"

#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "allocator/process/framework_bridge.hpp"
#include "allocator/reclaim/decay.hpp"
#include "runtime/log.hpp"

#include "tests/support/allocator_model.hpp"
#include "tests/support/fake_runtime.hpp"
#include "tests/support/sizes.hpp"

namespace uvm::testing {
namespace {

constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max();
// Sizes at which the rounding or the kind of block changes, and sizes that are too large.
constexpr std::array<std::size_t, 32> kSizes = {0,
                                                1,
                                                511,
                                                512,
                                                513,
                                                4095,
                                                4096,
                                                4097,
                                                4608,
                                                4609,
                                                65536,
                                                300 * 1024,
                                                kMiB - 513,
                                                kMiB - 1,
                                                kMiB,
                                                kMiB + 1,
                                                2 * kMiB - 1,
                                                2 * kMiB,
                                                2 * kMiB + 1,
                                                3 * kMiB,
                                                4 * kMiB - 65536,
                                                4 * kMiB,
                                                5 * kMiB,
                                                6 * kMiB + 5,
                                                8 * kMiB,
                                                16 * kMiB,
                                                20 * kMiB,
                                                std::size_t{1} << 47,
                                                (std::size_t{1} << 47) + 1,
                                                kLargest - 2 * kMiB,
                                                kLargest - 511,
                                                kLargest};
constexpr int kStreams = 3;                 // per device
constexpr std::uint64_t kPrivatePools = 3;  // per device
// So long that the time of the test run does not matter.
constexpr std::chrono::seconds kHalfLife{1000000};
constexpr std::size_t kMostLive = 200;
constexpr int kMostCalls = 3000;

class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : left_(bytes) {}
  bool done() const { return left_.empty(); }
  // Returns the next byte, or 0 if none is left.
  std::uint8_t next() {
    if (left_.empty()) return 0;
    std::uint8_t value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }
  // Returns a number from 0 to `end` - 1, or 0 if no byte is left.
  unsigned below(unsigned end) { return next() % end; }

 private:
  std::span<const std::uint8_t> left_;
};

// A thread that runs tasks while its caller waits.
class OtherThread {
 public:
  OtherThread() : thread_([this] { work(); }) {}
  ~OtherThread() {
    run({});
    thread_.join();
  }
  void run(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    task_ = std::move(task);
    pending_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !pending_; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return pending_; });
      if (!task_) break;
      task_();
      pending_ = false;
      changed_.notify_all();
    }
    pending_ = false;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  bool pending_ = false;
  std::thread thread_;
};

// Runs `task` in a thread that has given up its cache, like a thread-local object's destructor.
void run_past_the_end_of_a_thread(CachingManagedAllocator& allocator,
                                  const std::function<void()>& task) {
  struct Late {
    const std::function<void()>* task = nullptr;
    ~Late() { (*task)(); }
  };
  std::thread([&] {
    static thread_local Late late;
    late.task = &task;
    allocator.free(nullptr);  // makes the cache, so the cache is destroyed before `late`
  }).join();
}

class Sequence {
 public:
  explicit Sequence(std::span<const std::uint8_t> bytes);
  void run();

 private:
  using Live = AllocatorModel::Live;
  using Block = AllocatorModel::Blocks::iterator;

  // While this scope is open, its private pool serves the requests of one stream.
  struct Scope {
    AllocatorModel::PrivatePool pool;
    StreamHandle stream;
    std::uint64_t number;
    bool capturing;
  };

  static Configuration configuration(Bytes* bytes);
  void call();
  void allocate();
  Live any_request();
  void allocate(Live live);
  void misuse();
  void move();
  void release();
  void look();
  void reset();
  void fail();
  void call_of_streams(unsigned what);
  void allocate_aligned();
  void retire_stream();
  void hint();
  void decay();
  void limit();
  void open_private_pool(bool capturing);
  void close_private_pool();
  void release_private_pool();
  void free(Block block);
  bool shed();
  void check();
  void check_segments(const Statistics& now);
  void finish();

  // Runs `task` in one of the threads.
  void in_some_thread(const std::function<void()>& task);
  Block any_block() {
    return std::next(model_.live.begin(),
                     static_cast<std::ptrdiff_t>(bytes_.below(256) % model_.live.size()));
  }
  char* inside(Block block) {
    constexpr std::array<std::size_t, 4> kParts = {1, 2, 3, 256};
    std::size_t last = block->second.size_bytes - 1;
    return block->first + (bytes_.below(2) == 0 ? 0 : last / kParts[bytes_.below(4)]);
  }
  int any_device() { return static_cast<int>(bytes_.below(static_cast<unsigned>(devices_))); }
  StreamHandle any_stream(int device) { return nth_stream(device, bytes_.below(kStreams)); }
  static StreamHandle nth_stream(int device, unsigned number) {
    return stream(1 + static_cast<unsigned>(device) * kStreams + number);
  }
  std::size_t any_size();
  std::set<StreamHandle> busy() {
    std::lock_guard lock(machine_->mutex);
    return machine_->busy;
  }
  bool may_fail() {
    std::lock_guard lock(machine_->mutex);
    return machine_->failures["allocate_managed"] != 0;
  }
  bool is_capturing() const {
    return std::any_of(scopes_.begin(), scopes_.end(),
                       [](const Scope& scope) { return scope.capturing; });
  }
  static void write(char* base, const Live& live) {
    for (std::size_t at : {std::size_t{0}, live.requested_bytes / 2, live.requested_bytes - 1}) {
      base[at] = static_cast<char>(live.mark);
    }
  }
  static void check_contents(Block block) {
    const Live& live = block->second;
    for (std::size_t at : {std::size_t{0}, live.requested_bytes / 2, live.requested_bytes - 1}) {
      expect(block->first[at] == static_cast<char>(live.mark), "a block has lost its contents");
    }
  }

  Bytes bytes_;
  const int devices_;
  std::shared_ptr<FakeMachine> machine_;
  std::unique_ptr<CachingManagedAllocator> allocator_;
  AllocatorModel model_;
  std::unique_ptr<OtherThread> other_;
  bool one_thread_ = true;
  std::uint8_t next_mark_ = 1;
  std::vector<char*> gone_;  // freed addresses
  MoveStatistics moves_;
  std::uint64_t refused_ = 0;        // refused requests, and refused moves
  const char* moving_ = nullptr;     // the block that is being moved
  std::vector<std::size_t> limits_;  // by device
  std::vector<std::uint64_t> held_;  // device memory in use before this call
  Decay::Time now_{1000 * kHalfLife};
  std::vector<Scope> scopes_;                                 // open, innermost last
  std::map<AllocatorModel::PrivatePool, std::size_t> users_;  // of private pools
  // Private pools that a graph was captured with. Replays use their memory without a request.
  std::set<AllocatorModel::PrivatePool> captured_;
};

Configuration Sequence::configuration(Bytes* bytes) {
  constexpr std::array<std::size_t, 4> kBudgets = {8, 24, 48, 96};
  constexpr std::array<std::size_t, 4> kSpans = {2, 6, 16, 32};
  constexpr std::array<std::size_t, 3> kCaches = {0, 1, 64};
  Configuration out;
  const unsigned budget = bytes->below(4);
  out.budget_bytes = kBudgets[budget] * kMiB;
  if (budget != 0) out.large_hits_required = budget;  // so that sequences reach that number
  out.span_bytes = kSpans[bytes->below(4)] * kMiB;
  out.thread_cache_bytes = kCaches[bytes->below(3)] * kMiB;
  if (budget % 2 == 1) out.decay_seconds = kHalfLife.count();
  out.policy = bytes->below(4) == 0 ? Policy::kDriver : Policy::kAuto;
  return out;
}

Sequence::Sequence(std::span<const std::uint8_t> bytes)
    : bytes_(bytes),
      devices_(1 + static_cast<int>(bytes_.below(2))),
      machine_(std::make_shared<FakeMachine>(devices_)),
      model_(devices_),
      limits_(static_cast<std::size_t>(devices_), SIZE_MAX),
      held_(static_cast<std::size_t>(devices_)) {
  const unsigned capabilities = bytes_.below(4);
  machine_->capabilities.discard = capabilities % 2 == 0;
  machine_->capabilities.pageable_memory_access = capabilities / 2 == 1;
  for (int device = 0; device < devices_; ++device) {
    for (unsigned number = 0; number < kStreams; ++number) {
      machine_->device_of[nth_stream(device, number)] = device;
    }
  }
  machine_->unaligned = bytes_.below(4) == 0;
  allocator_ = std::make_unique<CachingManagedAllocator>(std::make_unique<FakeRuntime>(machine_),
                                                         configuration(&bytes_));
  if (bytes_.below(4) == 0) allocator_->limits().add_pressure_callback([this] { return shed(); });
}

void Sequence::run() {
  for (int calls = 0; !bytes_.done() && calls < kMostCalls; ++calls) {
    try {
      call();
      check();
    } catch (const ModelError& error) {
      throw ModelError(fmt::format("call {}: {}", calls, error.what()));
    }
  }
  finish();
}

void Sequence::in_some_thread(const std::function<void()>& task) {
  unsigned which = bytes_.below(16);
  if (which < 8) return task();
  one_thread_ = false;
  // Rethrows on this thread what `task` throws.
  std::exception_ptr error;
  auto caught = [&] {
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
  };
  if (which == 15) {
    run_past_the_end_of_a_thread(*allocator_, caught);
  } else {
    if (which == 14) other_.reset();
    if (other_ == nullptr) other_ = std::make_unique<OtherThread>();
    other_->run(caught);
  }
  if (error) std::rethrow_exception(error);
}

void Sequence::call() {
  const unsigned byte = bytes_.next();
  if (byte >= 224) return call_of_streams(byte - 224);
  const unsigned what = byte % 32;
  if (what < 10 || (model_.live.empty() && what < 26)) return allocate();
  if (what < 17) {
    Block block = any_block();
    return in_some_thread([&] { free(block); });
  }
  if (what < 20) return move();
  if (what < 22) {
    Block block = any_block();
    int device = any_device();
    StreamHandle user = any_stream(device);
    expect(allocator_->record_use(inside(block), device, user), "a use of a live block is refused");
    block->second.users.insert(user);
    return;
  }
  if (what < 24) return release();
  if (what < 25) {
    Block block = any_block();
    expect(FrameworkBridge(*allocator_).mark_exported(inside(block)), "a live block is not known");
    block->second.exported = true;
    return;
  }
  if (what < 26) return look();
  StreamHandle chosen = any_stream(any_device());
  if (what < 28) {
    std::lock_guard lock(machine_->mutex);
    machine_->busy.insert(chosen);
  } else if (what < 29) {
    machine_->finish(chosen);
  } else if (what < 30) {
    misuse();
  } else if (what < 31) {
    reset();
  } else {
    fail();
  }
}

std::size_t Sequence::any_size() {
  unsigned choice = bytes_.below(64);
  if (choice < kSizes.size()) return kSizes[choice];
  std::size_t fine = 1 + bytes_.below(256);
  return choice < 48 ? fine * 37 : fine * 9001;
}

// Calls about destroyed streams and private pools, and rare calls.
void Sequence::call_of_streams(unsigned what) {
  if (what < 6) return retire_stream();
  if (what < 7) return decay();
  if (what < 8) return limit();
  if (what < 12) return open_private_pool(false);
  if (what < 15) return open_private_pool(true);
  if (what < 20) return close_private_pool();
  if (what < 24) return release_private_pool();
  if (what < 28 || model_.live.empty()) return allocate_aligned();
  hint();
}

AllocatorModel::Live Sequence::any_request() {
  auto facade = static_cast<Facade>(bytes_.below(3));
  int device = any_device();
  Live live{facade,
            device,
            facade == Facade::kDevice ? any_stream(device) : nullptr,
            0,
            any_size(),
            next_mark_++,
            {},
            {},
            {},
            facade == Facade::kDevice ? Place::device(device) : Place::host()};
  auto scope = std::find_if(scopes_.rbegin(), scopes_.rend(), [&](const Scope& open) {
    return facade == Facade::kDevice && open.pool.first == device && open.stream == live.stream;
  });
  if (scope != scopes_.rend()) live.pool = scope->pool;
  return live;
}

void Sequence::allocate() {
  if (model_.live.size() < kMostLive) allocate(any_request());
}

void Sequence::allocate_aligned() {
  if (model_.live.size() == kMostLive) return;
  Live live = any_request();
  live.alignment_bytes = std::size_t{256} << bytes_.below(14);
  allocate(live);
}

void Sequence::allocate(Live live) {
  const bool alone = model_.live.empty() && users_.empty() && !may_fail();
  std::size_t budget = allocator_->limits().budget_bytes();
  if (live.facade == Facade::kDevice) {
    budget = std::min(budget, limits_[static_cast<std::size_t>(live.device)]);
  }
  // An aligned device request may need extra room before the block, so that the block is aligned.
  const std::size_t room = live.alignment_bytes > 512 ? live.alignment_bytes + kPageBytes : 0;
  in_some_thread([&] {
    char* base = nullptr;
    try {
      base = static_cast<char*>(
          live.alignment_bytes == 0
              ? allocator_->allocate(live.facade, live.device, live.requested_bytes, live.stream)
              : allocator_->allocate_aligned(live.facade, live.device, live.requested_bytes,
                                             live.alignment_bytes, live.stream));
    } catch (const OutOfMemoryError& error) {
      expect(error.requested_bytes() == live.requested_bytes, "another request is refused");
      expect(live.requested_bytes != 0, "no bytes are refused");
      expect(!alone || live.requested_bytes > budget ||
                 round_up(live.requested_bytes, kPageBytes) + room > budget,
             "{} bytes cannot be had where nothing is in use", live.requested_bytes);
      ++refused_;
      return;
    }
    expect((base == nullptr) == (live.requested_bytes == 0), "nullptr is for no bytes");
    if (base == nullptr) return;
    auto found = allocator_->find(base);
    expect(found && found->base == base, "a new block is not known");
    live.size_bytes = found->size_bytes;
    write(base, live);
    std::set<StreamHandle> earlier;
    {
      std::lock_guard lock(machine_->mutex);
      earlier = machine_->work_of(live.stream);
    }
    model_.allocated(base, live, busy(), earlier);
  });
}

void Sequence::free(Block block) {
  check_contents(block);
  char* base = block->first;
  FreeResult result = allocator_->free(base);
  expect(result == FreeResult::kFreed, "a block's free ends with {}", static_cast<int>(result));
  gone_.push_back(base);
  model_.freed(block, busy());
}

// A callback under memory pressure: frees a block.
bool Sequence::shed() {
  if (model_.live.size() < 2) return false;
  Block block = model_.live.begin();
  if (block->first == moving_) ++block;
  free(block);
  return true;
}

void Sequence::misuse() {
  char* address = nullptr;
  FreeResult wanted = FreeResult::kNotOurs;
  int foreign = 0;
  switch (model_.live.empty() ? 0 : bytes_.below(4)) {
    case 0:
      address = reinterpret_cast<char*>(&foreign);
      break;
    case 1: {
      Block block = any_block();
      address = block->first + 1 + bytes_.below(256) % (block->second.size_bytes - 1);
      wanted = FreeResult::kInterior;
      break;
    }
    default: {
      if (gone_.empty()) return;
      address = gone_[bytes_.below(256) % gone_.size()];
      if (model_.find(address) != model_.live.end()) return;  // another block has this address
      wanted = FreeResult::kDouble;
    }
  }
  FreeResult result = FreeResult::kFreed;
  in_some_thread([&] { result = allocator_->free(address); });
  // The driver may have the pages of a freed block again.
  expect(result == wanted || (wanted == FreeResult::kDouble && result == FreeResult::kNotOurs),
         "a wrong free ends with {}, not {}", static_cast<int>(result), static_cast<int>(wanted));
  if (wanted != FreeResult::kNotOurs) return;
  expect(!allocator_->find(&foreign) && !allocator_->record_use(&foreign, 0, nullptr) &&
             !FrameworkBridge(*allocator_).mark_exported(&foreign) &&
             allocator_->move(&foreign, {Place::host(), Place::device(0)}) == nullptr,
         "a foreign address is known");
  bool refused = false;
  try {
    allocator_->allocate(Facade::kDevice, devices_, 1);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  expect(refused, "a device that does not exist has memory");
}

void Sequence::move() {
  Block block = any_block();
  Live& live = block->second;
  MoveRequest move;
  move.source = live.location;
  const int device = any_device();
  move.destination = bytes_.below(2) == 0 ? Place::host() : Place::device(device);
  move.stream_device = device;
  move.stream = any_stream(device);
  move.wait = bytes_.below(2) == 0;
  move.held = bytes_.below(2) == 0;
  MovedStorage* record = nullptr;
  char* address = inside(block);
  moving_ = block->first;
  try {
    in_some_thread([&] { record = allocator_->move(address, move); });
  } catch (const OutOfMemoryError&) {
    moving_ = nullptr;
    expect(move.destination.is_device() && limits_[static_cast<std::size_t>(device)] != SIZE_MAX,
           "a move to a device without a limit is refused");
    ++refused_;
    return;
  } catch (const std::runtime_error&) {
    moving_ = nullptr;
    expect(is_capturing() && move.destination.is_host() && move.wait, "a move fails");
    live.users.insert(move.stream);
    return;
  }
  moving_ = nullptr;
  expect(record != nullptr && record->location() == move.destination &&
             record->size_bytes() == live.requested_bytes,
         "a move's record is not of the move");
  if (move.held) {
    live.held.push_back(record);
  } else {
    live.unheld.insert(move.destination);
  }
  live.users.insert(move.stream);
  model_.change_uses(&live, [&] {
    if (move.source.is_device()) live.used_at.erase(move.source);
    live.used_at.insert(move.destination);
    live.location = move.destination;
    if (move.destination.is_device()) live.newest_device = move.destination;
  });
  if (move.destination.is_host() && move.wait) {
    for (StreamHandle user : live.users) {
      expect(!busy().contains(user), "a move to the host did not wait for stream {}", user);
    }
  }
  ++(move.destination.is_host() ? moves_.device_to_host
     : move.source.is_host()    ? moves_.host_to_device
                                : moves_.device_to_device);
  moves_.bytes += live.requested_bytes;
  check_contents(block);
}

void Sequence::release() {
  Block block = any_block();
  Live& live = block->second;
  if (live.held.empty()) return;
  MovedStorage* record = live.held[bytes_.below(8) % live.held.size()];
  std::erase(live.held, record);
  const Place place = record->location();
  in_some_thread([&] { allocator_->release(record); });
  const bool has_another = std::any_of(live.held.begin(), live.held.end(),
                                       [&](auto* other) { return other->location() == place; });
  if (has_another || live.unheld.contains(place) || place == AllocatorModel::origin_of(live) ||
      live.used_at == std::set{place}) {
    return;
  }
  model_.change_uses(&live, [&] { live.used_at.erase(place); });
  // A limit never refuses the use that remains.
  const AllocatorModel::Charge charge = AllocatorModel::charge_of(live);
  if (charge.facade == Facade::kDevice) {
    held_[static_cast<std::size_t>(charge.device)] += live.size_bytes;
  }
}

void Sequence::look() {
  Block block = any_block();
  if (bytes_.below(4) == 0) {
    try {
      allocator_->streams().wait_for_uses(inside(block));
    } catch (const std::runtime_error&) {
      expect(is_capturing(), "uses cannot be waited for");
      return;
    }
    for (StreamHandle user : block->second.users) {
      expect(!busy().contains(user), "stream {} was not waited for", user);
    }
    return;
  }
  const Live& live = block->second;
  auto found = allocator_->find(inside(block));
  expect(found && found->live && found->base == block->first &&
             found->size_bytes == live.size_bytes && found->facade == live.facade &&
             found->device == live.device && found->location == live.location &&
             found->exported == (live.exported || captured_.contains(live.pool)) &&
             found->requested_bytes == live.requested_bytes,
         "a block is not known for what it is");
  expect(found->references == 1 + live.held.size() + live.unheld.size(), "{} records, not {}",
         found->references, 1 + live.held.size() + live.unheld.size());
  check_contents(block);
}

void Sequence::reset() {
  auto facade = static_cast<Facade>(bytes_.below(3));
  int device = any_device();
  switch (bytes_.below(3)) {
    case 0:
      allocator_->reset_peaks(facade, device);
      return model_.reset_peaks(facade, device);
    case 1:
      allocator_->reset_totals(facade, device);
      return model_.reset_totals(facade, device);
    default:
      return in_some_thread([&] { allocator_->release_cached(); });
  }
}

void Sequence::fail() {
  constexpr std::array<const char*, 4> kCalls = {"allocate_managed", "record_event", "advise",
                                                 "prefetch"};
  std::lock_guard lock(machine_->mutex);
  machine_->failures[kCalls[bytes_.below(4)]] = 1 + static_cast<int>(bytes_.below(4));
}

void Sequence::retire_stream() {
  const int device = any_device();
  const StreamHandle gone = any_stream(device);
  // No program destroys a stream that is captured or that has an open scope.
  if (std::any_of(scopes_.begin(), scopes_.end(),
                  [&](const Scope& scope) { return scope.stream == gone; })) {
    return;
  }
  in_some_thread([&] { allocator_->streams().forget(device, gone); });
  model_.retired(gone, machine_->retire(gone));
}

void Sequence::hint() {
  Block block = any_block();
  const std::size_t size_bytes = block->second.size_bytes;
  const int device = any_device();
  const StreamHandle stream = any_stream(device);
  const Place place = bytes_.below(2) == 0 ? Place::host() : Place::device(device);
  if (bytes_.below(2) == 0) {
    const std::size_t first = size_bytes / 4 * bytes_.below(4);
    const std::size_t bytes = size_bytes / 4 * (1 + bytes_.below(4));
    bool done = false;
    in_some_thread(
        [&] { done = allocator_->prefetch(block->first + first, bytes, place, device, stream); });
    expect(done == (bytes != 0 && first + bytes <= size_bytes),
           "a prefetch of {} at {} of {} bytes says {}", bytes, first, size_bytes, done);
  } else {
    WantedPlacement wanted;
    wanted.preferred = place;
    in_some_thread([&] { allocator_->advise(inside(block), wanted); });
  }
  check_contents(block);
}

void Sequence::decay() {
  now_ += kHalfLife / 20 * bytes_.below(16);
  in_some_thread([&] { allocator_->limits().decay(now_); });
}

void Sequence::limit() {
  constexpr std::array<std::size_t, 4> kLimits = {3 * kMiB, 8 * kMiB, 20 * kMiB, SIZE_MAX};
  const int device = any_device();
  const std::size_t most_bytes = kLimits[bytes_.below(4)];
  allocator_->limits().set_device_limit(device, most_bytes);
  limits_[static_cast<std::size_t>(device)] = most_bytes;
}

void Sequence::open_private_pool(bool capturing) {
  const int device = any_device();
  const StreamHandle stream = any_stream(device);
  const AllocatorModel::PrivatePool pool{device, 1 + bytes_.below(kPrivatePools)};
  if (capturing && is_capturing()) return;
  const std::uint64_t number = allocator_->private_pools().begin(
      device, pool.second, [stream](StreamHandle asking) { return asking == stream; }, capturing);
  scopes_.push_back({pool, stream, number, capturing});
  ++users_[pool];
  model_.private_pool_is_open();
  if (!capturing) return;
  captured_.insert(pool);
  std::lock_guard lock(machine_->mutex);
  machine_->capturing.insert(stream);
}

void Sequence::close_private_pool() {
  if (scopes_.empty()) return;
  const auto scope = scopes_.begin() + static_cast<std::ptrdiff_t>(
                                           bytes_.below(static_cast<unsigned>(scopes_.size())));
  const Scope closed = *scope;
  scopes_.erase(scope);
  if (closed.capturing) {
    std::lock_guard lock(machine_->mutex);
    machine_->capturing.erase(closed.stream);
  }
  in_some_thread([&] {
    expect(allocator_->private_pools().end(closed.pool.first, closed.pool.second, closed.number),
           "a scope that is open cannot be closed");
  });
}

void Sequence::release_private_pool() {
  if (users_.empty()) return;
  const auto chosen = std::next(users_.begin(), bytes_.below(static_cast<unsigned>(users_.size())));
  const AllocatorModel::PrivatePool pool = chosen->first;
  // The last user of a pool closes its scopes first.
  const auto open = static_cast<std::size_t>(std::count_if(
      scopes_.begin(), scopes_.end(), [&](const Scope& scope) { return scope.pool == pool; }));
  if (chosen->second == open) return;
  in_some_thread([&] {
    expect(allocator_->private_pools().release(pool.first, pool.second),
           "a private pool that is there cannot be released");
  });
  if (--chosen->second != 0) return;
  users_.erase(chosen);
  captured_.erase(pool);
  model_.private_pool_is_gone(pool);
}

void Sequence::check() {
  model_.settle(busy());
  allocator_->inspection().check_invariants();
  const Statistics now = allocator_->statistics();
  model_.check(now, one_thread_);
  // Small objects may exceed the budget by one page for each memory kind on each device.
  const std::size_t beyond_bytes = kFacades * kPageBytes * static_cast<std::size_t>(devices_);
  expect(now.touched_bytes.current <= allocator_->limits().budget_bytes() + beyond_bytes,
         "the budget is exceeded");
  expect(now.touched_bytes.current <= now.span_bytes.current, "more is touched than there is");
  expect(now.out_of_memory == refused_, "{} refusals, not {}", refused_, now.out_of_memory);
  expect(now.moves.host_to_device == moves_.host_to_device &&
             now.moves.device_to_host == moves_.device_to_host &&
             now.moves.device_to_device == moves_.device_to_device &&
             now.moves.bytes == moves_.bytes,
         "moves are counted wrongly");
  check_segments(now);
}

void Sequence::check_segments(const Statistics& now) {
  std::vector<std::array<std::uint64_t, kFacades>> reserved(static_cast<std::size_t>(devices_));
  // Bytes in use, by device. Cached bytes may exceed a limit and be used again, because the pages
  // of a block that was used elsewhere come back.
  std::vector<std::uint64_t> used(static_cast<std::size_t>(devices_));
  std::size_t live_blocks = 0;
  std::size_t requested_bytes = 0;
  for (const SegmentDescription& segment : allocator_->inspection().segments()) {
    std::size_t bytes = 0;
    for (const auto& piece : segment.blocks) {
      bytes += piece.size_bytes;
      if (segment.facade == Facade::kDevice && piece.state != BlockState::kFree &&
          piece.state != BlockState::kCached) {
        used[static_cast<std::size_t>(segment.device)] += piece.size_bytes;
      }
      if (piece.state != BlockState::kLive) continue;
      ++live_blocks;
      requested_bytes += piece.requested_bytes;
    }
    expect(bytes == segment.size_bytes, "pieces of {} in a segment of {}", bytes,
           segment.size_bytes);
    reserved[static_cast<std::size_t>(segment.device)][static_cast<std::size_t>(segment.facade)] +=
        bytes;
  }
  for (std::size_t device = 0; device < reserved.size(); ++device) {
    expect(used[device] <= std::max<std::uint64_t>(limits_[device], held_[device]),
           "a device limited to {} bytes that holds {} uses {}", limits_[device], held_[device],
           used[device]);
    held_[device] = reserved[device][static_cast<std::size_t>(Facade::kDevice)];
  }
  std::uint64_t sum = 0;
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    for (std::size_t device = 0; device < reserved.size(); ++device) {
      const auto& figures = now.classes[facade][device];
      expect(reserved[device][facade] == figures[kSizeClasses].reserved_bytes.current,
             "segments of {} bytes where {} are reserved", reserved[device][facade],
             figures[kSizeClasses].reserved_bytes.current);
      sum += reserved[device][facade];
    }
  }
  expect(sum <= now.touched_bytes.current, "more is reserved than touched");
  std::size_t wanted_bytes = 0;
  for (const auto& [base, live] : model_.live) wanted_bytes += live.requested_bytes;
  expect(live_blocks == model_.live.size() && requested_bytes == wanted_bytes,
         "segments show {} live blocks of {} bytes, not {} of {}", live_blocks, requested_bytes,
         model_.live.size(), wanted_bytes);
}

// Frees and releases everything, and checks that all memory comes back.
void Sequence::finish() {
  if (bytes_.below(2) == 0) other_.reset();
  while (!scopes_.empty()) close_private_pool();
  while (!model_.live.empty()) free(model_.live.begin());
  while (!users_.empty()) release_private_pool();
  allocator_->release_cached();
  check();
  const Statistics now = allocator_->statistics();
  expect(now.touched_bytes.current == 0 && now.span_bytes.current == 0 && now.free_bytes == 0 &&
             now.thread_cached_bytes == 0,
         "memory is kept where everything was given back");
  for (const auto& facade : now.classes) {
    for (const auto& device : facade) {
      expect(device[kSizeClasses].active_blocks.current == 0, "a block waits for ever");
    }
  }
  expect(machine_->allocated_bytes == 0, "a span was not given back");
  allocator_.reset();
  expect(machine_->events.empty(), "an event was lost");
}

}  // namespace

std::string run_call_sequence(std::span<const std::uint8_t> bytes) {
  // Sequences contain wrong calls, which would be logged.
  set_log_level(LogLevel::kOff);
  std::string broken;
  try {
    Sequence(bytes).run();
  } catch (const ModelError& error) {
    broken = error.what();
  }
  set_log_level(LogLevel::kWarning);
  return broken;
}

}  // namespace uvm::testing
