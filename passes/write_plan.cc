#include "passes/write_plan.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "ir/checksum.h"
#include "ir/diagnostic.h"
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

// The shard that a rank holds, padding zero.
std::vector<std::byte> ReadShard(const TensorSource& source, const TensorType& type,
                                 const Mesh& mesh, int64_t rank) {
  Shape local_shape = LocalShape(type, mesh);
  int64_t element = DTypeSize(type.dtype);
  std::vector<std::byte> local(static_cast<size_t>(LocalBytes(type, mesh)));
  std::vector<std::byte> piece;
  for (const ShardBox& box : ShardBoxes(type, mesh, rank)) {
    if (NumElements(box.size) == 0) continue;
    if (box.size == local_shape) {
      source.Read(box.global, box.size, local.data());
      continue;
    }
    piece.resize(static_cast<size_t>(NumElements(box.size) * element));
    source.Read(box.global, box.size, piece.data());
    CopyBox(piece.data(), box.size, Shape(box.size.size()), local.data(), local_shape, box.local,
            box.size, element);
  }
  return local;
}

class PlanWriter {
 public:
  PlanWriter(const Graph& graph, const Program& body, const PlanOptions& options)
      : graph_(graph), body_(body), options_(options) {
    for (const auto& op : graph.ops()) {
      if (op->def->is_state) states_.push_back(op.get());
      if (op->name() == "param") params_.push_back(op.get());
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

  void Add(const std::string& name, const std::string& bytes) {
    OutputFile file(folder_ + "/" + name);
    file.Write(bytes);
    file.Close();
    files_.push_back({name, static_cast<int64_t>(bytes.size()), ChecksumOf(bytes)});
  }

  void Programs() {
    std::string body = SerializeBody(body_);
    // Only the header differs: one copy serves all ranks, without the buffers and instructions.
    Program header;
    header.version = body_.version;
    header.mesh = body_.mesh;
    for (int64_t r = 0; r < body_.mesh.num_ranks(); ++r) {
      header.rank = r;
      Add(Relative(ProgramPath(folder_, r)), SerializeProgram(header, body));
    }
  }

  // The mesh axes that cut some parameter: ranks that differ along others only hold equal shards.
  std::vector<int> CuttingAxes() const {
    std::set<int> axes;
    for (const Op* param : params_) {
      for (const DimSharding& d : param->out().sharding.dims) {
        axes.insert(d.axes.begin(), d.axes.end());
      }
    }
    return {axes.begin(), axes.end()};
  }

  void Weights() {
    fs::create_directory(folder_ + "/weights");
    std::vector<int> axes = CuttingAxes();
    std::map<int64_t, size_t> written;  // by place along the axes: index in files_
    for (int64_t r = 0; r < graph_.mesh.num_ranks(); ++r) {
      std::string path = WeightsPath(folder_, r);
      auto [first, is_first] = written.try_emplace(graph_.mesh.GroupIndex(r, axes), files_.size());
      if (!is_first) {
        ManifestFile same = files_[first->second];
        if (link((folder_ + "/" + same.path).c_str(), path.c_str()) == 0) {
          same.path = Relative(path);
          files_.push_back(same);
          continue;
        }
      }
      WeightsOf(r, path);
    }
  }

  void WeightsOf(int64_t rank, const std::string& path) {
    std::vector<SafetensorsWriter::Announced> announced;
    for (const Op* param : params_) {
      announced.push_back(
          {param->attrs.String("name"), param->out().dtype, LocalShape(param->out(), graph_.mesh)});
    }
    SafetensorsWriter writer(path, std::move(announced));
    for (const Op* param : params_) {
      const TensorSource& source = *graph_.sources.find(param->attrs.String("name"))->second;
      try {
        writer.Write(ReadShard(source, param->out(), graph_.mesh, rank));
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
    if (op.attrs.Has("aliases")) s.aliases = op.attrs.StringList("aliases");
    s.piece_of = op.attrs.String("piece_of", "");
    s.role = op.attrs.String("role", "");
    s.dtype = type.dtype;
    s.shape = type.shape;
    s.local_shape = LocalShape(type, graph_.mesh);
    s.sharding = type.sharding;
    s.layout = ShardingToString(type, graph_.mesh);
    s.init = op.attrs.Float("init", 0.0);
    for (const DimSharding& d : type.sharding.dims) {
      for (int axis : d.axes) {
        for (std::string& step : ProvenanceChain(graph_, ProvenanceOf(op.result(), axis))) {
          // The parts of an axis that was split have steps in common.
          if (std::find(s.why.begin(), s.why.end(), step) == s.why.end()) {
            s.why.push_back(std::move(step));
          }
        }
      }
    }
    return s;
  }

  Manifest Describe() const {
    Manifest m;
    m.model = options_.model;
    m.spec = options_.spec;
    m.mesh = graph_.mesh;
    m.has_weights = options_.write_weights;
    m.notes = graph_.notes;
    m.files = files_;
    for (const Op* op : states_) m.states.push_back(DescribeState(*op));
    for (const Op* op : states_) {
      int64_t& bytes = op->name() == "param" ? m.weights_bytes : m.optimizer_bytes;
      bytes += LocalBytes(op->out(), graph_.mesh);
    }
    for (const NamedBuffer& i : body_.inputs) m.inputs_bytes += body_.buffers[i.buffer].bytes;
    m.inputs_bytes += static_cast<int64_t>(body_.constants.size());
    // One runs after the other, and keeps both its rooms for the next.
    int64_t work = 0, widened = 0;
    for (const auto& op : graph_.ops()) {
      if (!op->def->work_bytes && op->def->cpu_halves == CpuHalves::kAsTheyAre) continue;
      const LocalCost cost = CostOnRank(*op, graph_.mesh);
      work = std::max(work, cost.work_bytes);
      widened = std::max(widened, cost.widened_bytes);
    }
    m.kernels_bytes = work + widened;
    for (const NamedBuffer& o : body_.outputs) {
      if (o.name.starts_with("grad.")) m.gradients_bytes += body_.buffers[o.buffer].bytes;
    }
    m.arena_bytes = body_.arena_bytes;
    m.activations_bytes = std::max<int64_t>(0, m.arena_bytes - m.gradients_bytes);
    return m;
  }

  const Graph& graph_;
  const Program& body_;
  const PlanOptions& options_;
  std::vector<const Op*> states_, params_;
  std::string folder_;
  std::vector<ManifestFile> files_;
};

}  // namespace

void WritePlan(const Graph& graph, const Program& body, const PlanOptions& options,
               const std::string& folder) {
  PlanWriter writer(graph, body, options);
  writer.CheckSources();
  PlanFolder target(folder);
  try {
    writer.WriteTo(target.path());
  } catch (const Diagnostic& d) {
    // The hidden folder is gone when the user reads this.
    if (!d.where().starts_with(target.path())) throw;
    throw Diagnostic(d.id(), d.code(), folder + d.where().substr(target.path().size()), d.message(),
                     d.fix());
  } catch (const fs::filesystem_error& e) {
    throw Diagnostic("E5003", ExitCode::kIo, folder, e.code().message());
  }
  target.Commit();
}

}  // namespace shardc
