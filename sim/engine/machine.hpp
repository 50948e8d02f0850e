// The simulated machine: devices, memory of every kind, residency, streams and events behind one
// interface that the stand-ins translate into theirs. The machine is made at first use and lives
// until the process ends. One mutex guards all of it, and is never held while the program's code, a
// copy of bytes or another library runs. A child that is forked after the machine was made has no
// machine: lost_in_fork() is true, and no other function may be called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/allocation.hpp"
#include "sim/engine/arena.hpp"
#include "sim/engine/capture.hpp"
#include "sim/engine/cost_model.hpp"
#include "sim/engine/device_memory.hpp"
#include "sim/engine/export.hpp"
#include "sim/engine/graph.hpp"
#include "sim/engine/host_memory.hpp"
#include "sim/engine/host_touches.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/ordinary_memory.hpp"
#include "sim/engine/policy.hpp"
#include "sim/engine/pools.hpp"
#include "sim/engine/report.hpp"
#include "sim/engine/residency.hpp"
#include "sim/engine/settings.hpp"
#include "sim/engine/status.hpp"
#include "sim/engine/timeline.hpp"
#include "sim/engine/virtual_memory.hpp"

namespace uvmsim {

class UVMSIM_EXPORT Machine {
 public:
  static Machine& instance();
  // Returns null before the first use, and in a forked child that has lost the machine.
  static Machine* existing();
  static bool lost_in_fork();

  int device_count() const { return settings_.devices; }
  bool has_device(int device) const { return device >= 0 && device < settings_.devices; }

  // ---- memory
  // False if the process lacks address space or descriptors; then all allocations fail.
  bool has_address_space() const { return managed_.size() != 0 && device_only_.size() != 0; }
  bool shares_host_memory() const { return settings_.machine.memory == Profile::kIntegrated; }
  // Whether devices reach the program's ordinary memory, and whether over a coherent link.
  bool reaches_ordinary_memory() const { return ordinary_ != nullptr; }
  bool has_concurrent_access() const { return settings_.machine.concurrent_managed_access; }
  bool is_coherent() const { return settings_.machine.memory == Profile::kCoherent; }
  MemoryUse memory_use(int device);
  void reset_peak_use(int device);
  Status set_capacity(int device, std::size_t bytes);
  // Call this at the first use of a device. The device's context takes a part of the device's
  // memory until destroy_context().
  void open_context(int device);
  // Destroys all memory, streams and events of the context with that number; for a primary context,
  // also ends captures of its per-thread streams and its peer access, and makes its default pool
  // current again.
  void destroy_context(int context);

  Status allocate_managed(int device, std::size_t bytes, unsigned flags, void** out);
  Status allocate_device(int device, std::size_t bytes, void** out);
  // Allocates device memory for `rows` rows of `width_bytes`. Each row starts at an aligned
  // address.
  Status allocate_rows(int device, std::size_t width_bytes, std::size_t rows,
                       std::size_t* out_pitch_bytes, void** out);
  Status allocate_pinned(int device, std::size_t bytes, unsigned flags, void** out);
  // Free memory by its start address. Like the modelled calls, first wait for the work of the
  // device, in virtual time; free_memory() only for Wait::kYes.
  Status free_memory(void* address, Wait wait);
  Status free_pinned(void* address);
  Status register_host(int device, void* address, std::size_t bytes, unsigned flags);
  Status unregister_host(void* address);

  // ---- pools
  PoolHandle default_pool(int device);
  PoolHandle current_pool(int device);
  Status set_current_pool(int device, PoolHandle pool);
  // `most_bytes` limits the bytes in use at once; 0: no limit.
  PoolHandle create_pool(int device, std::uint64_t most_bytes);
  // kInvalidValue for a default pool. Allocations from the pool stay valid.
  Status destroy_pool(PoolHandle pool);
  std::optional<Pool> find_pool(PoolHandle pool);
  Status set_release_threshold(PoolHandle pool, std::uint64_t bytes);
  Status reset_pool_high(PoolHandle pool);
  Status allocate_from_pool(PoolHandle pool, std::size_t bytes, void** out);

  // ---- memory shared with other processes
  // Describes the allocation that holds `address`, for another process to open while this process
  // lives. The memory is charged only to its owner. The other process sees the owner's changes.
  Status export_memory(const void* address, SharedMemory* out);
  // Opening an allocation again returns the same address; each opening needs its own
  // close_imported(). Returns kInvalidContext for memory of this process, kNotFound if the other
  // process is gone.
  Status import_memory(int device, const SharedMemory& shared, void** out);
  Status close_imported(void* address);

