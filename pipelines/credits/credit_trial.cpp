#include "pipelines/credits/credit_trial.hpp"

#include <algorithm>

#include "pipelines/credits/credits.hpp"

namespace uvm {

void CreditTrial::begin(const Credits& credits, std::optional<std::size_t> starting) {
  credits_ = &credits;
  held_bytes_ = 0;
  closed_.resize(credits.actors_.size());
  for (std::size_t actor = 0; actor < closed_.size(); ++actor) {
    closed_[actor] = credits.actors_[actor].closed;
  }
  count_tensors();
  for (std::size_t reg = 0; reg < tensors_.size(); ++reg) load_sizes(reg);
  if (starting) run(*starting);
  for (const Credits::Actor& actor : credits.actors_) {
    if (!actor.running) continue;
    for (const CreditSlot& slot : actor.running->outputs) {
      make(slot.reg, credits.registers_[slot.reg].slots[slot.index].bytes);
    }
  }
  settle();
}

void CreditTrial::count_tensors() {
  tensors_.resize(credits_->registers_.size());
  for (std::size_t reg = 0; reg < tensors_.size(); ++reg) {
    const Credits::Register& from = credits_->registers_[reg];
    auto& counts = tensors_[reg].ready;
    counts.resize(from.ready.size());
    for (std::size_t consumer = 0; consumer < counts.size(); ++consumer) {
      const bool reads = !closed_[from.described.consumers[consumer]];
      counts[consumer] = reads ? from.ready[consumer].size() : 0;
    }
  }
  for (const Credits::Message& message : credits_->messages_) {
    if (!message.is_request) continue;
    const CreditRegister& reg = credits_->registers_[message.slot.reg].described;
    if (closed_[reg.consumers[message.consumer]]) continue;
    ++tensors_[message.slot.reg].ready[message.consumer];
  }
}

// Takes sizes from the consumer with the most unread tensors, because it has read none of the
// remaining tensors.
void CreditTrial::load_sizes(std::size_t reg) {
  const Credits::Register& from = credits_->registers_[reg];
  Tensors& to = tensors_[reg];
  to.bytes.clear();
  to.first = 0;
  const auto most = std::max_element(to.ready.begin(), to.ready.end());
  if (most == to.ready.end() || *most == 0) return;
  const auto consumer = static_cast<std::size_t>(most - to.ready.begin());
  for (const std::size_t slot : from.ready[consumer]) to.bytes.push_back(from.slots[slot].bytes);
  for (const Credits::Message& message : credits_->messages_) {
    if (message.is_request && message.slot.reg == reg && message.consumer == consumer) {
      to.bytes.push_back(from.slots[message.slot.index].bytes);
    }
  }
  for (const std::size_t size_bytes : to.bytes) held_bytes_ += size_bytes;
}

// ---- actions

bool CreditTrial::has_inputs(std::size_t actor) const {
  const auto& inputs = credits_->actors_[actor].inputs;
  return std::all_of(inputs.begin(), inputs.end(), [this](const Credits::Input& input) {
    return tensors_[input.reg].ready[input.consumer] != 0;
  });
}

bool CreditTrial::has_credits(std::size_t actor) const {
  std::size_t left_bytes = credits_->memory_bytes_ - held_bytes_;
  for (const std::size_t output : credits_->actors_[actor].outputs) {
    const CreditRegister& reg = credits_->registers_[output].described;
    if (tensors_[output].count() == reg.quota || reg.slot_bytes > left_bytes) return false;
    left_bytes -= reg.slot_bytes;
  }
  return true;
}

void CreditTrial::read_inputs(std::size_t actor) {
  for (const Credits::Input& input : credits_->actors_[actor].inputs) {
    --tensors_[input.reg].ready[input.consumer];
    drop_consumed(input.reg);
  }
}

void CreditTrial::make(std::size_t reg, std::size_t size_bytes) {
  Tensors& tensors = tensors_[reg];
  const auto& consumers = credits_->registers_[reg].described.consumers;
  tensors.bytes.push_back(size_bytes);
  held_bytes_ += size_bytes;
  for (std::size_t consumer = 0; consumer < consumers.size(); ++consumer) {
    if (!closed_[consumers[consumer]]) ++tensors.ready[consumer];
  }
  drop_consumed(reg);
}

void CreditTrial::drop_consumed(std::size_t reg) {
  Tensors& tensors = tensors_[reg];
  std::size_t unread = 0;
  for (const std::size_t ready : tensors.ready) unread = std::max(unread, ready);
  while (tensors.count() > unread) held_bytes_ -= tensors.bytes[tensors.first++];
}

void CreditTrial::run(std::size_t actor) {
  read_inputs(actor);
  for (const std::size_t output : credits_->actors_[actor].outputs) {
    make(output, credits_->registers_[output].described.slot_bytes);
  }
}

// ---- ends of actors

bool CreditTrial::has_ended(std::size_t number) const {
  const Credits::Actor& actor = credits_->actors_[number];
  const auto gets_no_more = [this](const Credits::Input& input) {
    return tensors_[input.reg].ready[input.consumer] == 0 &&
           closed_[credits_->registers_[input.reg].described.producer];
  };
  if (std::any_of(actor.inputs.begin(), actor.inputs.end(), gets_no_more)) return true;
  bool is_read = false;
  for (const std::size_t output : actor.outputs) {
    for (const std::size_t consumer : credits_->registers_[output].described.consumers) {
      is_read = true;
      if (!closed_[consumer]) return false;
    }
  }
  return is_read;
}

// The tensors that wait for the actor count as read.
void CreditTrial::close(std::size_t actor) {
  closed_[actor] = true;
  for (const Credits::Input& input : credits_->actors_[actor].inputs) {
    tensors_[input.reg].ready[input.consumer] = 0;
    drop_consumed(input.reg);
  }
}

void CreditTrial::settle() {
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t actor = 0; actor < closed_.size(); ++actor) {
      if (closed_[actor] || !has_ended(actor)) continue;
      close(actor);
      changed = true;
    }
  }
}

