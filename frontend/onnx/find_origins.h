// Which of the module's tensors a tensor of the graph may be made of.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/import.h"
#include "frontend/onnx/origins.h"
#include "ir/graph.h"

namespace shardc::onnx_import {

Squeezed DataOf(const ModuleParam& tensor, DType as);

// By the data, which may fit several of the module's tensors.
class OriginFinder {
 public:
  explicit OriginFinder(const ModuleParams& module) : module_(module) {}

  // As they are or turned, or that plus one.
  std::vector<Origin> AsWhole(const Squeezed& made, bool plus_one);
  // Those with other dims, turned, and other numbers (AffineOf); of 8 elements or more, because few
  // are so by chance.
  std::vector<Origin> AsAffine(const Squeezed& made) const;
  // Rows of a tensor's last dim along the first dim that fits one, or of a vector repeated.
  std::vector<Origin> AsRows(const Squeezed& made) const;
  // Elements of this tensor; at most one.
  std::vector<Origin> AsElements(const Squeezed& made, const std::string& of) const;

 private:
  // The module's tensors by their size and first elements.
  using Corners = std::unordered_map<std::string, std::vector<std::string>>;
  const Corners& CornersOf(DType type, bool plus_one);

  const ModuleParams& module_;
  std::map<std::pair<DType, bool>, Corners> corners_;
};

// Whether the module's tensor may become a parameter of the type of `param`.
bool CanBe(const Graph& graph, const ModuleParams& module, const Op& param,
           const std::string& name);

// Of a parameter whose data say nothing, and are those of `found`: what each use is of, in their
// order, and nothing where that is the parameter itself. It is told by the module of the op that
// reads it, or by an alias; nothing at all where that is not certain.
std::optional<std::vector<std::optional<Origin>>> OriginsOfUses(const Graph& graph,
                                                                const ModuleParams& module,
                                                                const Op& param,
                                                                const std::vector<Origin>& found);

}  // namespace shardc::onnx_import
