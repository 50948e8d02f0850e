// Who decides about hints in a replay. A policy is asked before each event and may send hints to
// the machine. It sees the whole recording, so it may look ahead; an honest one looks only as far
// as the program it stands for could know. Derive from HintPolicy to compare another policy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/replay/recording.hpp"

namespace uvmsim::replay {

// What a policy can do and ask, at one moment of a replay. Calls cost virtual time as a program's
// do.
class Hints {
 public:
  virtual ~Hints() = default;

  // A stream of the device beside those of the recording, for each number another one. Work there
  // is ordered with others by waits alone.
  virtual std::uint32_t side_stream(int device, unsigned number) = 0;
  std::uint32_t side_stream(int device) { return side_stream(device, 0); }
  virtual void prefetch(std::uint32_t stream, PageRange pages, int location) = 0;
  virtual void discard(std::uint32_t stream, PageRange pages) = 0;
  virtual void advise(PageRange pages, Advice advice, int location) = 0;
  // An explicit copy of memory that the recording lacks.
  virtual void copy(std::uint32_t stream, std::uint64_t bytes, CopyWay way) = 0;
  // `stream` waits for all that is on `other` so far.
  virtual void wait(std::uint32_t stream, std::uint32_t other) = 0;
  // The number of what is on the stream so far, as an event of a runtime stands for it.
  virtual std::uint32_t record(std::uint32_t stream) = 0;
  virtual void wait_for(std::uint32_t stream, std::uint32_t recorded) = 0;
  virtual void host_wait_for(std::uint32_t recorded) = 0;

  virtual std::size_t resident_pages(PageRange pages, int location) const = 0;
  // What managed memory can have of the device, and what is free now.
  virtual std::size_t usable_bytes(int device) const = 0;
  virtual std::size_t free_bytes(int device) const = 0;
  virtual std::uint64_t now_ns() const = 0;
};

class HintPolicy {
 public:
  virtual ~HintPolicy() = default;

  // Whether the hints that were recorded are sent again.
  virtual bool keeps_recorded_hints() const { return false; }
  // Once, before the first event.
  virtual void start(const Recording& /*recording*/) {}
  virtual void before(std::size_t /*event*/, Hints& /*hints*/) {}
};

// The machine is left to its driver.
class NoHints final : public HintPolicy {};

// As it was recorded.
class RecordedHints final : public HintPolicy {
 public:
  bool keeps_recorded_hints() const override { return true; }
};

}  // namespace uvmsim::replay
