// A random program of CUDA: memory of every kind, copies, streams, events, captures, contexts,
// threads, two devices, and errors. The program prints each call's result and the values that it
// finds. The output depends only on the seed: it must be the same with and without
// libuvmalloc_preload.so.
//
//   served_fuzz FIRST_SEED SEQUENCES CALLS
//
// The program leaves out calls for which uvmalloc differs from CUDA (see
// docs/reference/any-program.md):
//  * requests for more than the device has free, up to a size that no device has: the host serves
//    them;
//  * free memory as cudaMemGetInfo reports it: cached blocks count as in use;
//  * allocations and frees during a capture that is not relaxed: CUDA refuses them, and invalidates
//    the capture;
//  * contents and attributes of freed memory, and wrong kinds of copies: served memory is managed;
//  * advice for cudaMalloc's memory: CUDA refuses it;
//  * calls of the driver in a primary context that was reset: uvmalloc keeps the context in use;
//  * whether work is over that nobody has waited for: uvmalloc's prefetches take time.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kMostLiveBytes = 256 * kMiB;  // a device has 8 GiB
constexpr int kDevices = 2;
constexpr int kThreads = 3;

enum class Kind { kDevice, kPitched, kOrdered, kManaged, kPinned, kDriver, kDriverPinned };

struct Block {
  char* address;
  std::size_t bytes;
  Kind kind;
  int device;
  cudaStream_t stream;  // for kOrdered
};

struct Stream {
  cudaStream_t handle;
  int device;
};

// One thread at a time makes calls, in the order of the seed.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    post(nullptr);
    thread_.join();
  }
  void call(const std::function<void()>& body) {
    post(&body);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return body_ == nullptr; });
  }

 private:
  void post(const std::function<void()>* body) {
    const std::lock_guard lock(mutex_);
    body_ = body;
    is_over_ = body == nullptr;
    changed_.notify_all();
  }
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return body_ != nullptr || is_over_; });
      if (is_over_) return;
      const auto* body = body_;
      lock.unlock();
      (*body)();
      lock.lock();
      body_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* body_ = nullptr;
  bool is_over_ = false;
  std::thread thread_;  // last, because the thread uses the other members
};

class Sequence {
 public:
  Sequence(std::uint64_t seed, std::vector<Worker>* workers) : random_(seed), workers_(*workers) {
    std::printf("sequence %llu\n", static_cast<unsigned long long>(seed));
  }

  void run(int calls) {
    for (int number = 0; number < calls; ++number) {
      Worker& worker = workers_[below(kThreads)];
      worker.call([&] { step(number); });
    }
    workers_[0].call([&] { end(); });
  }

