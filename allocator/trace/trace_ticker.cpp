#include <uvmalloc/allocator/trace/trace_ticker.hpp>

#include <signal.h>
#include <time.h>

namespace uvm {

void TraceTicker::start() noexcept {
  if (runs_) return;
  ends_ = false;
  tick_ = kNone + 1;
  // The program's signals are for the program's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  runs_ = pthread_create(&thread_, nullptr, run, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!runs_) tick_ = kNone;
}

void TraceTicker::stop() noexcept {
  if (!runs_) return;
  ends_ = true;
  pthread_join(thread_, nullptr);
  forget();
}

void TraceTicker::forget() noexcept {
  runs_ = false;
  tick_ = kNone;
}

void* TraceTicker::run(void* self) {
  auto& ticker = *static_cast<TraceTicker*>(self);
  pthread_setname_np(pthread_self(), "uvmalloc-tick");
  constexpr timespec kPeriod{0, kPeriodNs};
  while (!ticker.ends_.load(std::memory_order_relaxed)) {
    nanosleep(&kPeriod, nullptr);
    ticker.tick_.fetch_add(1, std::memory_order_relaxed);
  }
  return nullptr;
}

}  // namespace uvm