  // ---- memory that the program maps itself. Sizes are multiples of kMappingGranularityBytes.
  Status reserve_addresses(std::size_t bytes, std::size_t alignment_bytes, void** out);
  // Returns kInvalidValue if something is mapped in the range.
  Status free_addresses(void* address, std::size_t bytes);
  // A piece lives until its handles are released and its mappings removed.
  Status create_piece(int device, std::size_t bytes, PieceHandle* out);
  Status release_piece(PieceHandle handle);
  Status retain_piece(const void* address, PieceHandle* out);
  std::optional<int> device_of_piece(PieceHandle handle);
  // Devices may use a new mapping only after set_access().
  Status map_piece(void* address, std::size_t bytes, PieceHandle handle);
  // The range must consist of whole mappings. Waits for all devices.
  Status unmap_pieces(void* address, std::size_t bytes);
  Status set_access(const void* address, std::size_t bytes, int device, bool may_use);
  Status access_of(const void* address, int device, bool* out);

  // The allocation that holds the address, if any.
  std::optional<Allocation> find(const void* address);
  void* device_view(const void* address);

  // ---- placement
  // The range is rounded outward to whole pages. kInvalidValue unless all of it is managed memory,
  // or mapped ordinary memory that devices reach.
  Status advise(MemoryRange range, Advice advice, int location);
  Status prefetch(int device, StreamHandle stream, MemoryRange range, int location);
  // The range is rounded inward to whole pages. Like the modelled driver, does nothing and returns
  // kOk for a range without a whole page, or of ordinary memory.
  Status discard(int device, StreamHandle stream, MemoryRange range);
  Status placement(MemoryRange range, RangePlacement* out);
  // Whether the calls above accept the range.
  bool has_placement(MemoryRange range);
  Status policy_at(const void* address, Policy* out);
  Status residency(MemoryRange range, int location, std::size_t* out_bytes);
  // Writes the location of the page at every `step_bytes` of the range: a device, kHost or
  // kNoLocation. A page with copies at several places counts at the first device.
  Status sample_locations(MemoryRange range, std::size_t step_bytes, std::vector<int>* out);

  // ---- work: runs at once, or is recorded if the stream is being captured. If a capture forbids a
  // call, here and below, the status names the broken rule.
  // On a capturing stream, kernel() returns kCaptureUnsupported: its caller does the kernel's work,
  // so that work cannot be recorded.
  Status kernel(int device, StreamHandle stream, const uvmsim_access* accesses, std::size_t count,
                const KernelWork& work);
  Status launch_kernel(int device, StreamHandle stream, Kernel kernel);
  Status run_host_function(int device, StreamHandle stream, const HostFunction& function);
  Status copy(int device, StreamHandle stream, const Copy& copy, Wait wait);
  Status fill(int device, StreamHandle stream, const Fill& fill, Wait wait);

  bool peer_access(int device, int peer);
  Status enable_peer_access(int device, int peer);
  Status disable_peer_access(int device, int peer);
  // Whether copies from another device are faster than from the host, as over NVLink.
  bool has_fast_peer_links() const {
    const Costs& costs = costs_.costs();
    return costs.between_devices_bytes_per_ns > costs.to_device_bytes_per_ns;
  }

  // ---- streams, events, time
  StreamHandle create_stream(int device, unsigned flags, bool blocking, int priority);
  Status destroy_stream(StreamHandle handle);
  // Returns a snapshot, or nothing if the handle is invalid.
  std::optional<Stream> find_stream(int device, StreamHandle handle);
  Status query_stream(int device, StreamHandle handle);
  Status wait_for_stream(int device, StreamHandle handle);
  Status wait_for_device(int device);
  // Whether the device has incomplete work.
  bool is_busy(int device);

  EventHandle create_event(int device, unsigned flags, bool timing);
  Status destroy_event(EventHandle handle);
  // Returns the flags of the event, or nothing if the handle is invalid.
  std::optional<unsigned> event_flags(EventHandle handle);
  // kInvalidValue for kExternal if the stream is not being captured.
  Status record_event(int device, EventHandle event, StreamHandle stream,
                      EventScope scope = EventScope::kInternal);
  Status make_stream_wait(int device, StreamHandle stream, EventHandle event,
                          EventScope scope = EventScope::kInternal);
  Status query_event(EventHandle event);
  Status wait_for_event(EventHandle event);
  // kInvalidHandle if a handle is invalid, an event was never recorded or has no timing, or the
  // events are of different devices; kNotReady if an event is not complete.
  Status elapsed(EventHandle from, EventHandle to, std::int64_t* out_ns);

