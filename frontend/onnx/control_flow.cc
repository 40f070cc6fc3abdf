#include "frontend/onnx/control_flow.h"

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {
namespace {

using onnx::GraphProto;
using onnx::NodeProto;
using onnx::TensorProto;

// Of one node.
class ControlFlow {
 public:
  ControlFlow(const NodeProto& proto, Node& node, Conversion& conversion, GraphConverter& converter)
      : proto_(proto), node_(node), conversion_(conversion), converter_(converter) {}

  void ConvertIf() {
    const HostTensor* condition = node_.ConstantOf(node_.input(0));
    if (condition == nullptr) {
      const std::string& name = proto_.input(0);
      node_.Fail("E1307", "its condition depends on input data: only a constant one is supported",
                 conversion_.builder.graph().FindInput(name)
                     ? StrCat("pass --bind ", name, "=0 or =1 to choose a branch")
                     : "");
    }
    if (condition->num_elements() != 1) node_.Fail("E1307", "its condition is not one number", "");
    const char* name = condition->AsDouble(0) != 0 ? "then_branch" : "else_branch";
    const GraphProto* branch = &GraphOf(name);
    if (branch->output_size() != proto_.output_size()) {
      node_.Fail("E1302",
                 StrCat("has ", proto_.output_size(), " outputs, its ", name, " has ",
                        branch->output_size()),
                 "");
    }
    AddTensorsOf(*branch);
    for (const NodeProto& inner : branch->node()) converter_.Convert(inner);
    std::vector<Carried> results;
    for (const auto& output : branch->output()) results.push_back(Named(output.name(), name));
    ForgetNames(*branch);
    SetOutputs(results);
  }

  void Unroll() {
    constexpr int64_t kMostNodes = 1 << 15;
    const GraphProto& body = GraphOf("body");
    const int carries = proto_.input_size() - 2, stacks = proto_.output_size() - carries;
    if (carries < 0 || stacks < 0 || body.input_size() != 2 + carries ||
        body.output_size() != 1 + proto_.output_size()) {
      node_.Fail("E1302",
                 StrCat("has ", proto_.input_size(), " inputs and ", proto_.output_size(),
                        " outputs, its body has ", body.input_size(), " and ", body.output_size()),
                 "");
    }
    int64_t most = std::numeric_limits<int64_t>::max();
    if (node_.has_input(0)) most = Known(node_.input(0)).AsInt(0);
    bool goes = !node_.has_input(1) || Known(node_.input(1)).AsDouble(0) != 0;
    std::vector<Carried> carried;
    for (int i = 0; i < carries; ++i) {
      if (!node_.IsSequence(2 + i)) node_.input(2 + i);  // it is read
      carried.push_back(Named(proto_.input(2 + i)));
    }
    std::vector<std::vector<Value*>> stacked(stacks);
    std::vector<int64_t> narrow(stacks);
    AddTensorsOf(body);
    int64_t nodes = 0;
    for (int64_t round = 0; goes && round < most; ++round) {
      nodes += body.node_size() + 1;
      if (nodes > kMostNodes)
        node_.Fail("E1307", StrCat("it runs more than ", round, " times, too often to be unrolled"),
                   "");
      ConvertRound(body, round, carried);
      goes = Known(Named(body.output(0).name()).value).AsDouble(0) != 0;
      for (int i = 0; i < carries; ++i) carried[i] = Named(body.output(1 + i).name());
      for (int i = 0; i < stacks; ++i) {
        const Carried piece = Named(body.output(1 + carries + i).name());
        if (piece.value == nullptr) node_.Fail("E1303", "its body stacks sequences", "");
        stacked[i].push_back(AsRow(piece.value));
        narrow[i] = piece.narrow;
      }
    }
    ForgetNames(body);
    SetOutputs(carried);
    for (int i = 0; i < stacks; ++i) {
      if (!node_.OutputWanted(carries + i)) continue;
      if (stacked[i].empty())
        node_.Fail("E1307", "it never runs, so that the shape of what it stacks is not known", "");
      node_.SetOutput(carries + i, Joined(node_, std::move(stacked[i]), 0), narrow[i]);
    }
  }

 private:
  // A tensor or a sequence, as it goes from one round of a loop to the next, or out of a branch.
  struct Carried {
    Value* value = nullptr;
    std::optional<std::vector<Value*>> sequence = std::nullopt;
    int64_t narrow = 0;
  };

  const GraphProto& GraphOf(std::string_view name) const {
    for (const auto& attr : proto_.attribute()) {
      if (attr.name() == name && attr.has_g()) return attr.g();
    }
    node_.Fail("E1303", StrCat("has no attribute '", name, "'"), "");
  }

  void ConvertRound(const GraphProto& body, int64_t round, const std::vector<Carried>& carried) {
    ForgetNodes(body);
    Name(body.input(0).name(), {.value = node_.Constant(HostTensor::Scalar(round))});
    Name(body.input(1).name(), {.value = node_.Constant(HostTensor::Scalar(true))});
    for (int i = 0; i < static_cast<int>(carried.size()); ++i) {
      Name(body.input(2 + i).name(), carried[i]);
    }
    for (const NodeProto& inner : body.node()) converter_.Convert(inner);
  }

  Value* AsRow(Value* piece) {
    shardc::Shape shape = piece->type.shape;
    shape.insert(shape.begin(), 1);
    return node_.Reshape(piece, shape);
  }

  // What a branch calls its values is nothing to the graph around it, which may use the same names.
  void ForgetNames(const GraphProto& branch) {
    for (const TensorProto& t : branch.initializer()) Forget(t.name());
    ForgetNodes(branch);
  }

  // The tensors of the branch stay.
  void ForgetNodes(const GraphProto& branch) {
    for (const auto& input : branch.input()) Forget(input.name());
    for (const NodeProto& inner : branch.node()) {
      for (const std::string& name : inner.output()) Forget(name);
    }
  }

  void Forget(const std::string& name) {
    conversion_.values.erase(name);
    conversion_.sequences.erase(name);
    conversion_.narrow.erase(name);
  }

  void AddTensorsOf(const GraphProto& branch) {
    for (const auto& output : branch.output()) conversion_.wanted.insert(output.name());
    for (const NodeProto& inner : branch.node()) {
      for (std::string& name : ReadBy(inner)) conversion_.wanted.insert(std::move(name));
    }
    converter_.AddTensors(branch);
  }

  Carried Named(const std::string& name, const char* graph = "body") {
    Carried carried;
    auto narrow = conversion_.narrow.find(name);
    if (narrow != conversion_.narrow.end()) carried.narrow = narrow->second;
    auto value = conversion_.values.find(name);
    auto sequence = conversion_.sequences.find(name);
    if (value != conversion_.values.end()) {
      carried.value = value->second;
    } else if (sequence != conversion_.sequences.end()) {
      carried.sequence = sequence->second;
    } else {
      node_.Fail("E1308", StrCat("'", name, "' is no tensor that its ", graph, " makes"), "");
    }
    return carried;
  }

  void Name(const std::string& name, const Carried& carried) {
    if (carried.narrow != 0) conversion_.narrow[name] = carried.narrow;
    if (carried.value != nullptr) {
      conversion_.values[name] = carried.value;
    } else {
      conversion_.sequences[name] = *carried.sequence;
    }
  }

  // The first ones of the node.
  void SetOutputs(const std::vector<Carried>& results) {
    for (int i = 0; i < static_cast<int>(results.size()); ++i) {
      if (results[i].value != nullptr) {
        node_.SetOutput(i, results[i].value, results[i].narrow);
      } else {
        Name(proto_.output(i), results[i]);
      }
    }
  }

  const HostTensor& Known(Value* number) {
    const HostTensor* known = number == nullptr ? nullptr : node_.ConstantOf(number);
    if (known == nullptr || known->num_elements() != 1) {
      node_.Fail("E1307", "how often it runs depends on input data",
                 "a loop is unrolled where that is known: export the model without it");
    }
    return *known;
  }

  const NodeProto& proto_;
  Node& node_;
  Conversion& conversion_;
  GraphConverter& converter_;
};

}  // namespace

void ConvertIf(const NodeProto& proto, Node& node, Conversion& conversion,
               GraphConverter& converter) {
  ControlFlow(proto, node, conversion, converter).ConvertIf();
}

void UnrollLoop(const NodeProto& proto, Node& node, Conversion& conversion,
                GraphConverter& converter) {
  ControlFlow(proto, node, conversion, converter).Unroll();
}

}  // namespace shardc::onnx_import
