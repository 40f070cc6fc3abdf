#include "passes/write_plan.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "ir/checksum.h"
#include "ir/diagnostic.h"
#include "ir/file_error.h"
#include "ir/manifest.h"
#include "ir/op_def.h"
#include "ir/output_file.h"
#include "ir/safetensors.h"
#include "ir/shard_copy.h"
#include "ir/text.h"
#include "passes/plan_folder.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSlabBytes = 1 << 20;  // of a shard that are in memory at a time, about

// Of a box those rows that are in the slab of the shard from row `from` on.
ShardBox InSlab(ShardBox box, int64_t from, int64_t rows) {
  const int64_t begin = std::max(box.local[0], from);
  const int64_t end = std::min(box.local[0] + box.size[0], from + rows);
  box.global[0] += begin - box.local[0];
  box.local[0] = begin - from;
  box.size[0] = std::max<int64_t>(end - begin, 0);
  return box;
}

// The slab of a shard, padding zero; `boxes` are those of the slab.
std::vector<std::byte> ReadSlab(const TensorSource& source, DType type, const Shape& slab,
                                const std::vector<ShardBox>& boxes) {
  const int64_t element = DTypeSize(type);
  std::vector<std::byte> bytes(NumElements(slab) * element), piece;
  for (const ShardBox& box : boxes) {
    if (NumElements(box.size) == 0) continue;
    if (box.size == slab) {
      source.Read(box.global, box.size, bytes.data());
      continue;
    }
    piece.resize(NumElements(box.size) * element);
    source.Read(box.global, box.size, piece.data());
    CopyBox(piece.data(), box.size, Shape(box.size.size()), bytes.data(), slab, box.local, box.size,
            element);
  }
  return bytes;
}

// The shard that a rank holds.
void WriteShard(const TensorSource& source, const TensorType& type, const Mesh& mesh, int64_t rank,
                SafetensorsWriter& writer) {
  const std::vector<ShardBox> boxes = ShardBoxes(type, mesh, rank);
  Shape slab = LocalShape(type, mesh);
  const int64_t rows = slab.empty() ? 1 : slab[0], bytes = LocalBytes(type, mesh);
  if (bytes <= kSlabBytes) return writer.Write(ReadSlab(source, type.dtype, slab, boxes));
  const int64_t most = std::max<int64_t>(rows * kSlabBytes / bytes, 1);
  for (int64_t from = 0; from < rows; from += most) {
    slab[0] = std::min(most, rows - from);
    std::vector<ShardBox> inside;
    for (const ShardBox& box : boxes) inside.push_back(InSlab(box, from, slab[0]));
    writer.Write(ReadSlab(source, type.dtype, slab, inside));
  }
}

class PlanWriter {
 public:
  PlanWriter(const Graph& graph, const StagePrograms& programs, const PlanOptions& options)
      : graph_(graph), programs_(programs), options_(options) {
    for (const auto& op : graph.ops()) {
      if (op->def->is_state) states_.push_back(op.get());
      if (op->name() != "param") continue;
      params_.push_back(op.get());
      param_names_.insert(op->attrs.String("name"));
    }
    for (const Program& p : programs.stages) {
      std::set<std::string>& names = held_.emplace_back();
      for (const NamedBuffer& s : p.states) names.insert(s.name);
    }
  }

  // Before anything is written.
  void CheckSources() const {
    if (!options_.write_weights) return;
    for (const Op* param : params_) {
      const std::string& name = param->attrs.String("name");
      if (graph_.sources.contains(name)) continue;
      throw Diagnostic("E5005", ExitCode::kUsage, "parameter " + name,
                       "the model has no data for it", "pass --weights none");
    }
  }

  void WriteTo(const std::string& folder) {
    folder_ = folder;
    Programs();
    if (options_.write_weights) Weights();
    Add("graph.shardc", PrintGraph(graph_));
    Manifest manifest = Describe();
    WriteManifest(manifest, ManifestPath(folder));
  }

 private:
  std::string Relative(const std::string& path) const { return path.substr(folder_.size() + 1); }

  void OnWay() const {
    if (options_.on_way) options_.on_way();
  }

  void Add(const std::string& name, const std::string& bytes) {
    OnWay();
    OutputFile file(folder_ + "/" + name);
    file.Write(bytes);
    file.Close();
    files_.push_back({name, static_cast<int64_t>(bytes.size()), ChecksumOf(bytes)});
  }

