#include "hints/prefetch_thread.hpp"

#include <exception>

#include "hints/background_thread.hpp"
#include "hints/policy.hpp"

namespace uvm {

PrefetchThread::~PrefetchThread() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool PrefetchThread::start_with_lock() noexcept {
  if (thread_.joinable()) return true;
  try {
    thread_ = start_background_thread([this] { run(); });
    return true;
  } catch (const std::exception&) {
    return false;  // the caller counts the hint as failed
  }
}

bool PrefetchThread::hand_over(const Request& request) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (size_ == policy::kMostWaitingPrefetches || !start_with_lock()) return false;
    requests_[(first_ + size_) % policy::kMostWaitingPrefetches] = request;
    ++size_;
  }
  changed_.notify_all();
  return true;
}

void PrefetchThread::drain() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return size_ == 0; });
}

void PrefetchThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return size_ != 0 || stops_; });
    if (size_ == 0) return;
    const Request request = requests_[first_];
    lock.unlock();
    done_(request, runtime_.prefetch(request.device, request.hint.address, request.hint.size_bytes,
                                     request.hint.place, request.lane));
    lock.lock();
    first_ = (first_ + 1) % policy::kMostWaitingPrefetches;
    --size_;
    changed_.notify_all();
  }
}

}  // namespace uvm
