// write_trace FILE [EVENTS]: writes a trace of known content for tests of readers in other
// languages. With EVENTS, writes that many allocations and frees instead.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "allocator/trace/trace_recorder.hpp"

#include "tests/support/sizes.hpp"

namespace {

using namespace uvm;

TraceBlock block(Facade facade, int device, std::uintptr_t address, std::size_t requested_bytes,
                 std::size_t block_bytes) {
  return {facade,          device,      reinterpret_cast<const void*>(address),
          requested_bytes, block_bytes, nullptr};
}

void record_known(TraceRecorder* recorder) {
  const TraceBlock first = block(Facade::kDevice, 1, 0x200000, 3 * kMiB, 4 * kMiB);
  const TraceBlock second = block(Facade::kHost, 0, 0x800000, 100, 512);
  const auto lane = reinterpret_cast<StreamHandle>(0x77);
  recorder->stream_seen(recorder->now(), 1, lane);
  recorder->allocated(recorder->now(), first);
  // In the file, the chunk of another thread comes before the first thread's chunk.
  std::thread([&] { recorder->allocated(recorder->now(), second); }).join();
  recorder->used(recorder->now(), first.address, 1, lane);
  recorder->moved(recorder->now(), first.address, 3 * kMiB, Place::device(1), Place::host(), lane);
  recorder->advised(recorder->now(), 1, first.address, 4 * kMiB, Advice::kSetPreferredLocation,
                    Place::host());
  recorder->prefetched(recorder->now(), 1, first.address, 4 * kMiB, Place::device(0), lane);
  recorder->discarded(recorder->now(), 1, first.address, 4 * kMiB, lane);
  recorder->out_of_memory(recorder->now(), block(Facade::kDevice, 0, 0, 9 * kMiB, 10 * kMiB),
                          {RuntimeError::kOutOfMemory, 2, "NO_MEMORY", "call"});
  recorder->mark("step \"1\", caf\xc3\xa9");
  recorder->freed(recorder->now(), first);
}

void record_many(TraceRecorder* recorder, long events) {
  for (long i = 0; i < events / 2; ++i) {
    const TraceBlock one =
        block(Facade::kDevice, 0, 4096u * (1 + static_cast<std::uintptr_t>(i) % 1000), 100, 512);
    recorder->allocated(recorder->now(), one);
    recorder->freed(recorder->now(), one);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  TraceRecorder recorder;
  const std::string refusal =
      recorder.start(arguments[1], {{"first card", 8192 * kMiB}, {"second card", 4096 * kMiB}},
                     [](const auto& sink, const auto&) {
                       sink(block(Facade::kPinned, 0, 0xf00000, 2 * kMiB, 2 * kMiB));
                     });
  if (!refusal.empty()) {
    std::fprintf(stderr, "%s\n", refusal.c_str());
    return 1;
  }
  if (count > 2) {
    record_many(&recorder, std::atol(arguments[2]));
  } else {
    record_known(&recorder);
  }
  recorder.stop();
  return 0;
}
