#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/cuda/native/fill.h"

namespace shardc::cuda {

#if CUDART_VERSION < 12030

// What kind of edges a graph has cannot be asked there.
void MemsetsToKernels(cudaGraph_t) {}

#else

namespace {

#if CUDART_VERSION < 13000
constexpr auto kBefore = cudaGraphNodeGetDependencies_v2;
constexpr auto kAfter = cudaGraphNodeGetDependentNodes_v2;
constexpr auto kAddEdges = cudaGraphAddDependencies_v2;
#else
constexpr auto kBefore = cudaGraphNodeGetDependencies;
constexpr auto kAfter = cudaGraphNodeGetDependentNodes;
constexpr auto kAddEdges = cudaGraphAddDependencies;
#endif

// What is before or after a node by plain edges. Nothing where some edge is of another kind.
template <typename Get>
std::optional<std::vector<cudaGraphNode_t> > Neighbours(Get get, cudaGraphNode_t node) {
  size_t n = 0;
  if (get(node, nullptr, nullptr, &n) != cudaSuccess) return std::nullopt;
  std::vector<cudaGraphNode_t> nodes(n);
  std::vector<cudaGraphEdgeData> edges(n);
  if (n > 0 && get(node, nodes.data(), edges.data(), &n) != cudaSuccess) return std::nullopt;
  const bool plain = std::all_of(edges.begin(), edges.end(), [](const cudaGraphEdgeData& e) {
    return e.type == cudaGraphDependencyTypeDefault && e.from_port == 0 && e.to_port == 0;
  });
  return plain ? std::optional(nodes) : std::nullopt;
}

cudaError_t AddEdges(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& from,
                     const std::vector<cudaGraphNode_t>& to) {
  if (from.empty()) return cudaSuccess;
  return kAddEdges(graph, from.data(), to.data(), nullptr, from.size());
}

void Replace(cudaGraph_t graph, cudaGraphNode_t memset) {
  cudaMemsetParams p{};
  if (cudaGraphMemsetNodeGetParams(memset, &p) != cudaSuccess) return;
  if (p.width == 0 || p.height != 1 || (p.elementSize != 1 && p.value != 0)) return;
  const auto before = Neighbours(kBefore, memset), after = Neighbours(kAfter, memset);
  if (!before || !after) return;
  cudaGraphNode_t fill = nullptr;
  if (AddFillNode(&fill, graph, static_cast<std::byte*>(p.dst), static_cast<int>(p.value),
                  static_cast<int64_t>(p.width) * p.elementSize) != cudaSuccess) {
    return;
  }
  const bool joined = AddEdges(graph, *before, std::vector(before->size(), fill)) == cudaSuccess &&
                      AddEdges(graph, std::vector(after->size(), fill), *after) == cudaSuccess;
  cudaGraphDestroyNode(joined ? memset : fill);
}

}  // namespace

void MemsetsToKernels(cudaGraph_t graph) {
  size_t n = 0;
  if (cudaGraphGetNodes(graph, nullptr, &n) != cudaSuccess) n = 0;
  std::vector<cudaGraphNode_t> nodes(n);
  if (n > 0 && cudaGraphGetNodes(graph, nodes.data(), &n) == cudaSuccess) {
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      if (cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeMemset) {
        Replace(graph, node);
      }
    }
  }
  cudaGetLastError();  // of what it could not replace
}

#endif

}  // namespace shardc::cuda
