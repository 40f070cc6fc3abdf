#include "frontend/onnx/folded_constants.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "frontend/onnx/constant_weights.h"
#include "frontend/onnx/names.h"
#include "frontend/onnx/origins.h"
#include "frontend/onnx/uses.h"
#include "ir/contains.h"

namespace shardc::onnx_import {
namespace {

using onnx::AttributeProto;
using onnx::NodeProto;
using onnx::TensorProto;
using Nodes = google::protobuf::RepeatedPtrField<NodeProto>;

Shape WithoutOnes(Shape shape) {
  std::erase(shape, 1);
  return shape;
}

HostTensor PlusOne(HostTensor t) {
  Apply(kPlusOne, t);
  return t;
}

// Two tensors of such data are not alike by chance.
bool IsTelling(const HostTensor& t) {
  std::vector<double> values;
  for (int64_t i = 0; i < t.num_elements() && values.size() < 3; ++i) {
    const double value = t.AsDouble(i);
    if (!std::isnan(value) && !Contains(values, value)) values.push_back(value);
  }
  return values.size() == 3;
}

// Its type, its dims, and how it begins.
std::string KeyOf(const HostTensor& t, const Shape& squeezed) {
  const int64_t begin = std::min<int64_t>(t.bytes(), 64);
  return StrCat(static_cast<int>(t.dtype()), ShapeToString(squeezed)) +
         std::string(reinterpret_cast<const char*>(t.raw()), begin);
}

class Unfolder {
 public:
  Unfolder(LoadedModel& model, TensorReader& reader) : model_(model), reader_(reader) {}

  Unfolded Run() {
    onnx::GraphProto& graph = *model_.proto.mutable_graph();
    if (std::ranges::none_of(graph.node(), [](const NodeProto& node) {
          const TensorProto* value = ConstantValue(node);
          return value != nullptr && MayBeWeight(*value);
        }))
      return {};
    FindTensors();
    if (std::ranges::none_of(tensors_, [](const Tensor& t) { return t.unread; })) return {};
    Unfolded made;
    for (NodeProto& node : *graph.mutable_node()) {
      const TensorProto* value = ConstantValue(node);
      if (value != nullptr && MayBeWeight(*value) && Unfold(node, *value)) {
        ++made.of_tensors;
      } else {
        *nodes_.Add() = std::move(node);
      }
    }
    graph.mutable_node()->Swap(&nodes_);
    if (made.of_tensors > 0) {
      made.unread = StillUnread();
      made.tensors = MoveMatrices(graph);
    }
    return made;
  }

 private:
  struct Tensor {
    int index = 0;  // of the initializer
    Shape shape, squeezed;
    bool unread = false;
  };
  Strings StillUnread() const {
    const Uses uses(model_.proto.graph());
    Strings names;
    for (const Tensor& t : tensors_) {
      const std::string& name = NameOf(t);
      const bool parameter = name.ends_with(".weight") || name.ends_with(".bias");
      if (t.unread && parameter && uses.Of(name).empty()) names.push_back(name);
    }
    return names;
  }

  // Of what is folded so, the file may have lost the tensor.
  int MoveMatrices(onnx::GraphProto& graph) {
    std::set<std::string> factors;
    for (const NodeProto& node : graph.node()) {
      const bool multiplies = node.op_type() == "MatMul" || node.op_type() == "Gemm";
      if (multiplies && node.input_size() > 1) factors.insert(node.input(1));
    }
    int moved = 0;
    Nodes kept;
    for (NodeProto& node : *graph.mutable_node()) {
      const TensorProto* value = ConstantValue(node);
      if (value != nullptr && MayBeWeight(*value) && value->dims_size() == 2 &&
          factors.contains(node.output(0)) && IsTelling(reader_.Read(*value, nullptr))) {
        TensorProto& tensor = *graph.add_initializer();
        tensor = std::move(*node.mutable_attribute(0)->mutable_t());
        tensor.set_name(node.output(0));
        ++moved;
      } else {
        *kept.Add() = std::move(node);
      }
    }
    graph.mutable_node()->Swap(&kept);
    return moved;
  }

  using ByKey = std::unordered_map<std::string, std::vector<const Tensor*>>;

