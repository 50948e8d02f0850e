#include "preload/cuda/divide_graph.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "allocator/interface.hpp"
#include "allocator/process/process_allocator.hpp"
#include "hints/oversubscription/graph_uses.hpp"
#include "preload/cuda/driver.hpp"
#include "preload/graph_uses.hpp"
#include "preload/policy.hpp"
#include "runtime/log.hpp"

namespace uvm::preload::cuda {
namespace {

// Without the flags for the upload, which has happened, and for launches by a device.
constexpr cuuint64_t kFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

struct DestroyGraph {
  void operator()(CUgraph graph) const { pass_on(NEXT_OF_DRIVER(cuGraphDestroy), graph); }
};
using OwnGraph = std::unique_ptr<CUgraph_st, DestroyGraph>;

void destroy_executable(void* executable) {
  pass_on(NEXT_OF_DRIVER(cuGraphExecDestroy), static_cast<CUgraphExec>(executable));
}

bool succeeds(CUresult result) {
  return result == CUDA_SUCCESS;
}

// A copy of a graph with nodes of other kinds may differ: a node that allocates memory, for
// example, has another address in the copy.
bool can_copy(CUgraphNode node) {
  CUgraphNodeType type{};
  if (!succeeds(pass_on(NEXT_OF_DRIVER(cuGraphNodeGetType), node, &type))) return false;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return true;
    default:
      return false;
  }
}

std::optional<std::vector<CUgraphNode>> all_nodes(CUgraph graph) {
  std::size_t count = 0;
  const auto ask = NEXT_OF_DRIVER(cuGraphGetNodes);
  if (!succeeds(pass_on(ask, graph, static_cast<CUgraphNode*>(nullptr), &count)))
    return std::nullopt;
  std::vector<CUgraphNode> nodes(count);
  if (!succeeds(pass_on(ask, graph, nodes.data(), &count))) return std::nullopt;
  nodes.resize(count);
  return nodes;
}

// A part starts after the whole part before it, so the data of an edge, which permits an earlier
// start, is not needed.
std::optional<std::vector<NodeOrder>> dependencies_of(CUgraph graph,
                                                      const std::vector<CUgraphNode>& nodes) {
  std::unordered_map<CUgraphNode, std::size_t> positions;
  for (const CUgraphNode node : nodes) positions.emplace(node, positions.size());
  std::size_t count = 0;
  const auto ask = NEXT_OF_DRIVER(cuGraphGetEdges_v2);
  constexpr CUgraphNode* kNone = nullptr;
  constexpr CUgraphEdgeData* kNoData = nullptr;
  if (!succeeds(pass_on(ask, graph, kNone, kNone, kNoData, &count))) return std::nullopt;
  std::vector<CUgraphNode> from(count);
  std::vector<CUgraphNode> to(count);
  std::vector<CUgraphEdgeData> data(count);
  if (!succeeds(pass_on(ask, graph, from.data(), to.data(), data.data(), &count)))
    return std::nullopt;
  std::vector<NodeOrder> dependencies;
  for (std::size_t i = 0; i < count; ++i)
    dependencies.push_back({positions.at(from[i]), positions.at(to[i])});
  return dependencies;
}

// Returns an executable graph of the `kept` nodes of the graph, or nullptr.
CUgraphExec instantiate_part(CUgraph graph, const std::vector<CUgraphNode>& nodes,
                             const std::unordered_set<CUgraphNode>& kept, cuuint64_t flags) {
  CUgraph copied = nullptr;
  if (!succeeds(pass_on(NEXT_OF_DRIVER(cuGraphClone), &copied, graph))) return nullptr;
  const OwnGraph copy(copied);
  for (const CUgraphNode node : nodes) {
    CUgraphNode copy_of_node = nullptr;
    if (kept.contains(node)) continue;
    if (!succeeds(pass_on(NEXT_OF_DRIVER(cuGraphNodeFindInClone), &copy_of_node, node, copied)) ||
        !succeeds(pass_on(NEXT_OF_DRIVER(cuGraphDestroyNode), copy_of_node))) {
      return nullptr;
    }
  }
  CUgraphExec executable = nullptr;
  return succeeds(pass_on(NEXT_OF_DRIVER(cuGraphInstantiateWithFlags), &executable, copied, flags))
             ? executable
             : nullptr;
}

Uses joined(const std::vector<Uses>& uses, const std::vector<std::size_t>& nodes) {
  GraphUses::Nodes words;
  std::vector<live::UseRange> ranges;
  for (const std::size_t node : nodes) {
    words.push_back({.handle = nullptr, .words = uses[node].words});
    ranges.insert(ranges.end(), uses[node].ranges.begin(), uses[node].ranges.end());
  }
  return {.words = GraphUses::joined(words), .ranges = live::joined_uses(ranges)};
}

}  // namespace

std::shared_ptr<GraphParts> divide(CUgraph graph, CUgraphExec executable, int device,
                                   const Uses& all, const UsesOfNodes& uses_of_nodes) {
  const CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || device < 0) return nullptr;
  const std::size_t device_bytes =
      ours->inspection().devices().at(static_cast<std::size_t>(device)).total_bytes;
  std::size_t used_bytes = 0;
  for (const live::UseRange& range : ranges_of(device, all)) used_bytes += range.size_bytes;
  if (used_bytes <= device_bytes / policy::kDividedShare) return nullptr;

  cuuint64_t flags = 0;
  const auto nodes = all_nodes(graph);
  if (!nodes || !std::ranges::all_of(*nodes, can_copy)) return nullptr;
  const auto dependencies = dependencies_of(graph, *nodes);
  if (!dependencies ||
      !succeeds(pass_on(NEXT_OF_DRIVER(cuGraphExecGetFlags), executable, &flags)) ||
      (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
    return nullptr;
  }
  const auto smallest = pieces_of(nodes->size(), *dependencies);
  std::vector<std::size_t> order;
  for (const std::vector<std::size_t>& piece : smallest)
    order.insert(order.end(), piece.begin(), piece.end());
  std::vector<CUgraphNode> in_order;
  in_order.reserve(order.size());
  for (const std::size_t node : order) in_order.push_back((*nodes)[node]);
  std::vector<Uses> uses(nodes->size());
  std::vector<Uses> found = uses_of_nodes(in_order);
  for (std::size_t i = 0; i < order.size(); ++i) uses[order[i]] = std::move(found[i]);

  const auto pieces =
      joined_pieces(smallest, device_bytes / policy::kPartShare,
                    [&](std::size_t node) { return ranges_of(device, uses[node]); });
  if (pieces.size() < 2) return nullptr;
  auto parts = std::make_shared<GraphParts>(destroy_executable);
  for (const std::vector<std::size_t>& piece : pieces) {
    std::unordered_set<CUgraphNode> kept;
    for (const std::size_t node : piece) kept.insert((*nodes)[node]);
    const CUgraphExec part = instantiate_part(graph, *nodes, kept, flags & kFlags);
    if (part == nullptr) return nullptr;
    parts->add({.executable = part, .uses = joined(uses, piece)});
  }
  log(LogLevel::kInfo,
      "a graph of {} nodes uses {} MiB: while memory is short, it is launched in {} parts",
      nodes->size(), used_bytes >> 20, pieces.size());
  return parts;
}

}  // namespace uvm::preload::cuda
