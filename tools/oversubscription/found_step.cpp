#include "tools/oversubscription/found_step.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include <uvmalloc/use_range.hpp>
#include "hints/oversubscription/step_learner.hpp"
#include "hints/oversubscription/use_log.hpp"

#include "tools/oversubscription/recorded_order.hpp"

namespace uvm::oversubscription {
namespace {

using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::Recording;
using uvmsim::replay::Touch;

// Kernel numbers are those of the log, from 1.
struct RepeatedKernels {
  live::KernelNumber newest = 0;  // the last kernel of a step that repeats the previous step
  std::uint64_t step_kernels = 0;
};

class KernelReader {
 public:
  explicit KernelReader(const Recording& recording) : recording_(recording) {}

  void read() {
    for (std::size_t index = 0; index < recording_.events.size(); ++index) {
      const Event& event = recording_.events[index];
      if (event.kind == EventKind::kAllocate)
        log_.allocated(address_of(recording_, event.pages.first), event.amount);
      if (event.kind == EventKind::kFree) log_.freed(address_of(recording_, event.pages.first));
      if (is_kernel(event)) add_kernel(index);
    }
  }

  const std::optional<RepeatedKernels>& found() const { return found_; }
  // Returns the event of a kernel, or the number of events for the number after the last kernel.
  std::size_t event_of(live::KernelNumber kernel) const {
    return kernel > events_.size() ? recording_.events.size() : events_[kernel - 1];
  }
  std::size_t kernels() const { return events_.size(); }

 private:
  void add_kernel(std::size_t index) {
    const Event& event = recording_.events[index];
    std::vector<live::UseRange> uses;
    for (std::uint32_t i = 0; i < event.touch_count; ++i) {
      const Touch& touch = recording_.touches.at(event.first_touch + i);
      uses.push_back({address_of(recording_, touch.pages.first), touch.size_bytes,
                      static_cast<std::uint8_t>(touch.access)});
    }
    if (log_.add_kernel(uses) == live::kBeforeLog) return;
    events_.push_back(index);
    learner_.kernel_added();
    // The step repeats if its length stays the same for a whole step: a kernel without a
    // counterpart makes it longer, and a skipped kernel makes it shorter.
    const std::uint64_t step = learner_.step_kernels();
    unchanged_ = step == step_ ? unchanged_ + 1 : 0;
    step_ = step;
    if (step != 0 && unchanged_ >= step) found_ = {log_.newest(), step};
  }

  const Recording& recording_;
  live::UseLog log_{[](std::uintptr_t) { return live::BlockExtent{}; }};  // no older blocks
  live::StepLearner learner_{log_};
  std::vector<std::size_t> events_;  // events of the kernels in the log
  std::uint64_t step_ = 0;
  std::uint64_t unchanged_ = 0;  // kernels since the step's length changed
  std::optional<RepeatedKernels> found_;
};

// Returns the event between this kernel and the next at which the least memory is in use.
std::size_t emptiest_after(const KernelReader& kernels, const std::vector<std::uint64_t>& bytes,
                           live::KernelNumber kernel) {
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(kernels.event_of(kernel));
  const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(kernels.event_of(kernel + 1));
  return static_cast<std::size_t>(std::min_element(begin, end) - bytes.begin()) + 1;
}

}  // namespace

Recording with_found_step(const Recording& recording) {
  KernelReader kernels(recording);
  kernels.read();
  if (!kernels.found()) {
    throw std::invalid_argument(
        fmt::format("the trace has no step: it has no two marks, and its {} kernels on memory from "
                    "16 KiB on repeat none; accepted: a program that repeats a step, or that calls "
                    "uvmalloc.mark where each step begins and at the end",
                    kernels.kernels()));
  }
  const auto [newest, step] = *kernels.found();
  const std::vector<std::uint64_t> bytes = live_bytes(recording);
  // The step does not end after the newest kernel, because the events after that kernel are not
  // part of a repetition, for example the end of the program, which frees all memory.
  live::KernelNumber last = newest - 1;
  for (live::KernelNumber kernel = newest - step; kernel + 1 < newest; ++kernel) {
    if (bytes[emptiest_after(kernels, bytes, kernel) - 1] <
        bytes[emptiest_after(kernels, bytes, last) - 1])
      last = kernel;
  }
  const std::size_t begin = emptiest_after(kernels, bytes, last - step);
  const std::size_t end = emptiest_after(kernels, bytes, last);

  Recording result = recording;
  result.events.clear();
  result.marks.clear();
  const auto add_mark = [&](const char* text) {
    result.marks.push_back({result.events.size(), text});
    Event mark;
    mark.kind = EventKind::kMark;
    result.events.push_back(mark);
  };
  for (std::size_t index = 0; index <= recording.events.size(); ++index) {
    if (index == begin) add_mark("the repeated step");
    if (index == end) add_mark("end");
    if (index == recording.events.size()) break;
    if (recording.events[index].kind != EventKind::kMark)
      result.events.push_back(recording.events[index]);
  }
  return result;
}

}  // namespace uvm::oversubscription
