#include "pipelines/credits/credit_gate.hpp"

#include <algorithm>
#include <utility>

namespace uvm {

CreditGate::CreditGate(Credits credits, CreditClock& clock, std::optional<Credits::Time> timeout)
    : credits_(std::move(credits)), clock_(clock), timeout_(timeout) {
  credits_.check_memory();
}

std::optional<CreditAction> CreditGate::start(std::size_t actor) {
  std::unique_lock lock(mutex_);
  wait_until(lock, actor, std::nullopt);
  if (stopped_) throw CreditStoppedError(*stopped_);
  if (late_) throw CreditTimeoutError(*late_);
  if (!credits_.can_start(actor)) return std::nullopt;
  return credits_.start(actor, clock_.now());
}

bool CreditGate::wait(std::size_t actor, Credits::Time most) {
  std::unique_lock lock(mutex_);
  return wait_until(lock, actor, clock_.now() + most);
}

bool CreditGate::wait_until(std::unique_lock<std::mutex>& lock, std::size_t actor,
                            std::optional<Credits::Time> until) {
  while (true) {
    const Credits::Time now = clock_.now();
    if (!late_ && timeout_) {
      late_ = credits_.overdue(now, *timeout_);
      if (late_) changed_.notify_all();
    }
    if (stopped_ || late_ || credits_.can_start(actor) || credits_.is_over(actor)) return true;
    if (until && now >= *until) return false;
    std::optional<Credits::Time> wake = until;
    if (timeout_) {
      if (const auto overdue = credits_.next_overdue(*timeout_)) {
        // Just after the limit, because overdue() reports only actors that exceed it.
        const Credits::Time after = *overdue + std::chrono::microseconds(1);
        wake = until ? std::min(*until, after) : after;
      }
    }
    clock_.wait(lock, changed_, wake);
  }
}

void CreditGate::set_output_bytes(std::size_t reg, std::size_t size_bytes) {
  std::lock_guard lock(mutex_);
  credits_.set_output_bytes(reg, size_bytes);
}

void CreditGate::finish(std::size_t actor) {
  std::lock_guard lock(mutex_);
  credits_.finish(actor, clock_.now());
  deliver_and_wake();
}

void CreditGate::close(std::size_t actor) {
  std::lock_guard lock(mutex_);
  credits_.close(actor, clock_.now());
  deliver_and_wake();
}

void CreditGate::abandon(std::size_t actor) {
  std::lock_guard lock(mutex_);
  credits_.abandon(actor, clock_.now());
  deliver_and_wake();
}

void CreditGate::deliver_and_wake() {
  credits_.deliver_all(clock_.now());
  changed_.notify_all();
}

void CreditGate::stop(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!stopped_) stopped_ = reason;
  changed_.notify_all();
}

std::size_t CreditGate::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return credits_.peak_bytes();
}

std::size_t CreditGate::held_bytes() const {
  std::lock_guard lock(mutex_);
  return credits_.held_bytes();
}

}  // namespace uvm