// ---- the trial

std::optional<std::size_t> CreditTrial::run_one(bool sources) {
  for (std::size_t number = 0; number < closed_.size(); ++number) {
    const bool is_source = credits_->actors_[number].inputs.empty();
    const bool chosen = sources ? is_source && wanted_[number] : !is_source;
    if (!chosen || closed_[number] || !has_inputs(number) || !has_credits(number)) continue;
    run(number);
    settle();
    return number;
  }
  return std::nullopt;
}

std::optional<std::size_t> CreditTrial::drain(bool with_all_sources) {
  must_run_.resize(closed_.size());
  for (std::size_t number = 0; number < closed_.size(); ++number) {
    must_run_[number] = with_all_sources && credits_->actors_[number].inputs.empty();
  }
  // An action reads one tensor of each input, so no source runs more often than there are slots.
  std::size_t most_runs = 1;
  for (const Credits::Register& reg : credits_->registers_) most_runs += reg.described.quota;
  for (most_runs *= closed_.size(); most_runs != 0; --most_runs) {
    if (run_one(false)) continue;
    const std::optional<std::size_t> waiting = find_waiting();
    if (const std::optional<std::size_t> source = run_one(true)) {
      must_run_[*source] = false;
    } else if (waiting) {
      return waiting;
    } else {
      const auto left = std::find(must_run_.begin(), must_run_.end(), true);
      if (left == must_run_.end()) return std::nullopt;
      return static_cast<std::size_t>(left - must_run_.begin());
    }
  }
  return 0;
}

// Returns an actor with a waiting tensor. Sets wanted_ to must_run_ and the sources on which the
// empty inputs of all such actors depend.
std::optional<std::size_t> CreditTrial::find_waiting() {
  const auto& actors = credits_->actors_;
  const auto is_empty = [this](const Credits::Input& input) {
    return tensors_[input.reg].ready[input.consumer] == 0;
  };
  std::optional<std::size_t> found;
  starved_.assign(actors.size(), false);
  for (std::size_t number = actors.size(); number-- > 0;) {
    const auto& inputs = actors[number].inputs;
    if (std::all_of(inputs.begin(), inputs.end(), is_empty)) continue;
    found = number;
    starved_[number] = true;
  }
  // Walks towards the sources; no path is longer than the number of actors.
  for (std::size_t round = 0; round < actors.size(); ++round) {
    for (std::size_t number = 0; number < actors.size(); ++number) {
      if (!starved_[number]) continue;
      for (const Credits::Input& input : actors[number].inputs) {
        if (is_empty(input)) {
          starved_[credits_->registers_[input.reg].described.producer] = true;
        }
      }
    }
  }
  wanted_ = must_run_;
  for (std::size_t number = 0; number < actors.size(); ++number) {
    if (starved_[number] && actors[number].inputs.empty()) wanted_[number] = true;
  }
  return found;
}

}  // namespace uvm
