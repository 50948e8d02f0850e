#include <uvmalloc/sim/engine/thread_context.hpp>

#include <array>
#include <atomic>
#include <cstddef>

namespace uvmsim {
namespace {

struct Activity {
  std::atomic<int> retained{0};
  std::atomic<bool> implicit{false};
};

Activity& activity(int device) {
  static std::array<Activity, 64> activities;
  return activities[static_cast<std::size_t>(device)];
}

}  // namespace

ThreadContext::ThreadContext()
    : number_([] {
        static std::atomic<std::uint64_t> next{0};
        return next++;
      }()) {}

ThreadContext& ThreadContext::current() {
  thread_local ThreadContext context;
  return context;
}

int ThreadContext::device() const {
  return stack_.empty() ? chosen_ : stack_.back();
}

void ThreadContext::set_context(int device) {
  if (!stack_.empty()) stack_.pop_back();
  if (device != kNoContext) {
    stack_.push_back(device);
    chosen_ = device;
  }
}

bool ThreadContext::pop_context(int* out_device) {
  if (stack_.empty()) return false;
  *out_device = stack_.back();
  stack_.pop_back();
  return true;
}

void ThreadContext::choose_device(int device) {
  PrimaryContexts::activate(device);
  set_context(device);
}

void PrimaryContexts::activate(int device) {
  activity(device).implicit = true;
}

bool PrimaryContexts::is_active(int device) {
  return activity(device).implicit || activity(device).retained > 0;
}

void PrimaryContexts::retain(int device) {
  ++activity(device).retained;
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

}  // namespace uvmsim