  void FindTensors() {
    const Uses uses(model_.proto.graph());
    for (int i = 0; i < model_.proto.graph().initializer_size(); ++i) {
      const TensorProto& t = model_.proto.graph().initializer(i);
      if (!MayBeWeight(t)) continue;
      const Shape shape = reader_.Type(t).shape;
      const bool unread = uses.Of(t.name()).empty() && !uses.IsOutput(t.name());
      tensors_.push_back({i, shape, WithoutOnes(shape), unread});
    }
    std::ranges::stable_partition(tensors_, [](const Tensor& t) { return t.unread; });
  }

  HostTensor Read(const Tensor& t) {
    return reader_.Read(model_.proto.graph().initializer(t.index), model_.RawOf(t.index));
  }

  // Of the tensors of this shape: others are not read.
  void FindKeys(const Shape& squeezed) {
    if (!keyed_.insert(squeezed).second) return;
    for (const Tensor& t : tensors_) {
      if (t.squeezed != squeezed) continue;
      HostTensor data = Read(t);
      as_is_[KeyOf(data, t.squeezed)].push_back(&t);
      if (t.unread) plus_one_[KeyOf(PlusOne(std::move(data)), t.squeezed)].push_back(&t);
    }
  }

  bool Unfold(const NodeProto& node, const TensorProto& value) {
    const HostTensor data = reader_.Read(value, nullptr);
    if (!IsTelling(data)) return false;
    const Shape squeezed = WithoutOnes(data.shape());
    auto find = [&](const ByKey& keys, const HostTensor& made, const Shape& shape,
                    auto make) -> const Tensor* {
      FindKeys(shape);
      const auto found = keys.find(KeyOf(made, shape));
      if (found == keys.end()) return nullptr;
      std::vector<const Tensor*> tensors = found->second;
      std::ranges::stable_sort(tensors, {}, [&](const Tensor* t) { return Doubt(*t, node); });
      for (const Tensor* t : tensors) {
        if (!SameBits(make(Read(*t)), made)) continue;
        used_.insert(t);
        return t;
      }
      return nullptr;
    };
    auto same = [](HostTensor t) { return t; };
    const std::string& to = node.output(0);
    if (squeezed.size() > 1) {
      const HostTensor turned = Turned(data.Reshaped(squeezed));
      if (const Tensor* t = find(as_is_, turned, turned.shape(), same)) {
        MakeTurned(*t, data.shape(), to);
        return true;
      }
    }
    if (const Tensor* t = find(as_is_, data, squeezed, same)) {
      Reshape(NameOf(*t), data.shape(), to);
      return true;
    }
    if (const Tensor* t = find(plus_one_, data, squeezed, PlusOne)) {
      MakePlusOne(*t, value.data_type(), data.shape(), to);
      return true;
    }
    for (const Tensor& t : tensors_) {
      if (!t.unread || t.shape.size() != 2 || t.shape[1] != data.shape().back()) continue;
      const Ints rows = RowsIn(t, data);
      if (rows.empty()) continue;
      Shape shape = data.shape();
      shape.pop_back();
      Add("Gather", {NameOf(t), AddIntegers(rows, shape, to + "/rows")}, to);
      return true;
    }
    return false;
  }

  // Layers that were copied begin equal: the least for the tensor of the constant's own module,
  // then for one that has not been found yet.
  int Doubt(const Tensor& t, const NodeProto& node) const {
    const std::string module = ModuleOf(node);
    if (!module.empty() && NameOf(t).starts_with(module + ".")) return 0;
    return t.unread && !used_.contains(&t) ? 1 : 2;
  }

  static std::string_view Row(const HostTensor& t, int64_t i, int64_t width) {
    const int64_t bytes = width * DTypeSize(t.dtype());
    return {reinterpret_cast<const char*>(t.raw()) + i * bytes, static_cast<size_t>(bytes)};
  }

  // Where each row of a matrix is in it.
  struct Rows {
    HostTensor matrix;
    std::unordered_map<std::string_view, Ints> places;
  };
  const Rows& RowsOf(const Tensor& t) {
    auto [it, fresh] = rows_.try_emplace(&t);
    Rows& rows = it->second;
    if (fresh) rows.matrix = Read(t);
    for (int64_t i = 0; fresh && i < t.shape[0]; ++i) {
      rows.places[Row(rows.matrix, i, t.shape[1])].push_back(i);
    }
    return rows;
  }