  void Programs() {
    std::vector<std::vector<int64_t>> ranks(programs_.stages.size());  // by stage
    std::vector<std::string> files(static_cast<size_t>(graph_.mesh.num_ranks()));
    for (size_t r = 0; r < files.size(); ++r) {
      ranks[programs_.StageOf(static_cast<int64_t>(r))].push_back(static_cast<int64_t>(r));
    }
    for (size_t stage = 0; stage < ranks.size(); ++stage) {
      auto made = SerializePrograms(programs_.stages[stage], ranks[stage]);
      for (size_t i = 0; i < made.size(); ++i) files[ranks[stage][i]] = std::move(made[i]);
    }
    for (size_t r = 0; r < files.size(); ++r) {
      Add(Relative(ProgramPath(folder_, static_cast<int64_t>(r))), files[r]);
    }
  }

  // The mesh axes that cut some parameter, or the model: ranks that differ along others only hold
  // equal shards.
  std::vector<int> CuttingAxes() const {
    std::set<int> axes;
    for (const Op* param : params_) {
      for (const DimSharding& d : param->out().sharding.dims) {
        axes.insert(d.axes.begin(), d.axes.end());
      }
    }
    if (programs_.axis >= 0) axes.insert(programs_.axis);
    return {axes.begin(), axes.end()};
  }

  void Weights() {
    fs::create_directory(folder_ + "/weights");
    std::vector<int> axes = CuttingAxes();
    std::map<int64_t, size_t> written;  // by place along the axes: index in files_
    for (int64_t r = 0; r < graph_.mesh.num_ranks(); ++r) {
      OnWay();
      std::string path = WeightsPath(folder_, r);
      auto [first, is_first] = written.try_emplace(graph_.mesh.GroupIndex(r, axes), files_.size());
      if (!is_first) {
        ManifestFile same = files_[first->second];
        if (link((folder_ + "/" + same.path).c_str(), path.c_str()) == 0) {
          same.path = Relative(path);
          files_.push_back(same);
          continue;
        }
        first->second = files_.size();  // a file has only so many names
      }
      WeightsOf(r, path);
    }
  }

  bool Holds(size_t stage, const Op& state) const {
    return held_[stage].contains(state.attrs.String("name"));
  }

  void WeightsOf(int64_t rank, const std::string& path) {
    std::vector<const Op*> params;
    for (const Op* param : params_) {
      if (Holds(programs_.StageOf(rank), *param)) params.push_back(param);
    }
    std::vector<SafetensorsWriter::Announced> announced;
    for (const Op* param : params) {
      announced.push_back(
          {param->attrs.String("name"), param->out().dtype, LocalShape(param->out(), graph_.mesh)});
    }
    SafetensorsWriter writer(path, std::move(announced));
    for (const Op* param : params) {
      OnWay();
      const TensorSource& source = *graph_.sources.find(param->attrs.String("name"))->second;
      try {
        WriteShard(source, param->out(), graph_.mesh, rank, writer);
      } catch (const Diagnostic& d) {
        throw d.In("parameter " + param->attrs.String("name"));
      }
    }
    auto written = writer.Finish();
    files_.push_back({Relative(path), written.bytes, written.checksum});
  }

  ManifestState DescribeState(const Op& op) const {
    const TensorType& type = op.out();
    ManifestState s;
    s.name = op.attrs.String("name");
    s.is_param = op.name() == "param";
    s.of_optimizer = !s.is_param && op.phase == Phase::kOptimizer;
    s.aliases = op.attrs.StringList("aliases", {});
    for (const char* list : {"transposed_aliases", "source_aliases"}) {
      const Strings names = op.attrs.StringList(list, {});
      s.unlike_aliases.insert(s.unlike_aliases.end(), names.begin(), names.end());
    }
    s.transpose_of = op.attrs.String("transpose_of", "");
    s.merged = op.attrs.StringList("merged", {});
    s.piece_of = op.attrs.String("piece_of", "");
    s.role = op.attrs.String("role", "");
    s.dtype = type.dtype;
    s.shape = type.shape;
    s.local_shape = LocalShape(type, graph_.mesh);
    s.sharding = type.sharding;
    s.layout = ShardingToString(type, graph_.mesh);
    s.init = op.attrs.Float("init", 0.0);
    for (size_t stage = 0; programs_.axis >= 0 && stage < programs_.stages.size(); ++stage) {
      if (Holds(stage, op)) s.stages.push_back(static_cast<int>(stage));
    }
    for (const DimSharding& d : type.sharding.dims) {
      for (int axis : d.axes) {
        // The parts of an axis that was split have steps in common.
        AddReasons(s.why, ProvenanceChain(graph_, ProvenanceOf(op.result(), axis)));
      }
    }
    return s;
  }

