#include "pipelines/credits/credit_calls.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pipelines/call_errors.hpp"
#include "pipelines/credits/credit_gate.hpp"

struct uvmalloc_credits {
  std::optional<uvm::Credits> building;
  uvm::SteadyCreditClock clock;
  std::unique_ptr<uvm::CreditGate> gate;  // set by uvmalloc_credits_open()
};

namespace {

uvm::Credits& building(uvmalloc_credits* credits) {
  if (!credits->building) throw std::logic_error("the credits are open: nothing can be added");
  return *credits->building;
}
uvm::CreditGate& gate(uvmalloc_credits* credits) {
  if (!credits->gate) throw std::logic_error("the credits are not open yet");
  return *credits->gate;
}
// Limits the time to three years, so that adding it to the clock's time cannot overflow.
uvm::Credits::Time time_of(double seconds) {
  return std::chrono::duration_cast<uvm::Credits::Time>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e8)));
}
std::size_t number(int given) {
  if (given < 0) throw std::invalid_argument("a number is negative");
  return static_cast<std::size_t>(given);
}
// Returns 0, or -1 if `body` throws.
template <class Body>
int call_checked(char* error, size_t capacity, Body body) {
  return uvm::call_guarded(-1, error, capacity, [&] {
    body();
    return 0;
  });
}

}  // namespace

uvmalloc_credits* uvmalloc_credits_create(uint64_t memory_bytes) {
  auto* made = new (std::nothrow) uvmalloc_credits;
  if (made != nullptr) made->building.emplace(memory_bytes);
  return made;
}

void uvmalloc_credits_destroy(uvmalloc_credits* credits) {
  delete credits;
}

int uvmalloc_credits_add_actor(uvmalloc_credits* credits, const char* name, char* error,
                               size_t capacity) {
  return uvm::call_guarded(-1, error, capacity,
                           [&] { return static_cast<int>(building(credits).add_actor(name)); });
}

int uvmalloc_credits_add_register(uvmalloc_credits* credits, const char* name, int producer,
                                  const int* consumers, size_t consumer_count, uint64_t quota,
                                  uint64_t slot_bytes, char* error, size_t capacity) {
  return uvm::call_guarded(-1, error, capacity, [&] {
    std::vector<std::size_t> numbers(consumer_count);
    std::transform(consumers, consumers + consumer_count, numbers.begin(), number);
    return static_cast<int>(building(credits).add_register(
        {name, number(producer), std::move(numbers), quota, slot_bytes}));
  });
}

int uvmalloc_credits_open(uvmalloc_credits* credits, double timeout_seconds, char* error,
                          size_t capacity) {
  return call_checked(error, capacity, [&] {
    std::optional<uvm::Credits::Time> timeout;
    if (timeout_seconds > 0) timeout = time_of(timeout_seconds);
    building(credits).check_memory();
    credits->gate =
        std::make_unique<uvm::CreditGate>(std::move(building(credits)), credits->clock, timeout);
    credits->building.reset();
  });
}

int uvmalloc_credits_start(uvmalloc_credits* credits, int actor, uint64_t* inputs,
                           uint64_t* outputs, char* error, size_t capacity) {
  return uvm::call_guarded(UVMALLOC_CREDITS_FAILED, error, capacity, [&] {
    try {
      const auto action = gate(credits).start(number(actor));
      if (!action) return UVMALLOC_CREDITS_OVER;
      const auto index_of = [](const uvm::CreditSlot& slot) { return uint64_t{slot.index}; };
      std::transform(action->inputs.begin(), action->inputs.end(), inputs, index_of);
      std::transform(action->outputs.begin(), action->outputs.end(), outputs, index_of);
      return UVMALLOC_CREDITS_STARTED;
    } catch (const uvm::CreditTimeoutError& late) {
      uvm::write_text(late.what(), error, capacity);
      return UVMALLOC_CREDITS_LATE;
    } catch (const uvm::CreditStoppedError& stopped) {
      uvm::write_text(stopped.what(), error, capacity);
      return UVMALLOC_CREDITS_STOPPED;
    }
  });
}

int uvmalloc_credits_wait(uvmalloc_credits* credits, int actor, double seconds, char* error,
                          size_t capacity) {
  return uvm::call_guarded(-1, error, capacity, [&] {
    return gate(credits).wait(number(actor), time_of(seconds)) ? 1 : 0;
  });
}

int uvmalloc_credits_set_output_bytes(uvmalloc_credits* credits, int reg, uint64_t size_bytes,
                                      char* error, size_t capacity) {
  return call_checked(error, capacity,
                      [&] { gate(credits).set_output_bytes(number(reg), size_bytes); });
}

int uvmalloc_credits_finish(uvmalloc_credits* credits, int actor, char* error, size_t capacity) {
  return call_checked(error, capacity, [&] { gate(credits).finish(number(actor)); });
}

int uvmalloc_credits_close(uvmalloc_credits* credits, int actor, char* error, size_t capacity) {
  return call_checked(error, capacity, [&] { gate(credits).close(number(actor)); });
}

int uvmalloc_credits_abandon(uvmalloc_credits* credits, int actor, char* error, size_t capacity) {
  return call_checked(error, capacity, [&] { gate(credits).abandon(number(actor)); });
}

void uvmalloc_credits_stop(uvmalloc_credits* credits, const char* reason) {
  call_checked(nullptr, 0, [&] { gate(credits).stop(reason); });
}

uint64_t uvmalloc_credits_peak_bytes(const uvmalloc_credits* credits) {
  return credits->gate ? credits->gate->peak_bytes() : 0;
}

uint64_t uvmalloc_credits_held_bytes(const uvmalloc_credits* credits) {
  return credits->gate ? credits->gate->held_bytes() : 0;
}
