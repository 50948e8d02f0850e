// Calls prefetches on a separate thread, for runtimes in which a prefetch returns only after the
// copy. The thread starts with the first request. The destructor waits until all requests have run.
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
#include "hints/policy.hpp"

namespace uvm {

class PrefetchThread {
 public:
  struct Request {
    Hint hint;
    int device = 0;
    StreamHandle lane = nullptr;
  };
  // Called on the prefetch thread with each request's result. Must not throw.
  using Done = std::function<void(const Request&, const RuntimeStatus&)>;

  PrefetchThread(const DeviceRuntime& runtime, Done done)
      : runtime_(runtime), done_(std::move(done)) {}
  ~PrefetchThread();
  PrefetchThread(const PrefetchThread&) = delete;
  PrefetchThread& operator=(const PrefetchThread&) = delete;

  // Requests run in order. Returns false, without an effect, if kMostWaitingPrefetches are queued
  // or no thread can be created.
  bool hand_over(const Request& request) noexcept;

  // Waits until all requests have run.
  void drain() noexcept;

 private:
  bool start_with_lock() noexcept;
  void run();

  const DeviceRuntime& runtime_;
  const Done done_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::array<Request, policy::kMostWaitingPrefetches> requests_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;  // includes the request that is running
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace uvm
