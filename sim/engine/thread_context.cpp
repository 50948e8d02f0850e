#include "sim/engine/thread_context.hpp"

#include <atomic>
#include <type_traits>

#include "sim/engine/contexts.hpp"
#include "sim/engine/machine.hpp"

namespace uvmsim {
namespace {

struct Activity {
  std::atomic<bool> active{false};
  std::atomic<int> retained{0};
  std::atomic<bool> implicit{false};
  std::atomic<bool> opened{false};
};

Activity& activity(int device) {
  static std::array<Activity, kMostDevices> activities;
  return activities[static_cast<std::size_t>(device)];
}

}  // namespace

int context_for(int device) {
  const ThreadContext& thread = ThreadContext::current();
  return thread.context() == device ? thread.context_number() : device;
}

int memory_context_for(int device) {
  const int number = context_for(device);
  return Contexts::is_green(number) ? device : number;
}

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
  activity(device).active = true;
  open(device);
}

bool PrimaryContexts::is_active(int device) {
  return activity(device).active;
}

void PrimaryContexts::retain(int device) {
  ++activity(device).retained;
  activity(device).active = true;
  open(device);
}

bool PrimaryContexts::release(int device) {
  std::atomic<int>& retained = activity(device).retained;
  int count = retained.load();
  while (count > 0) {
    if (!retained.compare_exchange_weak(count, count - 1)) continue;
    if (count == 1 && !activity(device).implicit) reset(device);
    return true;
  }
  return false;
}

void PrimaryContexts::reset(int device) {
  activity(device).implicit = false;
  activity(device).active = false;
  if (!activity(device).opened.exchange(false)) return;
  if (Machine* machine = Machine::existing()) machine->destroy_context(device);
}

void PrimaryContexts::open(int device) {
  if (!activity(device).opened.exchange(true)) Machine::instance().open_context(device);
}

}  // namespace uvmsim
