// Memsets of a graph become kernels, over graphs that are lists.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/native/fill.h"

namespace {

struct Node {
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  cudaMemsetParams memset = {};
  std::string name;
  std::vector<Node*> before, after;
  bool programmatic = false;  // the edges to what is after it
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  bool refuses_kernels = false, refuses_edges = false;

  Node* Add(const std::string& name, std::vector<Node*> before) {
    Node& n = *nodes.emplace_back(std::make_unique<Node>());
    n.name = name;
    for (Node* b : before) Join(b, &n);
    return &n;
  }
  Node* AddMemset(std::vector<Node*> before, unsigned value, unsigned element, size_t width,
                  size_t height = 1) {
    Node* n = Add("memset", std::move(before));
    n->type = cudaGraphNodeTypeMemset;
    n->memset = {.dst = nullptr,
                 .pitch = width,
                 .value = value,
                 .elementSize = element,
                 .width = width,
                 .height = height};
    return n;
  }
  static void Join(Node* from, Node* to) {
    from->after.push_back(to);
    to->before.push_back(from);
  }
  // "a>b a>c" of all edges, sorted.
  std::vector<std::string> Edges() const {
    std::vector<std::string> edges;
    for (const auto& n : nodes) {
      for (const Node* after : n->after) edges.push_back(n->name + ">" + after->name);
    }
    std::sort(edges.begin(), edges.end());
    return edges;
  }
};

Graph& Of(cudaGraph_t g) { return *reinterpret_cast<Graph*>(g); }
Node& Of(cudaGraphNode_t n) { return *reinterpret_cast<Node*>(n); }
cudaGraphNode_t Handle(Node* n) { return reinterpret_cast<cudaGraphNode_t>(n); }

cudaError_t Give(const std::vector<Node*>& from, bool programmatic, cudaGraphNode_t* nodes,
                 cudaGraphEdgeData* edges, size_t* n) {
  for (size_t i = 0; nodes && i < from.size(); ++i) {
    nodes[i] = Handle(from[i]);
    edges[i] = {};
    if (programmatic) edges[i].type = cudaGraphDependencyTypeProgrammatic;
  }
  *n = from.size();
  return cudaSuccess;
}

Graph* current = nullptr;  // where a node is destroyed

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* nodes, size_t* n) {
  *n = Of(g).nodes.size();
  for (size_t i = 0; nodes && i < *n; ++i) nodes[i] = Handle(Of(g).nodes[i].get());
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, cudaGraphNodeType* type) {
  *type = Of(n).type;
  return cudaSuccess;
}
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t n, cudaMemsetParams* p) {
  *p = Of(n).memset;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t n, cudaGraphNode_t* nodes,
                                         cudaGraphEdgeData* edges, size_t* count) {
  return Give(Of(n).before, false, nodes, edges, count);
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t n, cudaGraphNode_t* nodes,
                                           cudaGraphEdgeData* edges, size_t* count) {
  return Give(Of(n).after, Of(n).programmatic, nodes, edges, count);
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                     size_t n) {
  if (Of(g).refuses_edges) return cudaErrorInvalidValue;
  for (size_t i = 0; i < n; ++i) Graph::Join(&Of(from[i]), &Of(to[i]));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t n) {
  Node* node = &Of(n);
  for (const auto& other : current->nodes) {
    std::erase(other->before, node);
    std::erase(other->after, node);
  }
  std::erase_if(current->nodes, [&](const auto& other) { return other.get() == node; });
  return cudaSuccess;
}

}  // extern "C"

namespace shardc::cuda {

cudaError_t AddFillNode(cudaGraphNode_t* node, cudaGraph_t graph, std::byte*, int byte,
                        int64_t bytes) {
  if (Of(graph).refuses_kernels) return cudaErrorInvalidValue;
  *node = Handle(Of(graph).Add("fill " + std::to_string(byte) + "x" + std::to_string(bytes), {}));
  return cudaSuccess;
}

namespace {

using ::testing::ElementsAre;

std::vector<std::string> Replaced(Graph& g) {
  current = &g;
  MemsetsToKernels(reinterpret_cast<cudaGraph_t>(&g));
  return g.Edges();
}

TEST(MemsetNodes, BecomeKernelsInTheirPlace) {
  Graph g;
  Node *a = g.Add("a", {}), *b = g.Add("b", {});
  Node* cleared = g.AddMemset({a, b}, 0, 4, 6);
  Node* c = g.Add("c", {cleared});
  g.Add("d", {cleared});
  g.AddMemset({c}, 7, 1, 5);
  EXPECT_THAT(Replaced(g), ElementsAre("a>fill 0x24", "b>fill 0x24", "c>fill 7x5", "fill 0x24>c",
                                       "fill 0x24>d"));
}

// Of several rows, or of numbers that are no byte repeated; of nothing, for which no kernel can be
// launched; with an edge of another kind.
TEST(MemsetNodes, OtherOnesStay) {
  for (auto make : {+[](Graph& g) { return g.AddMemset({}, 0, 1, 4, 3); },
                    +[](Graph& g) { return g.AddMemset({}, 7, 4, 4); },
                    +[](Graph& g) { return g.AddMemset({}, 0, 1, 0); },
                    +[](Graph& g) {
                      Node* n = g.AddMemset({}, 0, 1, 4);
                      n->programmatic = true;
                      return n;
                    }}) {
    Graph g;
    g.Add("a", {make(g)});
    EXPECT_THAT(Replaced(g), ElementsAre("memset>a"));
  }
}

TEST(MemsetNodes, WhatCudaRefusesStays) {
  for (bool Graph::*refuses : {&Graph::refuses_kernels, &Graph::refuses_edges}) {
    Graph g;
    g.*refuses = true;
    Node* a = g.Add("a", {});
    g.Add("b", {g.AddMemset({a}, 0, 1, 4)});
    EXPECT_THAT(Replaced(g), ElementsAre("a>memset", "memset>b"));
    EXPECT_EQ(g.nodes.size(), 3u);
  }
}

}  // namespace
}  // namespace shardc::cuda
