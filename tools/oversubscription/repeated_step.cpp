#include "tools/oversubscription/repeated_step.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace uvm::oversubscription {
namespace {

using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::Mark;
using uvmsim::replay::Recording;

std::string names_of(const std::vector<Mark>& marks) {
  constexpr std::size_t kMostNames = 20;
  if (marks.empty()) return "no marks";
  std::vector<std::string> names;
  for (const Mark& mark : marks) {
    if (std::find(names.begin(), names.end(), mark.text) == names.end()) names.push_back(mark.text);
  }
  const std::size_t shown = std::min(names.size(), kMostNames);
  return fmt::format("the marks '{}'{}", fmt::join(names.begin(), names.begin() + shown, "', '"),
                     shown == names.size() ? "" : " and others");
}

bool has_kernel(const Recording& recording, std::size_t first, std::size_t last) {
  const auto begin = recording.events.begin();
  return std::any_of(begin + static_cast<std::ptrdiff_t>(first),
                     begin + static_cast<std::ptrdiff_t>(last),
                     [](const Event& each) { return each.kind == EventKind::kKernel; });
}

// Returns the events [first, last) of the step with that mark.
std::pair<std::size_t, std::size_t> step_at(const Recording& recording, const std::string& mark) {
  for (std::size_t i = recording.marks.size(); i-- > 1;) {
    const Mark& begin = recording.marks[i - 1];
    const std::size_t end = recording.marks[i].event;
    if (mark.empty() ? has_kernel(recording, begin.event, end) : begin.text == mark)
      return {begin.event, end};
  }
  if (mark.empty())
    throw std::invalid_argument("no two marks of the trace have a kernel between them");
  throw std::invalid_argument(
      fmt::format("no step begins at the mark '{}' and ends at another mark; the trace has {}",
                  mark, names_of(recording.marks)));
}

// A repetition frees blocks that the repetition before it allocated and did not free, in place of
// the older blocks that the recorded step frees. Returns the new free for each older block. Blocks
// of one size are paired in the order of their allocation.
std::map<std::uint32_t, Event> frees_of_the_next_step(std::span<const Event> step) {
  std::map<std::uint64_t, std::set<std::uint32_t>> from_before;  // older blocks, by size
  std::map<std::uint32_t, const Event*> left;
  for (const Event& event : step) {
    if (event.kind == EventKind::kAllocate) left[event.block] = &event;
    if (event.kind == EventKind::kFree && left.erase(event.block) == 0)
      from_before[event.amount].insert(event.block);
  }
  std::map<std::uint32_t, Event> result;
  for (const auto& [block, event] : left) {
    const auto found = from_before.find(event->amount);
    if (found == from_before.end() || found->second.empty()) continue;
    Event free = *event;
    free.kind = EventKind::kFree;
    result.emplace(*found->second.begin(), free);
    found->second.erase(found->second.begin());
  }
  return result;
}

}  // namespace

Recording repeated_step(const Recording& recording, const std::string& mark, std::size_t times) {
  if (recording.device_count != 1)
    throw std::invalid_argument("the trace is of several devices; accepted: of one");
  const auto [first, last] = step_at(recording, mark);
  Recording result = recording;
  result.events.clear();
  result.marks.clear();
  const auto begin = recording.events.begin();
  const auto step = begin + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(last);
  if (!has_kernel(recording, first, last)) throw std::invalid_argument("the step has no kernel");
  const auto add_mark = [&](const std::string& text) {
    result.marks.push_back({result.events.size(), text});
    Event event;
    event.kind = EventKind::kMark;
    result.events.push_back(event);
  };
  std::copy_if(begin, step, std::back_inserter(result.events),
               [](const Event& each) { return each.kind != EventKind::kMark; });
  const auto frees = frees_of_the_next_step({step + 1, end});
  for (std::size_t time = 0; time < times; ++time) {
    add_mark(std::to_string(time));
    std::transform(step + 1, end, std::back_inserter(result.events), [&](const Event& each) {
      const auto found = frees.find(each.block);
      const bool is_next = time != 0 && each.kind == EventKind::kFree && found != frees.end();
      return is_next ? found->second : each;
    });
  }
  add_mark("end");
  return result;
}

Recording with_shuffled_kernels(const Recording& recording, std::uint64_t seed) {
  Recording result = recording;
  std::mt19937_64 random(seed);
  std::vector<std::size_t> kernels;  // kernels of the current step
  for (std::size_t index = 0; index < result.events.size(); ++index) {
    const EventKind kind = result.events[index].kind;
    if (kind == EventKind::kKernel) kernels.push_back(index);
    if (kind != EventKind::kMark) continue;
    for (std::size_t left = kernels.size(); left > 1; --left)
      std::swap(result.events[kernels[left - 1]], result.events[kernels[random() % left]]);
    kernels.clear();
  }
  return result;
}

}  // namespace uvm::oversubscription