  // ---- capture and graphs
  Status begin_capture(int device, StreamHandle stream, CaptureMode mode);
  // `*out` is null if the capture failed; see Captures::end().
  Status end_capture(int device, StreamHandle stream, GraphHandle* out);
  Status capture_info(int device, StreamHandle stream, CaptureInfo* out);
  Status update_capture_dependencies(int device, StreamHandle stream,
                                     const std::vector<GraphNodeHandle>& nodes,
                                     DependencyUpdate update);
  // For calls that an interface refuses during any capture that is not relaxed, whatever the
  // thread's mode. The thread's mode decides whether the captures are invalidated.
  Status refuse_beside_captures();
  // For calls that an interface refuses depending on the modes of the thread and of the captures.
  Status admit_unsafe_call();
  // For work that no graph can hold: kOk if the stream is not being captured.
  Status refuse_capture(int device, StreamHandle stream);
  // The graph calls return kInvalidValue for an invalid handle. So do the calls that need a
  // finished graph if a capture still records it.
  GraphHandle create_graph();
  Status clone_graph(GraphHandle graph, GraphHandle* out);
  Status destroy_graph(GraphHandle graph);
  // `dependencies` are nodes of the graph, without duplicates.
  Status add_graph_node(GraphHandle graph, NodeKind kind, int device, NodeWork work,
                        const std::vector<GraphNodeHandle>& dependencies, GraphNodeHandle* out);
  // Calls `visit` with the lock held, so `visit` must not call the machine.
  Status visit_graph(GraphHandle graph, const std::function<void(const Graph&)>& visit);
  Status visit_graph_node(GraphNodeHandle node,
                          const std::function<void(const Graph&, const GraphNode&)>& visit);
  Status instantiate_graph(GraphHandle graph, std::uint64_t flags, GraphExecHandle* out);
  Status destroy_graph_exec(GraphExecHandle exec);
  // Replaces the work of the executable graph by the work of `graph`. Returns kIllegalState if the
  // two graphs differ in kinds or dependencies of nodes.
  Status update_graph_exec(GraphExecHandle exec, GraphHandle graph);
  // Replaces the work of a kernel node by the work of the only node of the graph `kernel`.
  Status set_graph_exec_kernel(GraphExecHandle exec, GraphNodeHandle node, GraphHandle kernel);
  Status graph_exec_flags(GraphExecHandle exec, std::uint64_t* out);
  // The nodes' work takes effect before the call returns; the launch stops at the first failure.
  Status launch_graph(int device, StreamHandle stream, GraphExecHandle exec);

  // A kernel's time by the cost model.
  std::uint64_t kernel_ns(std::uint64_t bytes, std::uint64_t operations, OperationType type) const {
    return costs_.kernel_ns(bytes, operations, type);
  }
  HostUse host_use();

  std::uint64_t now_ns();
  void advance(std::uint64_t nanoseconds);

  // For tests: describes an inconsistency of chunks, masks and charges; empty if there is none.
  std::string broken_invariant();

  // ---- counters
  uvmsim_counters counters();
  void reset_counters();

 private:
  struct End {
    std::byte* bytes;
    const AllocationRecord* record;  // null for memory unknown to the machine

    bool is_pageable() const {
      return record == nullptr || record->allocation.kind == MemoryKind::kOrdinary;
    }
  };
  struct CopyEnds {
    End to;
    End from;
    std::size_t to_extent;  // from the first to the last byte, gaps included
    std::size_t from_extent;
  };

  explicit Machine(const Settings& settings);
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  DeviceMemory& memory(int device) { return memories_[static_cast<std::size_t>(device)]; }
  std::size_t charged_bytes() const;
  // Evicts as Residency::make_room() does; the calling thread waits for the evictions.
  bool make_room(int device, std::size_t bytes);
  bool charge_device(int device, std::size_t bytes);
  void release_device(int device, std::size_t bytes);
  void end_streams_of(int context, std::vector<std::shared_ptr<Graph>>* graphs);
  void end_primary_context(int device, std::vector<std::shared_ptr<Graph>>* graphs);
  void end_capture_of(Stream& stream, std::vector<std::shared_ptr<Graph>>* graphs);
  void end_allocation(const Allocation& allocation);
  enum class Addresses { kReuse, kKeepBack };
  void remove_allocation(const AllocationRecord& record, Addresses addresses);
  void keep_back(const Allocation& ended);
  Arena& arena_of(const Allocation& allocation) {
    return allocation.kind == MemoryKind::kManaged ? managed_ : device_only_;
  }
  Status take_device_memory(int device, std::size_t bytes, PoolHandle pool, void** out);
  void drop_if_unused(PieceHandle handle);
  void know_mappings();
  // Whether kernels of the device may use memory of this kind at all.
  bool may_use(int device, const Allocation& allocation) const;
  Allocation describe(MemoryKind kind, const void* address, std::size_t bytes, int device,
                      unsigned flags);
  static Policy in_force(const AllocationRecord& record, Policy policy);
  std::uint64_t call_ns() const { return static_cast<std::uint64_t>(costs_.costs().call_ns); }
  AllocationRecord* record_of(MemoryRange range);
  AllocationRecord* ordinary_record(MemoryRange range);
  AllocationRecord* placed_record(MemoryRange range);
  void forget_unmapped();
  PageRange pages_of(const AllocationRecord& record, MemoryRange range) const;
  std::size_t first_page_of(const AllocationRecord& record) const;
  std::byte* view_of(const AllocationRecord* record, std::uintptr_t address);

