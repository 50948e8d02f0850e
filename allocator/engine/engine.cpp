#include "allocator/engine/engine.hpp"

#include <utility>

#include "allocator/placement/shared_devices.hpp"
#include "runtime/log.hpp"

namespace uvm {

Engine::Engine(std::unique_ptr<DeviceRuntime> runtime, const Configuration& configuration,
               const std::string& figures_file)
    : machine(std::move(runtime), configuration, figures_file),
      state(machine),
      small_arenas(*this),
      caches(machine.figure_store, thread_cache_bytes(configuration, machine.budget.hard_bytes),
             configuration.decay_seconds > 0 ? policy::kHitsPerClockRead : 0, *this),
      returner(state, caches, small_arenas),
      fenced(state, machine.stream_work, *this),
      displaced(state, machine.stream_work, fenced),
      hints(machine, state),
      counts(state, caches),
      charges(counts),
      large(state, caches, returner),
      stream_pools(machine, state, caches, fenced, returner),
      reclaimer(machine, state, small_arenas, fenced, hints, returner, stream_pools),
      decay(machine, state, caches, displaced, reclaimer),
      spill_limit(machine, state),
      grower(machine, state, hints, reclaimer, spill_limit),
      finder(machine, state, fenced, displaced),
      small(state, caches, small_arenas, grower),
      pressure_callbacks(machine, state, counts),
      escalation(state, fenced, displaced, returner, large, pressure_callbacks, finder, grower,
                 reclaimer, decay),
      uses(machine, state, caches, fenced),
      mover(machine, state, uses, hints, charges, *this),
      device_sharing(shared_devices(machine), machine.configuration.share_folder),
      live(machine, state, device_sharing, spill_limit),
      device_reset(machine, state, hints, fenced, stream_pools, reclaimer, live, *this),
      private_memory(machine, state, caches, fenced, returner, counts, hints, stream_pools, *this),
      introspection(machine, state, caches, fenced, live),
      out_of_memory(machine, state, introspection, spill_limit),
      fork_guard(machine, state, caches, small_arenas) {
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
  fenced.close(heap);
  for (const auto& pool : heap->pools.all()) {
    if (pool->last_work) machine.stream_work.release(*pool->last_work);
  }
  small_arenas.clear();
  machine.sender.finish_prefetches();
  for (const auto& span : heap->spans.spans()) {
    unpoison(span->base, span->size_bytes);
    machine.span_memory.give_back(*span);
  }
}

void Engine::end_thread(BlockChain blocks, const std::vector<StreamIndex>& streams) {
  returner.give_back(std::move(blocks));
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
