#include "frontend/onnx/sort_nodes.h"

#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace shardc::onnx_import {
namespace {

std::set<std::string> ReadFromOutside(const onnx::GraphProto& graph);

std::set<std::string> ReadFromOutside(const onnx::NodeProto& node) {
  std::set<std::string> reads(node.input().begin(), node.input().end());
  for (const auto& attr : node.attribute()) {
    if (attr.has_g()) reads.merge(ReadFromOutside(attr.g()));
  }
  reads.erase("");
  return reads;
}

// What a graph reads and has not.
std::set<std::string> ReadFromOutside(const onnx::GraphProto& graph) {
  std::set<std::string> reads;
  for (const auto& node : graph.node()) reads.merge(ReadFromOutside(node));
  for (const auto& output : graph.output()) reads.insert(output.name());
  for (const auto& input : graph.input()) reads.erase(input.name());
  for (const auto& tensor : graph.initializer()) reads.erase(tensor.name());
  for (const auto& node : graph.node()) {
    for (const std::string& name : node.output()) reads.erase(name);
  }
  return reads;
}

class Sorter {
 public:
  explicit Sorter(const onnx::GraphProto& graph) {
    std::unordered_map<std::string_view, int> makers;
    for (int i = 0; i < graph.node_size(); ++i) {
      for (const std::string& name : graph.node(i).output()) makers.emplace(name, i);
    }
    for (int i = 0; i < graph.node_size(); ++i) {
      std::vector<int>& before = before_.emplace_back();
      for (const std::string& name : ReadFromOutside(graph.node(i))) {
        auto maker = makers.find(name);
        if (maker == makers.end()) continue;
        before.push_back(maker->second);
        sorted_ = sorted_ && maker->second < i;
      }
    }
  }

  bool sorted() const { return sorted_; }

  // Each node as soon as those before it are there, the others in their order; empty where some
  // wait for each other.
  std::vector<int> Order() const {
    enum State : char { kNew, kOpen, kDone };
    std::vector<State> states(before_.size(), kNew);
    std::vector<int> order;
    for (size_t i = 0; i < before_.size(); ++i) {
      std::vector<int> open = {static_cast<int>(i)};
      while (!open.empty()) {
        const int node = open.back();
        State& state = states[node];
        if (state != kNew) {
          open.pop_back();
          if (state == kOpen) order.push_back(node);
          state = kDone;
          continue;
        }
        state = kOpen;
        for (int maker : before_[node]) {
          if (states[maker] == kOpen) return {};
          if (states[maker] == kNew) open.push_back(maker);
        }
      }
    }
    return order;
  }

 private:
  std::vector<std::vector<int>> before_;  // by node: the makers of what it reads
  bool sorted_ = true;
};

}  // namespace

void SortNodes(onnx::GraphProto& graph) {
  for (auto& node : *graph.mutable_node()) {
    for (auto& attr : *node.mutable_attribute()) {
      if (attr.has_g()) SortNodes(*attr.mutable_g());
    }
  }
  const Sorter sorter(graph);
  if (sorter.sorted()) return;
  auto nodes = std::move(*graph.mutable_node());
  graph.clear_node();
  const std::vector<int> order = sorter.Order();
  if (order.empty()) {
    *graph.mutable_node() = std::move(nodes);
    return;
  }
  for (int i : order) *graph.add_node() = std::move(*nodes.Mutable(i));
}

}  // namespace shardc::onnx_import
