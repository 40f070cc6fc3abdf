// Shard specs in memory, and where they come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/mesh.h"

namespace shardc {

struct SpecLocation {
  std::string file;              // without a line: whatever says where it is
  int line = 0, column = 0;      // from 1; 0: unknown
  std::string ToString() const;  // "spec megatron:12:3"
};

struct CutDim {
  int dim = 0;  // may be negative
  std::string axis;
  std::vector<int64_t> segments = {};  // as DimSharding has them; empty: none given
  int64_t granule = 1;
  int64_t size = 0;           // what the dim has to have; 0: anything
  int balanced_segments = 1;  // as shard_spec.proto says
};

struct SpecRule {
  SpecLocation where;
  std::string match;  // glob; empty: any name
  std::string role;   // empty: any role
  std::string part;   // "weight", "bias" or empty
  std::vector<CutDim> cuts;
  std::optional<bool> output_replicate;  // given when the rule has a compute_spec
  std::optional<bool> weight_decay;
  bool may_match_nothing = false;
};

// What ZeRO keeps cut, and over which axes.
struct ZeroSpec {
  std::optional<int> stage;       // 0 to 3; none said: 0
  std::vector<std::string> axes;  // empty: those that cut the batch
  std::string where;              // of the stage: "spec my.textproto:3:1" or a flag
  std::string axes_where;         // of the axes
};

// In how many pieces the batch is run.
struct MicrobatchSpec {
  int count = 1;
  std::string where;  // as ZeroSpec::where
  int together = 1;   // how many run beside each other
  std::string together_where = {};
  bool batches = false;  // not pieces of one, but so many of the model's
};

// Which ranks run which layers.
struct PipelineSpec {
  std::string axis;                  // empty, or not in the mesh: no pipeline
  std::vector<int> layers;           // of each run; empty: found
  std::string where;                 // "spec my.textproto:3:1"
  int virtual_stages = 1;            // how many runs of layers each stage has
  std::string virtual_stages_where;  // as ZeroSpec::where
};

struct Spec {
  std::string name;
  std::vector<MeshAxis> mesh;  // declared axes with default sizes
  std::vector<SpecRule> params;
  std::vector<SpecRule> inputs;
  std::vector<SpecRule> values;
  // `match` is the very name of a parameter, an input or a value, which is cut as the rule says and
  // over no other axis. They go before all other rules. A value may have two: where it is made, and
  // where it is read. What there is not is passed over, with a note.
  std::vector<SpecRule> tensors;
  ZeroSpec zero;
  MicrobatchSpec microbatches;
  PipelineSpec pipeline;
};

// The spec of a file path, or a shipped one by name. Throws Diagnostic E2100 with line and column
// for text that does not parse, E2101 for a rule that makes no sense, E5001 when there is no such
// file or shipped spec (with those there are).
Spec LoadSpec(const std::string& name_or_path);
Spec ParseSpec(const std::string& text, const std::string& file);
std::vector<std::string> ShippedSpecs();

// The mesh to compile for: `given` with the axes that the spec declares and `given` lacks, in
// front, if their default size is above 1. An empty `given` means the spec's own.
Mesh MeshFor(const Spec& spec, const Mesh& given);

// Shell-like match: * any run of characters, ? one.
bool GlobMatch(const std::string& pattern, const std::string& text);

}  // namespace shardc
