// ONNX's annotations for several devices as a spec.
#pragma once

#include <string>
#include <vector>

#include "ir/device_configuration.h"
#include "specs/spec.h"

namespace shardc {

// The configuration of that name; where `name` is empty, the only one. Throws Diagnostic E2131 when
// there is none, or several and no name; `model` is for messages.
const DeviceConfiguration& ChooseConfiguration(const std::vector<DeviceConfiguration>& have,
                                               const std::string& name, const std::string& model);

// What the configuration says of each tensor, as rules for tensors. Device d is rank d. Each cut
// dim goes over axes of `given`; where that is empty, over a mesh of axes d0, d1, ... that is found
// from how the shards lie on the devices, and stands in Spec::mesh. Throws Diagnostic E2130 for
// what ranks of a mesh cannot have: a tensor that is on some devices only, shards that do not lie
// along axes of the mesh, other devices than ranks, nodes that contradict each other.
Spec SpecOfAnnotations(const DeviceConfiguration& configuration, const std::string& model,
                       const Mesh& given);

}  // namespace shardc
