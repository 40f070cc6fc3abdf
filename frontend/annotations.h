// The annotations for several devices that an ONNX file carries, and a copy of it with others.
#pragma once

#include <string>
#include <vector>

#include "ir/device_configuration.h"

namespace shardc {

// What the nodes of the main graph say, by configuration, in the file's order; empty where the file
// has none. Throws Diagnostic E5001 and E1001 to E1003 as ImportOnnx does, E1309 for an annotation
// that makes no sense (a tensor that the node does not have, no number of shards, other devices
// than shards, a device that there is not).
std::vector<DeviceConfiguration> ReadAnnotations(const std::string& path);

// Writes the model of `path` to `to`, with this configuration in the place of one of its name. For
// each tensor `configuration` has one placement, which all nodes get that make or read it. External
// data is not copied: then `to` must lie in the folder of `path`, and be none of its files (E1403).
// `to` may be `path`, and is as before where it cannot be written. Throws Diagnostic E5003, E5004.
void WriteAnnotated(const std::string& path, const DeviceConfiguration& configuration,
                    const std::string& to);

}  // namespace shardc
