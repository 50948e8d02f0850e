#include "pipelines/credits/credits.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace uvm {

std::size_t Credits::add_actor(std::string name) {
  Actor actor;
  actor.name = std::move(name);
  actors_.push_back(std::move(actor));
  return actors_.size() - 1;
}

void Credits::check(std::size_t actor) const {
  if (actor < actors_.size()) return;
  throw std::invalid_argument(
      fmt::format("actor {} does not exist; there are {}", actor, actors_.size()));
}

std::size_t Credits::add_register(CreditRegister description) {
  check(description.producer);
  if (description.quota == 0) {
    throw std::invalid_argument(
        fmt::format("register '{}' has a quota of 0; accepted: at least 1", description.name));
  }
  for (auto consumer = description.consumers.begin(); consumer != description.consumers.end();
       ++consumer) {
    check(*consumer);
    if (std::find(description.consumers.begin(), consumer, *consumer) != consumer) {
      throw std::invalid_argument(fmt::format("register '{}' names the consumer '{}' twice",
                                              description.name, actors_[*consumer].name));
    }
    std::vector<std::string> path;
    if (reaches(*consumer, description.producer, &path)) {
      path.insert(path.begin(), actors_[description.producer].name);
      throw std::invalid_argument(fmt::format("register '{}' closes a circle of actors: {}",
                                              description.name, fmt::join(path, " -> ")));
    }
  }
  const std::size_t number = registers_.size();
  for (std::size_t place = 0; place < description.consumers.size(); ++place) {
    actors_[description.consumers[place]].inputs.push_back({number, place});
  }
  actors_[description.producer].outputs.push_back(number);
  Register made;
  made.slots.resize(description.quota);
  for (std::size_t slot = 0; slot < description.quota; ++slot) made.free.push_back(slot);
  made.ready.resize(description.consumers.size());
  made.described = std::move(description);
  registers_.push_back(std::move(made));
  return number;
}

bool Credits::reaches(std::size_t from, std::size_t to, std::vector<std::string>* path) const {
  path->push_back(actors_[from].name);
  if (from == to) return true;
  for (const std::size_t output : actors_[from].outputs) {
    for (const std::size_t consumer : registers_[output].described.consumers) {
      if (reaches(consumer, to, path)) return true;
    }
  }
  path->pop_back();
  return false;
}

// ---- whether an action may start

bool Credits::has_inputs(const Actor& actor) const {
  return std::all_of(actor.inputs.begin(), actor.inputs.end(), [this](const Input& input) {
    return !registers_[input.reg].ready[input.consumer].empty();
  });
}

bool Credits::has_credits(const Actor& actor) const {
  std::size_t left_bytes = memory_bytes_ - held_bytes_;
  for (const std::size_t output : actor.outputs) {
    const Register& reg = registers_[output];
    if (reg.free.empty() || reg.described.slot_bytes > left_bytes) return false;
    left_bytes -= reg.described.slot_bytes;
  }
  return true;
}

bool Credits::can_start(std::size_t number) const {
  check(number);
  const Actor& actor = actors_[number];
  if (actor.closed || actor.running || !has_inputs(actor) || !has_credits(actor)) return false;
  if (memory_bytes_ == kUnlimited) return true;
  trial_.begin(*this, number);
  return !trial_.drain(false);
}

void Credits::check_memory() const {
  trial_.begin(*this);
  const std::optional<std::size_t> stuck = trial_.drain(true);
  if (!stuck) return;
  std::size_t needed_bytes = trial_.held_bytes();
  for (const std::size_t output : actors_[*stuck].outputs) {
    needed_bytes += registers_[output].described.slot_bytes;
  }
  throw std::invalid_argument(
      fmt::format("a memory quota of {} bytes is too small for even one tensor to pass through "
                  "all actors: '{}' needs {} bytes",
                  memory_bytes_, actors_[*stuck].name, needed_bytes));
}

// ---- actions

void Credits::charge(Slot* slot, std::size_t size_bytes) {
  held_bytes_ += size_bytes - slot->bytes;
  slot->bytes = size_bytes;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
}

void Credits::take_slots(Actor* actor) {
  CreditAction action;
  for (const Input& input : actor->inputs) {
    auto& ready = registers_[input.reg].ready[input.consumer];
    action.inputs.push_back({input.reg, ready.front()});
    ready.pop_front();
  }
  for (const std::size_t output : actor->outputs) {
    Register& reg = registers_[output];
    action.outputs.push_back({output, reg.free.front()});
    charge(&reg.slots[reg.free.front()], reg.described.slot_bytes);
    reg.free.pop_front();
  }
  actor->running = std::move(action);
}

CreditAction Credits::start(std::size_t actor, Time now) {
  if (!can_start(actor)) {
    throw std::logic_error(fmt::format("'{}' cannot start", actors_[actor].name));
  }
  take_slots(&actors_[actor]);
  actors_[actor].since = now;
  return *actors_[actor].running;
}

void Credits::set_output_bytes(std::size_t number, std::size_t size_bytes) {
  Register& reg = registers_.at(number);
  const Actor& producer = actors_[reg.described.producer];
  if (size_bytes > reg.described.slot_bytes) {
    throw std::length_error(fmt::format("'{}' made {} bytes for register '{}'; its slots hold {}",
                                        producer.name, size_bytes, reg.described.name,
                                        reg.described.slot_bytes));
  }
  if (!producer.running) throw std::logic_error(fmt::format("'{}' does not run", producer.name));
  for (const CreditSlot& slot : producer.running->outputs) {
    if (slot.reg == number) charge(&reg.slots[slot.index], size_bytes);
  }
}