  Manifest Describe() const {
    Manifest m;
    m.model = options_.model;
    m.spec = options_.spec;
    m.loss = options_.loss;
    m.mesh = graph_.mesh;
    m.pipeline_axis = graph_.pipeline_axis;
    m.has_weights = options_.write_weights;
    m.fixed = options_.fixed;
    m.notes = graph_.notes;
    m.files = files_;
    for (const Op* op : states_) m.states.push_back(DescribeState(*op));
    const std::vector<int64_t> kernels = KernelBytes();
    size_t largest = 0;
    int64_t most = -1;
    for (size_t stage = 0; stage < programs_.stages.size(); ++stage) {
      Manifest memory;
      DescribeMemory(stage, kernels[stage], memory);
      if (memory.total_bytes() <= most) continue;
      most = memory.total_bytes();
      largest = stage;
    }
    DescribeMemory(largest, kernels[largest], m);
    return m;
  }

  // Of each stage: one kernel runs after the other, and keeps both its rooms for the next.
  std::vector<int64_t> KernelBytes() const {
    const size_t stages = programs_.stages.size();
    std::vector<int64_t> work(stages), widened(stages), all(stages);
    for (const auto& op : graph_.ops()) {
      if (!op->def->work_bytes && op->def->cpu_halves == CpuHalves::kAsTheyAre) continue;
      const int stage = programs_.axis < 0 ? 0 : op->stage;
      if (stage < 0) continue;
      const auto at = static_cast<size_t>(stage);
      const LocalCost cost = CostOnRank(*op, graph_.mesh);
      work[at] = std::max(work[at], cost.work_bytes);
      widened[at] = std::max(widened[at], cost.widened_bytes);
    }
    std::transform(work.begin(), work.end(), widened.begin(), all.begin(), std::plus<>());
    return all;
  }

  void DescribeMemory(size_t stage, int64_t kernels_bytes, Manifest& m) const {
    const Program& body = programs_.stages[stage];
    for (const NamedBuffer& s : body.states) {
      int64_t& bytes = param_names_.contains(s.name) ? m.weights_bytes : m.optimizer_bytes;
      bytes += body.buffers[s.buffer].bytes;
    }
    m.inputs_bytes = static_cast<int64_t>(body.constants.size());
    for (const NamedBuffer& i : body.inputs) m.inputs_bytes += body.buffers[i.buffer].bytes;
    m.kernels_bytes = kernels_bytes;
    for (const NamedBuffer& o : body.outputs) {
      if (!ParamOfGradient(o.name).empty()) m.gradients_bytes += body.buffers[o.buffer].bytes;
    }
    m.arena_bytes = body.arena_bytes;
    m.activations_bytes = std::max<int64_t>(0, m.arena_bytes - m.gradients_bytes);
  }

  const Graph& graph_;
  const StagePrograms& programs_;
  const PlanOptions& options_;
  std::vector<const Op*> states_, params_;
  std::set<std::string> param_names_;
  std::vector<std::set<std::string>> held_;  // by stage: names of states
  std::string folder_;
  std::vector<ManifestFile> files_;
};

}  // namespace

void WritePlan(const Graph& graph, const StagePrograms& programs, const PlanOptions& options,
               const std::string& folder) {
  PlanWriter writer(graph, programs, options);
  writer.CheckSources();
  PlanFolder target(folder);
  try {
    writer.WriteTo(target.path());
  } catch (const Diagnostic& d) {
    // The hidden folder is gone when the user reads this.
    std::string where = d.where();
    const size_t at = where.find(target.path());
    if (at == std::string::npos) throw;
    where.replace(at, target.path().size(), folder);
    throw Diagnostic(d.id(), d.code(), where, d.message(), d.fix());
  } catch (const fs::filesystem_error& e) {
    throw CannotWrite(folder, e.code().value());
  }
  target.Commit();
}

}  // namespace shardc