  // Of rows that are equal the one behind the row before.
  Ints RowsIn(const Tensor& t, const HostTensor& data) {
    const Rows& rows = RowsOf(t);
    if (rows.matrix.dtype() != data.dtype()) return {};
    const int64_t width = t.shape[1];
    Ints found;
    for (int64_t i = 0; i < data.num_elements() / width; ++i) {
      const auto at = rows.places.find(Row(data, i, width));
      if (at == rows.places.end()) return {};
      const Ints& equal = at->second;
      const bool next = !found.empty() && std::ranges::binary_search(equal, found.back() + 1);
      found.push_back(next ? found.back() + 1 : equal[0]);
    }
    return found;
  }

  const std::string& NameOf(const Tensor& t) const {
    return model_.proto.graph().initializer(t.index).name();
  }

  NodeProto& Add(const std::string& op, const Strings& inputs, const std::string& output) {
    NodeProto& node = *nodes_.Add();
    node.set_op_type(op);
    node.set_name(output);
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(output);
    return node;
  }

  static AttributeProto& AddAttribute(NodeProto& node, const char* name,
                                      AttributeProto::AttributeType type) {
    AttributeProto& attr = *node.add_attribute();
    attr.set_name(name);
    attr.set_type(type);
    return attr;
  }

  TensorProto& AddConstant(onnx::TensorProto::DataType type, const std::string& name) {
    NodeProto& node = Add("Constant", {}, name);
    TensorProto& t = *AddAttribute(node, "value", AttributeProto::TENSOR).mutable_t();
    t.set_data_type(type);
    return t;
  }

  std::string AddIntegers(const Ints& values, const Shape& shape, std::string name) {
    TensorProto& t = AddConstant(TensorProto::INT64, name);
    for (int64_t dim : shape) t.add_dims(dim);
    for (int64_t v : values) t.add_int64_data(v);
    return name;
  }

  void Reshape(const std::string& from, const Shape& shape, const std::string& to) {
    const auto rank = static_cast<int64_t>(shape.size());
    Add("Reshape", {from, AddIntegers(shape, {rank}, to + "/shape")}, to);
  }

  void MakeTurned(const Tensor& t, const Shape& shape, const std::string& to) {
    std::string from = NameOf(t);
    if (t.squeezed != t.shape) {
      Reshape(from, t.squeezed, to + "/squeezed");
      from = to + "/squeezed";
    }
    const bool reshaped = shape != WithoutOnes(shape);
    const std::string turned = reshaped ? to + "/turned" : to;
    AttributeProto& perm =
        AddAttribute(Add("Transpose", {from}, turned), "perm", AttributeProto::INTS);
    const auto rank = static_cast<int64_t>(t.squeezed.size());
    for (int64_t d = 0; d < rank - 2; ++d) perm.add_ints(d);
    perm.add_ints(rank - 1);
    perm.add_ints(rank - 2);
    if (reshaped) Reshape(turned, shape, to);
  }

  void MakePlusOne(const Tensor& t, int type, const Shape& shape, const std::string& to) {
    AddConstant(TensorProto::FLOAT, to + "/one").add_float_data(1);
    NodeProto& cast = Add("Cast", {to + "/one"}, to + "/cast");
    AddAttribute(cast, "to", AttributeProto::INT).set_i(type);
    Add("Add", {NameOf(t), to + "/cast"}, to + "/sum");
    Reshape(to + "/sum", shape, to);
  }

  LoadedModel& model_;
  TensorReader& reader_;
  std::vector<Tensor> tensors_;  // floats of several elements, those first that nothing reads
  std::set<Shape> keyed_;
  ByKey as_is_, plus_one_;  // of tensors of these shapes
  std::map<const Tensor*, Rows> rows_;
  std::set<const Tensor*> used_;
  Nodes nodes_;
};

}  // namespace

Unfolded UnfoldConstants(LoadedModel& model, TensorReader& reader) {
  return Unfolder(model, reader).Run();
}

}  // namespace shardc::onnx_import
