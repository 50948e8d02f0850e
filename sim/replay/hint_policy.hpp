// Decides about hints in a replay. The replay calls the policy before each event; the policy may
// then send hints to the machine. A policy gets the whole recording, so it could look ahead; a fair
// policy uses only what its program could know at that time. To compare another policy, derive a
// class from HintPolicy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/replay/recording.hpp"

namespace uvmsim::replay {

// The calls and queries that a policy may make before an event. Calls cost virtual time, like a
// program's calls.
class Hints {
 public:
  virtual ~Hints() = default;

  // Returns a stream of the device that is not in the recording; each number has a different
  // stream. The stream's work is ordered with other streams only by explicit waits.
  virtual std::uint32_t side_stream(int device, unsigned number) = 0;
  std::uint32_t side_stream(int device) { return side_stream(device, 0); }
  virtual void prefetch(std::uint32_t stream, PageRange pages, int location) = 0;
  virtual void discard(std::uint32_t stream, PageRange pages) = 0;
  virtual void advise(PageRange pages, Advice advice, int location) = 0;
  // Copies memory that is not in the recording, like an explicit copy of a program.
  virtual void copy(std::uint32_t stream, std::uint64_t bytes, CopyWay way) = 0;
  // Makes `stream` wait for all current work of `other`.
  virtual void wait(std::uint32_t stream, std::uint32_t other) = 0;
  // Records an event after all current work of the stream, like a runtime. Returns the event's
  // number.
  virtual std::uint32_t record(std::uint32_t stream) = 0;
  virtual void wait_for(std::uint32_t stream, std::uint32_t recorded) = 0;
  virtual void host_wait_for(std::uint32_t recorded) = 0;

  virtual std::size_t resident_pages(PageRange pages, int location) const = 0;
  // Return the bytes of the device that managed memory can use, and the bytes that are free now.
  virtual std::size_t usable_bytes(int device) const = 0;
  virtual std::size_t free_bytes(int device) const = 0;
  virtual std::uint64_t now_ns() const = 0;
};

class HintPolicy {
 public:
  virtual ~HintPolicy() = default;

  // Returns whether the replay sends the recorded hints.
  virtual bool keeps_recorded_hints() const { return false; }
  // Called once, before the first event.
  virtual void start(const Recording& /*recording*/) {}
  virtual void before(std::size_t /*event*/, Hints& /*hints*/) {}
};

// Sends no hints: only the driver decides.
class NoHints final : public HintPolicy {};

// Sends the recorded hints.
class RecordedHints final : public HintPolicy {
 public:
  bool keeps_recorded_hints() const override { return true; }
};

}  // namespace uvmsim::replay
