// Where the tensors of a sharded graph lie, in ONNX's terms.
#pragma once

#include <string>
#include <vector>

#include "ir/device_configuration.h"
#include "ir/graph.h"

namespace shardc {

struct Placements {
  DeviceConfiguration configuration;
  // Parameters that are cut, and that it cannot tell of.
  std::vector<std::string> untold;
};

// One placement for each parameter, input and result with a name, of a graph after InsertReshards;
// rank r is device r. Left out: what backward and optimizer make, what is a partial sum, cuts that
// ONNX has no words for (segments of different sizes, cuts of segments between blocks), values of
// which some ranks have nothing, and pieces of a parameter. Where all that reads a partial sum
// needs the sum, the sum's place stands for the value.
Placements DescribePlacement(const Graph& graph, const std::string& name);

}  // namespace shardc
