// Asks for prefetches on a thread of its own, for runtimes whose prefetch waits for its copy before
// it returns. The thread starts at the first prefetch, and ends when its owner does, after those
// that were handed over.
//
// Thread-safe. The lock guards the queue and is never held across a driver call.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>

#include <uvmalloc/device_runtime.hpp>
#include "hints/hint.hpp"

namespace uvm {

class PrefetchThread {
 public:
  struct Request {
    Hint hint;
    int device = 0;
    StreamHandle lane = nullptr;
  };
  static constexpr std::size_t kMostRequests = 256;
  // Told on the thread what became of each request. Must not throw.
  using Done = std::function<void(const Request&, const RuntimeStatus&)>;

  PrefetchThread(const DeviceRuntime& runtime, Done done)
      : runtime_(runtime), done_(std::move(done)) {}
  ~PrefetchThread();
  PrefetchThread(const PrefetchThread&) = delete;
  PrefetchThread& operator=(const PrefetchThread&) = delete;

  // Requests run in the order in which they were handed over. False, with nothing noted, where too
  // many wait or no thread can be made.
  bool hand_over(const Request& request) noexcept;

  // Waits until all requests that were handed over have run.
  void drain() noexcept;

 private:
  bool start_with_lock() noexcept;
  void run();

  const DeviceRuntime& runtime_;
  const Done done_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::array<Request, kMostRequests> requests_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;  // the one that runs counts until it is over
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace uvm
