#include <uvmalloc/sim/engine/thread_context.hpp>

#include <atomic>
#include <type_traits>

#include <uvmalloc/sim/engine/machine.hpp>

namespace uvmsim {
namespace {

struct Activity {
  std::atomic<int> retained{0};
  std::atomic<bool> implicit{false};
  std::atomic<bool> opened{false};
};

Activity& activity(int device) {
  static std::array<Activity, kMostDevices> activities;
  return activities[static_cast<std::size_t>(device)];
}

}  // namespace

ThreadContext::ThreadContext()
    : number_([] {
        static std::atomic<std::uint64_t> next{0};
        return next++;
      }()) {}

ThreadContext& ThreadContext::current() {
  static_assert(std::is_trivially_destructible_v<ThreadContext>);
  thread_local ThreadContext context;
  return context;
}

int ThreadContext::device() const {
  return depth_ == 0 ? chosen_ : context();
}

void ThreadContext::set_context(int number) {
  if (depth_ != 0) --depth_;
  if (number != kNoContext) {
    stack_[depth_++] = number;
    chosen_ = context();
  }
}

bool ThreadContext::push_context(int number) {
  if (depth_ == stack_.size()) return false;
  stack_[depth_++] = number;
  return true;
}

bool ThreadContext::pop_context(int* out_number) {
  if (depth_ == 0) return false;
  *out_number = stack_[--depth_];
  return true;
}

void ThreadContext::choose_device(int device) {
  PrimaryContexts::activate(device);
  set_context(device);
}

void PrimaryContexts::activate(int device) {
  activity(device).implicit = true;
  open(device);
}

bool PrimaryContexts::is_active(int device) {
  return activity(device).implicit || activity(device).retained > 0;
}

void PrimaryContexts::retain(int device) {
  ++activity(device).retained;
  open(device);
}

bool PrimaryContexts::release(int device) {
  std::atomic<int>& retained = activity(device).retained;
  int count = retained.load();
  while (count > 0) {
    if (retained.compare_exchange_weak(count, count - 1)) return true;
  }
  return false;
}

void PrimaryContexts::reset(int device) {
  activity(device).retained = 0;
  activity(device).implicit = false;
}

void PrimaryContexts::open(int device) {
  if (!activity(device).opened.exchange(true)) Machine::instance().open_context(device);
}

}  // namespace uvmsim
