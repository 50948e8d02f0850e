#include "allocator/engine/engine.hpp"

#include <utility>

#include "allocator/placement/shared_devices.hpp"
#include "runtime/log.hpp"

namespace uvm {

Engine::Engine(std::unique_ptr<DeviceRuntime> runtime, const Configuration& configuration,
               const std::string& figures_file)
    : machine(std::move(runtime), configuration, figures_file),
      state(machine),
      caches(machine.figure_store, thread_cache_bytes(configuration, machine.budget.hard_bytes),
             configuration.decay_seconds > 0 ? policy::kHitsPerClockRead : 0, *this),
      hints(machine, state),
      small_arenas_(*this),
      returner_(state, caches, small_arenas_),
      fenced_(state, machine.stream_work, *this),
      displaced_(state, machine.stream_work, fenced_),
      counts_(state, caches),
      charges_(counts_),
      large_(state, caches, returner_),
      stream_pools(machine, state, caches, fenced_, returner_),
      reclaimer(machine, state, small_arenas_, fenced_, hints, returner_, stream_pools),
      decay(machine, state, caches, displaced_, reclaimer),
      spill_limit(machine, state),
      grower(machine, state, hints, reclaimer, spill_limit),
      pressure_callbacks(machine, state, counts_),
      uses(machine, state, caches, fenced_),
      mover(machine, state, uses, hints, charges_, *this),
      device_sharing(shared_devices(machine), machine.configuration.share_folder),
      live(machine, state, device_sharing, spill_limit),
      groups(machine, state, hints, live),
      device_reset(machine, state, hints, fenced_, stream_pools, reclaimer, live, groups, *this),
      private_memory(machine, state, caches, fenced_, returner_, counts_, hints, stream_pools,
                     *this),
      introspection(machine, state, caches, fenced_, live),
      out_of_memory(machine, state, introspection, spill_limit),
      fork_guard(machine, state, caches, small_arenas_),
      finder_(machine, state, fenced_, displaced_),
      small_(state, caches, small_arenas_, grower),
      escalation_(state, fenced_, displaced_, returner_, large_, pressure_callbacks, finder_,
                  grower, reclaimer, decay) {
  if (!configuration.trace_file.empty()) {
    const std::string why = start_trace(configuration.trace_file);
    if (!why.empty()) log_line(LogLevel::kWarning, why);
  }
  // Started last, because its thread uses the other members: if a later step of the constructor
  // threw, these members would be destroyed before the thread ends.
  device_sharing.start({.held_bytes =
                            [this](int device) {
                              const HeapGuard heap(state);
                              return heap->ledger.bytes_at(Place::device(device));
                            },
                        .release_cached = [this] { reclaimer.release_cached(); },
                        .plan_moves = [this](int device) { live.begin({device}); }});
}

Engine::~Engine() {
  if (!machine.in_forked_child()) device_sharing.stop();
  caches.close();
  if (machine.in_forked_child()) {
    // The driver's objects belong to the parent.
    device_sharing.abandon();
    live.abandon();
    machine.sender.abandon();
    machine.events.abandon();
    return;
  }
  const HeldHeap heap(state);
  for (int device = 0; device < machine.device_count(); ++device) {
    if (heap->statistics.figures().span_bytes.increased != 0) {
      machine.stream_work.wait_for_device(device);
    }
  }
  fenced_.close(heap);
  for (const auto& pool : heap->pools.all()) {
    if (pool->last_work) machine.stream_work.release(*pool->last_work);
  }
  small_arenas_.clear();
  machine.sender.finish_prefetches();
  for (const auto& span : heap->spans.spans()) {
    unpoison(span->base, span->size_bytes);
    machine.span_memory.give_back(*span);
  }
}

void Engine::end_thread(BlockChain blocks, const std::vector<StreamIndex>& streams) {
  returner_.give_back(std::move(blocks));
  stream_pools.note_thread_end(streams);
}

std::string Engine::start_trace(const std::string& file) {
  if (machine.in_forked_child())
    return fmt::format("trace {}: a forked child cannot be traced", file);
  std::vector<TraceRecorder::Device> devices;
  for (const auto& device : machine.devices) devices.push_back({device.name, device.total_bytes});
  return machine.trace.start(
      file, devices, [&](const TraceRecorder::BlockSink& sink, const TraceRecorder::Begin& begin) {
        // No thread may allocate or free a block while the live blocks are listed.
        ThreadCaches::StopTheWorld stopped(caches);
        const HeapGuard heap(state);
        for (const auto& span : heap->spans.spans()) {
          heap->pools.directory().each_block(*span, [&](const Block& block) {
            if (block.now() != BlockState::kLive) return;
            const StreamKey& key = heap->pools.at(block.pool).key;
            sink({key.facade, key.device, block.address(), block.requested_bytes(),
                  block.size_bytes(), key.stream});
          });
        }
        begin();
      });
}

}  // namespace uvm