 private:
  std::uint64_t below(std::uint64_t most) { return random_() % most; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

  void say(int number, const char* call, long result, long value = 0) {
    std::printf("%d %s %ld %ld\n", number, call, result, value);
  }

  std::size_t random_size() {
    switch (below(6)) {
      case 0:
        return 1 + below(64);
      case 1:
        return 1 + below(4 * kKiB);
      case 2:
        return 1 + below(256 * kKiB);
      case 3:
        return kMiB * (1 + below(6));
      case 4:
        return 1 + below(3 * kMiB);
      default:
        return std::size_t{512} << below(12);
    }
  }

  int here() {
    int device = -1;
    cudaGetDevice(&device);
    return device;
  }

  // Returns a stream of the device, or a default stream.
  cudaStream_t stream_on(int device) {
    std::vector<cudaStream_t> found{nullptr, cudaStreamPerThread};
    for (const Stream& stream : streams_) {
      if (stream.device == device) found.push_back(stream.handle);
    }
    return found[below(found.size())];
  }
  // Returns a stream that is not the calling thread's own.
  cudaStream_t shared_stream_on(int device) {
    std::vector<cudaStream_t> found{cudaStreamLegacy};
    for (const Stream& stream : streams_) {
      if (stream.device == device) found.push_back(stream.handle);
    }
    return found[below(found.size())];
  }

  void keep(int number, const char* call, int result, void* address, std::size_t bytes, Kind kind,
            cudaStream_t stream = nullptr) {
    say(number, call, result, static_cast<long>(bytes));
    if (result != 0 || address == nullptr) return;
    Block block{static_cast<char*>(address), bytes, kind, here(), stream};
    if (kind == Kind::kOrdered) cudaStreamSynchronize(stream);
    // Writes all bytes, so that later reads find known values.
    say(number, "first fill", cudaMemset(address, static_cast<int>(below(256)), bytes));
    live_bytes_ += bytes;
    blocks_.push_back(block);
  }

  void allocate(int number) {
    if (live_bytes_ > kMostLiveBytes) return release(number);
    void* out = nullptr;
    const std::size_t bytes = random_size();
    switch (below(9)) {
      case 0:
        return keep(number, "cudaMallocHost", cudaMallocHost(&out, bytes), out, bytes,
                    Kind::kPinned);
      case 1:
        return keep(number, "cudaHostAlloc",
                    cudaHostAlloc(&out, bytes, static_cast<unsigned>(below(8))), out, bytes,
                    Kind::kPinned);
      case 2:
        return keep(number, "cudaMallocManaged",
                    cudaMallocManaged(&out, bytes, cudaMemAttachGlobal), out, bytes,
                    Kind::kManaged);
      case 3: {
        const cudaStream_t stream = shared_stream_on(here());
        const int result = cudaMallocAsync(&out, bytes, stream);
        return keep(number, "cudaMallocAsync", result, out, bytes, Kind::kOrdered, stream);
      }
      case 4: {
        CUdeviceptr pointer = 0;
        const int result = cuMemAlloc(&pointer, bytes);
        return keep(number, "cuMemAlloc", result, reinterpret_cast<void*>(pointer), bytes,
                    Kind::kDriver);
      }
      case 5:
        return keep(number, "cuMemAllocHost", cuMemAllocHost(&out, bytes), out, bytes,
                    Kind::kDriverPinned);
      case 6: {
        std::size_t pitch = 0;
        const std::size_t width = 1 + below(5000);
        const std::size_t rows = 1 + below(100);
        const int result = cudaMallocPitch(&out, &pitch, width, rows);
        say(number, "pitch", static_cast<long>(pitch), static_cast<long>(rows));
        return keep(number, "cudaMallocPitch", result, out, pitch * rows, Kind::kPitched);
      }
      default:
        return keep(number, "cudaMalloc", cudaMalloc(&out, bytes), out, bytes, Kind::kDevice);
    }
  }

  int free_block(const Block& block) {
    switch (block.kind) {
      case Kind::kPinned:
        return cudaFreeHost(block.address);
      case Kind::kDriverPinned:
        return one_in(2) ? static_cast<int>(cuMemFreeHost(block.address))
                         : static_cast<int>(cudaFreeHost(block.address));
      case Kind::kDriver:
        return cuMemFree(reinterpret_cast<CUdeviceptr>(block.address));
      case Kind::kOrdered:
        if (!one_in(3)) return cudaFreeAsync(block.address, shared_stream_on(here()));
        return cudaFree(block.address);
      default:
        return cudaFree(block.address);
    }
  }

  void release(int number) {
    if (blocks_.empty()) return;
    const std::size_t index = below(blocks_.size());
    const Block block = blocks_[index];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
    live_bytes_ -= block.bytes;
    cudaDeviceSynchronize();
    say(number, "free", free_block(block));
    // Frees again at once, while no other block has the address.
    if (one_in(4)) say(number, "free again", free_block(block));
  }

  bool is_host(const Block& block) const {
    return block.kind == Kind::kPinned || block.kind == Kind::kDriverPinned;
  }

  void fill(int number) {
    if (blocks_.empty()) return;
    const Block& block = blocks_[below(blocks_.size())];
    const std::size_t begin = below(block.bytes);
    const std::size_t count = 1 + below(block.bytes - begin);
    const int value = static_cast<int>(below(256));
    if (one_in(2)) {
      say(number, "cudaMemset", cudaMemset(block.address + begin, value, count));
    } else {
      const cudaStream_t stream = stream_on(here());
      say(number, "cudaMemsetAsync", cudaMemsetAsync(block.address + begin, value, count, stream));
      say(number, "then wait", cudaStreamSynchronize(stream));
    }
  }

  void copy(int number) {
    if (blocks_.size() < 2) return;
    const Block& to = blocks_[below(blocks_.size())];
    const Block& from = blocks_[below(blocks_.size())];
    if (to.address == from.address) return;
    const std::size_t count = 1 + below(std::min(to.bytes, from.bytes));
    if (one_in(2)) {
      say(number, "cudaMemcpy", cudaMemcpy(to.address, from.address, count, cudaMemcpyDefault));
    } else {
      const cudaStream_t stream = stream_on(here());
      say(number, "cudaMemcpyAsync",
          cudaMemcpyAsync(to.address, from.address, count, cudaMemcpyDefault, stream));
      say(number, "then wait", cudaStreamSynchronize(stream));
    }
  }

  static long sum_of(const Block& block, int* result) {
    std::vector<unsigned char> bytes(block.bytes);
    *result = cudaMemcpy(bytes.data(), block.address, block.bytes, cudaMemcpyDefault);
    std::uint64_t sum = 1469598103934665603u;
    for (const unsigned char byte : bytes) sum = (sum ^ byte) * 1099511628211u;
    return static_cast<long>(sum);
  }

  void read(int number, const Block& block) {
    int result = 0;
    const long sum = sum_of(block, &result);
    say(number, "read", result, sum);
    if (is_host(block)) say(number, "by the host", block.address[block.bytes / 2]);
  }

  void ask(int number) {
    if (blocks_.empty()) return;
    const Block& block = blocks_[below(blocks_.size())];
    char* inside = block.address + below(block.bytes);
    cudaPointerAttributes found{};
    say(number, "cudaPointerGetAttributes", cudaPointerGetAttributes(&found, inside), found.type);
    say(number, "pointers", found.devicePointer == inside, found.hostPointer == inside);
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    if (!is_host(block)) {
      const int result = cuMemGetAddressRange(&base, &bytes, reinterpret_cast<CUdeviceptr>(inside));
      say(number, "cuMemGetAddressRange", result, static_cast<long>(bytes));
      say(number, "base", base == reinterpret_cast<CUdeviceptr>(block.address));
    }
    void* on_device = nullptr;
    const int result = cudaHostGetDevicePointer(&on_device, block.address, 0);
    say(number, "cudaHostGetDevicePointer", result, on_device == block.address);
  }

  void make_error(int number) {
    void* out = nullptr;
    char local[64] = {};
    switch (below(12)) {
      case 0:
        say(number, "too much", cudaMalloc(&out, std::size_t{1} << 60), out != nullptr);
        break;
      case 1:
        say(number, "nothing", cudaMalloc(&out, 0), out != nullptr);
        break;
      case 2:
        say(number, "null", cudaFree(nullptr));
        break;
      case 3:
        say(number, "null of the host", cudaFreeHost(nullptr));
        break;
      case 4:
        say(number, "no memory", cudaFree(local));
        break;
      case 5:
        say(number, "no pinned memory", cudaFreeHost(local));
        break;
      case 6:
        if (!blocks_.empty()) inner_free(number);
        break;
      case 7:
        if (!blocks_.empty()) wrong_free(number);
        break;
      case 8:
        say(number, "no place", cudaMalloc(nullptr, 64));
        break;
      case 9:
        say(number, "bad flags", cudaHostAlloc(&out, 64, 0x800));
        break;
      case 10:
        say(number, "no device", cudaSetDevice(kDevices));
        break;
      default:
        say(number, "too much of the host", cudaMallocHost(&out, std::size_t{1} << 60));
        break;
    }
    if (one_in(2)) say(number, "cudaPeekAtLastError", cudaPeekAtLastError());
    if (one_in(2)) say(number, "cudaGetLastError", cudaGetLastError());
  }
  void inner_free(int number) {
    const Block& block = blocks_[below(blocks_.size())];
    if (block.bytes < 2) return;
    char* inside = block.address + 1 + below(block.bytes - 1);
    say(number, "inner", is_host(block) ? cudaFreeHost(inside) : cudaFree(inside));
  }
  void wrong_free(int number) {
    const Block& block = blocks_[below(blocks_.size())];
    say(number, "wrong kind",
        is_host(block) ? cudaFree(block.address) : cudaFreeHost(block.address));
  }

  void change_streams(int number) {
    if (streams_.size() < 6 && !one_in(3)) {
      cudaStream_t stream = nullptr;
      const unsigned flags = one_in(2) ? cudaStreamNonBlocking : cudaStreamDefault;
      say(number, "cudaStreamCreate", cudaStreamCreateWithFlags(&stream, flags));
      streams_.push_back({stream, here()});
    } else if (!streams_.empty()) {
      const std::size_t index = below(streams_.size());
      say(number, "cudaStreamDestroy", cudaStreamDestroy(streams_[index].handle));
      streams_.erase(streams_.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }

  void order_streams(int number) {
    const int device = here();
    cudaEvent_t event = nullptr;
    say(number, "cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    say(number, "cudaEventRecord", cudaEventRecord(event, stream_on(device)));
    say(number, "cudaStreamWaitEvent", cudaStreamWaitEvent(stream_on(device), event, 0));
    say(number, "cudaEventSynchronize", cudaEventSynchronize(event));
    say(number, "cudaEventQuery", cudaEventQuery(event));
    say(number, "cudaEventDestroy", cudaEventDestroy(event));
  }

  // Captures a new stream. Meanwhile another thread allocates, or this thread in a relaxed capture.
  void capture(int number) {
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].device == here() && !is_host(blocks_[i])) own.push_back(i);
    }
    if (own.empty()) return;
    const Block block = blocks_[own[below(own.size())]];
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    const bool is_relaxed = one_in(2);
    const auto mode = is_relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal;
    say(number, "capture stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    say(number, "cudaStreamBeginCapture", cudaStreamBeginCapture(stream, mode));
    say(number, "captured", cudaMemsetAsync(block.address, number & 255, block.bytes, stream));
    const std::uint64_t rounds = below(100);
    const int device = here();
    const auto allocates = [&] {
      int failed = cudaSetDevice(device) != cudaSuccess;
      for (std::uint64_t i = 0; i < rounds; ++i) {
        void* out = nullptr;
        failed += cudaMalloc(&out, 1 + 1000 * i) != cudaSuccess;
        failed += cudaFree(out) != cudaSuccess;
      }
      say(number, "beside", failed);
    };
    is_relaxed ? allocates() : std::thread(allocates).join();
    if (one_in(6)) {
      say(number, "the end of its stream", cudaStreamDestroy(stream));
      return;
    }
    if (one_in(6)) say(number, "a wait", cudaStreamSynchronize(stream));
    const int ended = cudaStreamEndCapture(stream, &graph);
    say(number, "cudaStreamEndCapture", ended);
    if (ended == cudaSuccess) {
      say(number, "cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, 0));
      say(number, "cudaGraphLaunch", cudaGraphLaunch(executable, stream));
      say(number, "then wait", cudaStreamSynchronize(stream));
      say(number, "cudaGraphExecDestroy", cudaGraphExecDestroy(executable));
      say(number, "cudaGraphDestroy", cudaGraphDestroy(graph));
    }
    say(number, "cudaGetLastError", cudaGetLastError());
    say(number, "capture stream", cudaStreamDestroy(stream));
  }

  // Makes memory and a stream that end with a context of the program.
  void visit_context(int number) {
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    CUstream stream = nullptr;
    const CUdevice device = here();
    say(number, "cuCtxCreate", cuCtxCreate(&context, nullptr, 0, device));
    say(number, "its stream", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    say(number, "its memory", cuMemAlloc(&memory, random_size()));
    say(number, "its fill", cuMemsetD8(memory, 1, 1));
    say(number, "its wait", cuCtxSynchronize());
    say(number, "cuCtxDestroy", cuCtxDestroy(context));
    say(number, "cudaSetDevice", cudaSetDevice(device));
    say(number, "its memory's free", cuMemFree(memory));
  }

  void reset(int number) {
    const int device = here();
    std::erase_if(blocks_, [&](const Block& block) {
      if (block.device == device) live_bytes_ -= block.bytes;
      return block.device == device;
    });
    std::erase_if(streams_, [&](const Stream& stream) { return stream.device == device; });
    say(number, "cudaDeviceReset", cudaDeviceReset());
  }

  // Several threads at once: each finds its own bytes.
  void at_once(int number) {
    std::vector<std::thread> threads;
    std::vector<int> failed(kThreads);
    const int device = here();
    const std::uint64_t seed = random_();
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937_64 own(seed + static_cast<std::uint64_t>(thread));
        int& bad = failed[static_cast<std::size_t>(thread)];
        bad += cudaSetDevice(device) != cudaSuccess;
        for (int i = 0; i < 30; ++i) {
          void* out = nullptr;
          const std::size_t bytes = 1 + own() % (64 * kKiB);
          const bool pinned = own() % 4 == 0;
          bad += (pinned ? cudaMallocHost(&out, bytes) : cudaMalloc(&out, bytes)) != cudaSuccess;
          bad += cudaMemset(out, thread + 1, bytes) != cudaSuccess;
          std::vector<char> back(bytes);
          bad += cudaMemcpy(back.data(), out, bytes, cudaMemcpyDefault) != cudaSuccess;
          for (const char byte : back) bad += byte != thread + 1;
          bad += (pinned ? cudaFreeHost(out) : cudaFree(out)) != cudaSuccess;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const int bad : failed) say(number, "at once", bad);
  }

  void step(int number) {
    const std::uint64_t choice = below(100);
    if (choice < 30) {
      allocate(number);
    } else if (choice < 45) {
      release(number);
    } else if (choice < 55) {
      fill(number);
    } else if (choice < 65) {
      copy(number);
    } else if (choice < 75) {
      if (!blocks_.empty()) read(number, blocks_[below(blocks_.size())]);
    } else if (choice < 80) {
      ask(number);
    } else if (choice < 86) {
      make_error(number);
    } else if (choice < 90) {
      change_streams(number);
    } else if (choice < 92) {
      order_streams(number);
    } else if (choice < 94) {
      capture(number);
    } else if (choice < 97) {
      const int device = static_cast<int>(below(kDevices));
      say(number, "cudaSetDevice", cudaSetDevice(device), device);
    } else if (choice < 98) {
      say(number, "cudaDeviceSynchronize", cudaDeviceSynchronize());
    } else if (choice < 99) {
      one_in(3) ? at_once(number) : visit_context(number);
    } else if (one_in(3)) {
      reset(number);
    }
  }

  void end() {
    for (const Block& block : blocks_) read(-1, block);
    for (int device = 0; device < kDevices; ++device) {
      cudaSetDevice(device);
      cudaDeviceSynchronize();
    }
    for (const Block& block : blocks_) {
      cudaSetDevice(block.device);
      say(-1, "free", free_block(block));
    }
    for (const Stream& stream : streams_)
      say(-1, "cudaStreamDestroy", cudaStreamDestroy(stream.handle));
    say(-1, "cudaGetLastError", cudaGetLastError());
  }

  std::mt19937_64 random_;
  std::vector<Worker>& workers_;
  std::vector<Block> blocks_;
  std::vector<Stream> streams_;
  std::size_t live_bytes_ = 0;
};

}  // namespace

int main(int count, char** words) {
  if (count != 4) return 2;
  const std::uint64_t first = std::strtoull(words[1], nullptr, 10);
  std::vector<Worker> workers(kThreads);
  for (Worker& worker : workers) worker.call([] { cudaSetDevice(0), cudaFree(nullptr); });
  for (std::uint64_t i = 0; i < std::strtoull(words[2], nullptr, 10); ++i)
    Sequence(first + i, &workers).run(std::atoi(words[3]));
  return 0;
}
