#include "frontend/onnx/add_tensors.h"

#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "frontend/onnx/narrow.h"
#include "ir/contains.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

using onnx::GraphProto;
using onnx::TensorProto;

// Beside numbers: one of nothing else is meant.
bool HoldsNan(const HostTensor& tensor) {
  int64_t count = 0;
  const int64_t size = IsFloat(tensor.dtype()) ? tensor.num_elements() : 0;
  for (int64_t i = 0; i < size; ++i) count += std::isnan(tensor.AsDouble(i));
  return count > 0 && count < size;
}

}  // namespace

void TensorAdder::Add(const GraphProto& proto) {
  // Wanted, or a copy of it is.
  std::set<std::string_view> wanted(conversion_.wanted.begin(), conversion_.wanted.end());
  for (const auto& [copy, first] : params_.copies) {
    if (conversion_.wanted.contains(copy)) wanted.insert(first);
  }
  bool of_model = &proto == &model_.proto.graph();
  for (int i = 0; i < proto.initializer_size(); ++i) {
    const TensorProto& t = proto.initializer(i);
    if (!wanted.contains(t.name()) || params_.copies.contains(t.name())) continue;
    const Bytes* bytes = of_model ? model_.RawOf(i) : nullptr;
    conversion_.values[t.name()] =
        params_.Has(t.name()) ? AddParam(t, bytes) : AddConstant(t, bytes);
  }
  for (const auto& [copy, first] : params_.copies) {
    auto it = conversion_.values.find(first);
    if (it != conversion_.values.end()) conversion_.values[copy] = it->second;
  }
}

Value* TensorAdder::AddParam(const TensorProto& t, const Bytes* bytes) {
  // Of branches of two nodes each may have its own; that of one in a loop is the same each time.
  Value*& param = made_[&t];
  if (param != nullptr) return param;
  if (graph_.sources.contains(t.name())) {
    throw Diagnostic("E1308", ExitCode::kBadModel, model_.path,
                     StrCat("has two weights called '", t.name(), "'"));
  }
  TensorType type = conversion_.reader.Type(t);
  Attributes more;
  const Strings& aliases = params_.aliases.at(t.name());
  if (!aliases.empty()) more.Set("aliases", aliases);
  Strings sources;
  for (const std::string& alias : aliases) {
    if (params_.sources.contains(alias)) sources.push_back(alias);
  }
  if (!sources.empty()) more.Set("source_aliases", std::move(sources));
  if (auto of = params_.transpose_of.find(t.name()); of != params_.transpose_of.end()) {
    more.Set("transpose_of", of->second);
  }
  if (params_.single.contains(t.name())) more.Set("single", true);
  if (auto merged = params_.merged.find(t.name()); merged != params_.merged.end()) {
    more.Set("merged", Strings(merged->second.begin(), merged->second.end()));
  }
  graph_.sources[t.name()] = conversion_.reader.Source(t, bytes);
  conversion_.builder.site.clear();
  param = conversion_.builder.Param(t.name(), type.dtype, type.shape, std::move(more));
  return param;
}

Value* TensorAdder::AddConstant(const TensorProto& t, const Bytes* bytes) {
  conversion_.builder.site.clear();
  HostTensor tensor = conversion_.reader.Read(t, bytes);
  if (HoldsNan(tensor)) with_nan_.push_back(t.name());
  if (options_.fixed && Contains(params_.constants, t.name()))
    (*options_.fixed)[t.name()] = FixedTensorOf(tensor);
  Value* value = conversion_.builder.Constant(std::move(tensor));
  value->name = t.name();
  if (IsNarrow(t.data_type())) conversion_.narrow[t.name()] = t.data_type();
  return value;
}

}  // namespace shardc::onnx_import
