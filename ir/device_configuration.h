// Where the tensors of an ONNX file lie, as its annotations for several devices say (ONNX IR
// version 11: DeviceConfigurationProto, ShardingSpecProto).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardc {

// One tensor, as one node says it.
struct TensorPlacement {
  // A dim is split into blocks of blocks: factors from the outermost to the innermost, each of
  // `size` parts (0: all of the dim) that are dealt out to `shards`.
  struct Factor {
    int64_t size = 0, shards = 1;
    bool operator==(const Factor&) const = default;
  };
  struct Dim {
    int64_t axis = 0;  // negative: from the back
    std::vector<Factor> factors;
    bool operator==(const Dim&) const = default;
  };
  std::string tensor;
  std::string node;   // that says so
  bool made = false;  // by the node; otherwise the node reads it
  std::vector<Dim> dims;
  // The devices that hold each shard. Shards are numbered row-major over `dims` in their order.
  std::vector<std::vector<int64_t>> devices;

  int64_t num_shards() const {
    int64_t n = 1;
    for (const Dim& d : dims) {
      for (const Factor& f : d.factors) n *= f.shards;
    }
    return n;
  }
  // Whether both put the tensor into the same places.
  bool SamePlace(const TensorPlacement& o) const { return dims == o.dims && devices == o.devices; }
};

struct DeviceConfiguration {
  std::string name;
  int64_t num_devices = 1;
  std::vector<TensorPlacement> tensors;  // in the order of the nodes
  bool has_stages = false;               // some node belongs to a pipeline stage
};

}  // namespace shardc
