#include "hints/watch_thread.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <unistd.h>

#include "hints/background_thread.hpp"

namespace uvm {

struct WatchThread::Shared {
  Shared(const char* name_of_thread, Look look_at)
      : name(name_of_thread), look(std::move(look_at)) {}

  const char* const name;
  const Look look;
  const pid_t process = getpid();
  mutable std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  bool is_wanted = false;
  bool was_changed = false;
  bool has_ended = true;  // the thread will not call look_ again
  bool is_over = false;   // no thread may start any more
  std::thread thread;
  std::shared_ptr<Shared> itself;  // set if this object is never destroyed

  void run();
  void stop() noexcept;
};

namespace {

// Ends all threads at exit. Never destroyed, because later exit handlers may use it.
class AllWatches {
 public:
  static AllWatches& of_process() {
    static auto* const kAll = new AllWatches;
    return *kAll;
  }
  void add(std::weak_ptr<void> watch, std::function<void()> stop) {
    const std::lock_guard lock(mutex_);
    std::erase_if(stops_, [](const auto& each) { return each.first.expired(); });
    stops_.emplace_back(std::move(watch), std::move(stop));
  }

 private:
  AllWatches() {
    std::atexit([] { of_process().stop_all(); });
  }
  void stop_all() {
    if (getpid() != process_) return;  // a forked child has no threads
    std::unique_lock lock(mutex_);
    const auto stops = std::move(stops_);
    stops_.clear();
    lock.unlock();
    for (const auto& [watch, stop] : stops) {
      if (const auto alive = watch.lock()) stop();
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::vector<std::pair<std::weak_ptr<void>, std::function<void()>>> stops_;
};

}  // namespace

void WatchThread::Shared::run() {
  pthread_setname_np(pthread_self(), name);
  std::unique_lock lock(mutex);
  while (is_wanted && !is_over) {
    was_changed = false;
    lock.unlock();
    const std::chrono::nanoseconds wait = look();
    lock.lock();
    changed.wait_for(lock, wait, [this] { return was_changed || is_over || !is_wanted; });
  }
  has_ended = true;
}

void WatchThread::Shared::stop() noexcept {
  std::thread ended;
  {
    const std::lock_guard lock(mutex);
    is_over = true;
    ended.swap(thread);
  }
  changed.notify_all();
  if (ended.joinable()) ended.join();
}

WatchThread::WatchThread(const char* name, Look look)
    : shared_(std::make_shared<Shared>(name, std::move(look))) {
  Shared* shared = shared_.get();
  AllWatches::of_process().add(shared_, [shared] { shared->stop(); });
}

WatchThread::~WatchThread() {
  if (shared_ != nullptr) shared_->stop();
}

void WatchThread::set_wanted(bool wanted) {
  std::thread before;
  {
    Shared& shared = *shared_;
    const std::lock_guard lock(shared.mutex);
    shared.is_wanted = wanted;
    shared.was_changed = true;
    if (wanted && !shared.is_over && shared.has_ended) {
      before.swap(shared.thread);
      shared.thread = start_background_thread([&shared] { shared.run(); });
      shared.has_ended = false;
    }
  }
  shared_->changed.notify_all();
  if (before.joinable()) before.join();  // the thread no longer calls look_
}

bool WatchThread::runs() const {
  const std::lock_guard lock(shared_->mutex);
  return !shared_->has_ended;
}

void WatchThread::abandon() noexcept {
  // Leaked: the condition variable counts a waiting thread that the child does not have.
  shared_->itself = shared_;
  shared_.reset();
}

}  // namespace uvm