void Credits::end_action(Actor* actor) {
  for (const CreditSlot& slot : actor->running->outputs) {
    Register& reg = registers_[slot.reg];
    reg.slots[slot.index].references = reg.described.consumers.size();
    for (std::size_t place = 0; place < reg.described.consumers.size(); ++place) {
      messages_.push_back({true, slot, place});
    }
    if (reg.described.consumers.empty()) recycle(slot);
  }
  for (const CreditSlot& slot : actor->running->inputs) messages_.push_back({false, slot, 0});
  actor->running.reset();
  actor->since.reset();
}

void Credits::finish(std::size_t number, Time now) {
  check(number);
  Actor& actor = actors_[number];
  if (!actor.running) {
    throw std::logic_error(fmt::format("'{}' finishes an action and runs none", actor.name));
  }
  end_action(&actor);
  settle(now);
}

void Credits::recycle(CreditSlot slot) {
  Register& reg = registers_[slot.reg];
  charge(&reg.slots[slot.index], 0);
  reg.free.push_back(slot.index);
}

bool Credits::deliver(Time now) {
  if (messages_.empty()) return false;
  const Message message = messages_.front();
  messages_.pop_front();
  Register& reg = registers_[message.slot.reg];
  if (!message.is_request) {
    if (--reg.slots[message.slot.index].references == 0) recycle(message.slot);
  } else if (actors_[reg.described.consumers[message.consumer]].closed) {
    messages_.push_back({false, message.slot, 0});
  } else {
    reg.ready[message.consumer].push_back(message.slot.index);
  }
  settle(now);
  return true;
}

// ---- ends of actors

void Credits::close(std::size_t number, Time now) {
  check(number);
  actors_[number].closed = true;
  settle(now);
}

void Credits::abandon(std::size_t number, Time now) {
  check(number);
  Actor& actor = actors_[number];
  if (actor.running) {
    for (const CreditSlot& slot : actor.running->outputs) recycle(slot);
    for (const CreditSlot& slot : actor.running->inputs) messages_.push_back({false, slot, 0});
    actor.running.reset();
  }
  close(number, now);
}

bool Credits::is_over(std::size_t number) const {
  check(number);
  return actors_[number].closed && !actors_[number].running;
}

bool Credits::has_ended(std::size_t number) const {
  const Actor& actor = actors_[number];
  if (actor.running) return false;
  const auto gets_no_more = [this](const Input& input) {
    const Register& reg = registers_[input.reg];
    return reg.ready[input.consumer].empty() && is_over(reg.described.producer) &&
           std::none_of(messages_.begin(), messages_.end(), [&](const Message& message) {
             return message.is_request && message.slot.reg == input.reg &&
                    message.consumer == input.consumer;
           });
  };
  if (std::any_of(actor.inputs.begin(), actor.inputs.end(), gets_no_more)) return true;
  bool is_read = false;
  for (const std::size_t output : actor.outputs) {
    for (const std::size_t consumer : registers_[output].described.consumers) {
      is_read = true;
      if (!actors_[consumer].closed) return false;
    }
  }
  return is_read;
}

// Closes actors that have ended, and records when other actors became able to act.
void Credits::settle(Time now) {
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t number = 0; number < actors_.size(); ++number) {
      Actor& actor = actors_[number];
      if (!actor.closed && has_ended(number)) actor.closed = changed = true;
      if (!actor.closed) continue;
      for (const Input& input : actor.inputs) {
        auto& ready = registers_[input.reg].ready[input.consumer];
        for (const std::size_t slot : ready) messages_.push_back({false, {input.reg, slot}, 0});
        ready.clear();
      }
    }
  }
  for (Actor& actor : actors_) {
    const bool acts = actor.running || (!actor.closed && has_inputs(actor) && has_credits(actor));
    if (!acts) {
      actor.since.reset();
    } else if (!actor.since) {
      actor.since = now;
    }
  }
}

// ---- timeouts and counters

// A source delays no other actor before the source has started, so it can be overdue only while it
// runs.
bool Credits::must_act(const Actor& actor) const {
  if (!actor.since) return false;
  return actor.inputs.empty() ? actor.running && !actor.outputs.empty() : true;
}

std::optional<std::string> Credits::overdue(Time now, Time limit) const {
  for (const Actor& actor : actors_) {
    if (!must_act(actor) || now - *actor.since <= limit) continue;
    const std::chrono::duration<double> seconds = now - *actor.since;
    if (actor.inputs.empty()) {
      return fmt::format("'{}' has not made a tensor for register '{}' for {:.3f} s", actor.name,
                         registers_[actor.outputs.front()].described.name, seconds.count());
    }
    const Input& input = actor.inputs.front();
    const Register& reg = registers_[input.reg];
    const std::size_t slot =
        actor.running ? actor.running->inputs.front().index : reg.ready[input.consumer].front();
    return fmt::format("'{}' has not acknowledged slot {} of register '{}' for {:.3f} s",
                       actor.name, slot, reg.described.name, seconds.count());
  }
  return std::nullopt;
}

std::optional<Credits::Time> Credits::next_overdue(Time limit) const {
  std::optional<Time> first;
  for (const Actor& actor : actors_) {
    if (!must_act(actor)) continue;
    if (!first || *actor.since + limit < *first) first = *actor.since + limit;
  }
  return first;
}

std::size_t Credits::in_counter(std::size_t number, std::size_t consumer) const {
  const Register& reg = registers_.at(number);
  const auto& consumers = reg.described.consumers;
  const auto found = std::find(consumers.begin(), consumers.end(), consumer);
  if (found == consumers.end()) {
    throw std::invalid_argument(
        fmt::format("actor {} does not read register '{}'", consumer, reg.described.name));
  }
  return reg.ready[static_cast<std::size_t>(found - consumers.begin())].size();
}

}  // namespace uvm
