// What a policy does while a program uses more memory than a device has. There is one class for
// each policy that moves memory; with `off` and `driver` there is no plan.
#pragma once

#include <cstddef>
#include <memory>

#include <uvmalloc/policy.hpp>
#include "hints/oversubscription/policy.hpp"
#include "hints/oversubscription/victim_choice.hpp"

namespace uvm::live {

class LivePolicy {
 public:
  virtual ~LivePolicy() = default;

  // Returns how many kernels ahead of their use pages are prefetched when the step is known; 0: not
  // ahead.
  virtual std::size_t kernels_ahead() const = 0;
  // Returns whether the plan follows `lru` while PlanJudge finds `lru` better.
  virtual bool is_judged() const = 0;
  virtual const plan::VictimChoice& choice() const = 0;
};

// Evicts the least recently used page when a kernel needs its chunk.
class LruLivePolicy final : public LivePolicy {
 public:
  std::size_t kernels_ahead() const override { return 0; }
  bool is_judged() const override { return false; }
  const plan::VictimChoice& choice() const override { return choice_; }

 private:
  plan::LeastRecentUse choice_;
};

// Prefetches the pages of the learned step, and evicts the page that is needed last. Until a step
// is known, this is the same as `lru`.
class PlannedLivePolicy : public LivePolicy {
 public:
  std::size_t kernels_ahead() const override { return policy::kKernelsAhead; }
  bool is_judged() const override { return false; }
  const plan::VictimChoice& choice() const override { return choice_; }

 private:
  plan::FurthestUse choice_;
};

// Like `planned`, but never much worse than `lru`.
class AutoLivePolicy final : public PlannedLivePolicy {
 public:
  bool is_judged() const override { return true; }
};

// Returns nullptr for a policy that does not move memory.
inline std::unique_ptr<LivePolicy> make_live_policy(Policy policy) {
  switch (policy) {
    case Policy::kAuto:
      return std::make_unique<AutoLivePolicy>();
    case Policy::kPlanned:
      return std::make_unique<PlannedLivePolicy>();
    case Policy::kLru:
      return std::make_unique<LruLivePolicy>();
    case Policy::kDriver:
    case Policy::kOff:
      break;
  }
  return nullptr;
}

}  // namespace uvm::live