  // Call this before work on a stream. Returns nothing if the work must run now. Otherwise returns
  // the call's status: kOk if the work was recorded, or the broken rule of captures. A null `work`
  // cannot be recorded.
  std::optional<Status> record_or_refuse(Stream& stream, NodeKind kind, const NodeWork& work);
  // record_or_refuse() for work that the caller waits for.
  std::optional<Status> refuse_blocking(Stream& stream);
  GraphHandle add_graph(const std::shared_ptr<Graph>& graph);
  std::shared_ptr<Graph> graph_of(GraphHandle handle) const;
  std::shared_ptr<GraphExec> graph_exec_of(GraphExecHandle handle) const;
  Status run_graph(int device, StreamHandle stream, GraphExec& exec);
  Status run_step(const GraphExec::Step& step, StreamHandle lane, std::uint64_t* time_ns);

  Status start_kernel(int device, StreamHandle stream, const uvmsim_access* accesses,
                      std::size_t count, const KernelWork& work);
  void track_host_touches();
  // Serves the host's touch of an address that the host does not reach. Returns the pages that the
  // host reaches afterwards.
  MemoryRange touch_by_host(std::uintptr_t address, bool write);
  Status touch(int device, const uvmsim_access& access, std::uint64_t at_ns);
  Status resolve_end(const void* address, std::size_t bytes, CopyEnd expected, End* out);
  Status resolve_copy(const Copy& copy, CopyEnds* out);
  // Puts the page moves of a call on its stream, even if the call fails.
  void submit_moves(Stream& stream);
  static CopyWay way_of(const CopyEnds& ends);
  static TracedCopy traced_copy(const Copy& copy, const CopyEnds& ends);
  Status submit_copy(Stream& stream, const Copy& copy, const CopyEnds& ends);
  Status refuse_unknown_stream(int device, StreamHandle stream);
  int landing_place(const AllocationRecord& record, std::uintptr_t address, CopyEnd end,
                    int device) const;
  Status place_copy_end(const End& end, const void* address, std::size_t bytes, CopyEnd expected,
                        int device, bool write);
  Status place_rows(const Copy& copy, const CopyEnds& ends, int device, bool write);

  std::mutex mutex_;
  const Settings settings_;
  const CostModel costs_;
  std::vector<DeviceMemory> memories_;
  HostMemory host_;
  Arena managed_;
  Arena device_only_;
  const std::unique_ptr<OrdinaryMemory> ordinary_;  // null if devices do not reach ordinary memory
  uvmsim_counters& counters_ = counters_of_process();
  Residency residency_;
  std::unique_ptr<HostTouches> host_touches_;  // null if host touches are not tracked
  AllocationTable allocations_;
  // Memory freed with its context, the oldest first. Its addresses are not reused for a while, so
  // that a program that still uses them reaches no other memory.
  std::deque<Allocation> kept_back_;
  std::size_t kept_back_bytes_ = 0;
  Timeline timeline_;
  Captures captures_;
  std::unordered_map<GraphHandle, std::shared_ptr<Graph>> graphs_;
  std::unordered_map<GraphExecHandle, std::shared_ptr<GraphExec>> graph_execs_;
  std::set<std::pair<int, int>> peers_;  // (device, peer): the device may use the peer's memory
  Pools pools_;
  VirtualMemory virtual_;
  std::vector<std::uintptr_t> known_mappings_;  // addresses of know_mappings()'s records
  std::uint64_t next_allocation_id_ = 1;
  struct Import {
    void* address;
    int uses;
  };
  // By the exporting process and the allocation's id in that process.
  std::map<std::pair<int, std::uint64_t>, Import> imports_;
};

}  // namespace uvmsim
