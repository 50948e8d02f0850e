// The file of a trace: its header and its chunks (trace_format.hpp). If the file cannot be written,
// events are counted as dropped, one line in the log says so, and the program continues: it gets no
// signal and never waits for the file. If the program closes the file, the trace ends.
//
// Guarded by the recorder's mutex. Only open() and the functions about call sites allocate.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator/trace/trace_buffer.hpp"
#include "allocator/trace/trace_clock.hpp"

namespace uvm {

struct TraceDevice {
  std::string name;
  std::uint64_t capacity_bytes = 0;
};

class TraceFile {
 public:
  explicit TraceFile(const TraceClock& clock) : clock_(clock) {}
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Makes the file and writes its header. TraceRecorder::start() describes the name. Returns an
  // empty string, or one line that says why the file cannot be made.
  std::string open(const std::string& name, const std::vector<TraceDevice>& devices);
  bool is_open() const noexcept { return descriptor_ >= 0; }
  const std::string& name() const { return name_; }  // the name of the latest trace
  void close() noexcept;
  // Called in a forked child. Closes the descriptor, which shares the parent's file lock.
  void abandon() noexcept;

  // Writes the events of the buffer, or counts them as dropped if they cannot be written.
  void write_events(const TraceBuffer& buffer) noexcept;
  // Writes the blocks that were live at the start, with the time of the start.
  void write_live_blocks(std::vector<TraceEvent>* events) noexcept;
  // Writes a string, cut to kMostTraceTextBytes at the end of a character. Returns the number of
  // the string, or 0 if it could not be written.
  std::uint64_t write_text(std::string_view text) noexcept;

  // Same as write_text(), for a call site. The string of each call site is written once.
  std::uint64_t write_site(std::string_view site) noexcept;
  // Returns the number of the string for a call site in code. Returns 0 if the string was not
  // written yet, or could not be remembered because memory was short.
  std::uint64_t site_of(const void* caller) const noexcept;
  void remember_site(const void* caller, std::uint64_t text) noexcept;

  void count_dropped() noexcept { ++dropped_; }
  std::uint64_t dropped() const noexcept { return dropped_; }

  // A line for the log about the file. The recorder logs it after releasing its mutex.
  struct Line {
    std::string once;  // the key for log_once(); empty: the line is logged each time
    std::string text;
  };
  std::optional<Line> take_line() noexcept;

 private:
  std::string make_header(const std::vector<TraceDevice>& devices);
  bool is_ours() const noexcept;
  void lose() noexcept;
  bool write_chunk(const TraceChunkHeader& header, std::span<const std::byte> content,
                   std::span<const std::byte> more = {}) noexcept;
  bool write_all(const void* content, std::size_t size_bytes) noexcept;

  const TraceClock& clock_;
  std::string name_;
  int descriptor_ = -1;
  dev_t device_ = 0;  // identifies the file, together with the number
  ino_t number_ = 0;
  off_t written_bytes_ = 0;  // size of the header and the whole chunks
  TraceTime start_time_ = 0;
  std::string last_text_;
  std::uint64_t texts_ = 0;
  std::map<std::string, std::uint64_t, std::less<>> sites_;       // string -> its number
  std::unordered_map<const void*, std::uint64_t> sites_of_code_;  // the same, by return address
  std::uint64_t dropped_ = 0;                                     // number of events
  std::optional<Line> line_;                                      // not yet logged
};

}  // namespace uvm
