#include "tools/plan.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "ir/checksum.h"
#include "ir/diagnostic.h"
#include "ir/safetensors.h"
#include "ir/shard_copy.h"
#include "passes/check_programs.h"
#include "tools/files.h"

namespace shardc {
namespace {

Diagnostic Disagree(const std::string& where, const std::string& what) {
  return Diagnostic("E3006", ExitCode::kVerification, where, what,
                    "files of different plans were mixed: compile again");
}

Diagnostic Damaged(const std::string& path, const std::string& what) {
  return Diagnostic("E3002", ExitCode::kVerification, path, what,
                    "the file was changed or damaged: compile again, or copy the plan again");
}

const ManifestFile& Listed(const Plan& plan, const std::string& path) {
  std::string name = path.substr(plan.folder.size() + 1);
  for (const ManifestFile& f : plan.manifest.files) {
    if (f.path == name) return f;
  }
  throw Disagree(ManifestPath(plan.folder), StrCat("does not list the file ", name));
}

void CheckBytes(const std::string& path, const ManifestFile& listed, int64_t bytes,
                const std::string& checksum) {
  if (bytes != listed.bytes) {
    throw Damaged(path, StrCat("has ", bytes, " bytes, and the manifest says ", listed.bytes));
  }
  if (checksum != listed.checksum) throw Damaged(path, "its checksum is not the manifest's");
}

void CheckFile(const Plan& plan, const std::string& path) {
  int64_t bytes = 0;
  std::string checksum = FileChecksum(path, &bytes);
  CheckBytes(path, Listed(plan, path), bytes, checksum);
}

Program LoadProgram(const Plan& plan, int64_t rank) {
  std::string path = ProgramPath(plan.folder, rank);
  std::string bytes = ReadFile(path);
  Program program = ParseProgram(bytes, path);
  CheckBytes(path, Listed(plan, path), static_cast<int64_t>(bytes.size()), ChecksumOf(bytes));
  if (!(program.mesh == plan.manifest.mesh) || program.rank != rank) {
    throw Disagree(path, StrCat("is rank ", program.rank, " of mesh ", program.mesh.ToString(),
                                ", and the manifest's mesh is ", plan.manifest.mesh.ToString()));
  }
  return program;
}

const ManifestState* FindState(const Manifest& manifest, const std::string& name) {
  for (const ManifestState& s : manifest.states) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

void CheckStates(const Plan& plan) {
  for (const Program& program : plan.programs) {
    for (const NamedBuffer& state : program.states) {
      const Buffer& b = program.buffers[state.buffer];
      const ManifestState* s = FindState(plan.manifest, state.name);
      if (!s) throw Disagree(ManifestPath(plan.folder), "does not list '" + state.name + "'");
      if (s->dtype != b.type.dtype || s->shape != b.type.shape || s->local_shape != b.local_shape) {
        throw Disagree(ManifestPath(plan.folder),
                       "gives '" + state.name + "' another type than the programs");
      }
    }
  }
}

Plan LoadManifest(const std::string& folder) {
  Plan plan;
  plan.folder = folder;
  while (plan.folder.size() > 1 && plan.folder.back() == '/') plan.folder.pop_back();
  plan.manifest = ReadManifest(ManifestPath(plan.folder));
  return plan;
}

// The weights of all ranks; ranks come from their own threads.
class Weights {
 public:
  explicit Weights(const Plan& plan) : plan_(plan) {
    for (const ManifestState& s : plan.manifest.states) states_[s.name] = &s;
    for (int64_t r = 0; r < plan.manifest.mesh.num_ranks(); ++r) {
      std::string path = WeightsPath(plan.folder, r);
      std::string same = Listed(plan, path).checksum;
      // Replicas are often one file under several names: it is verified and mapped once.
      std::error_code error;
      for (auto& [other, file] : by_path_) {
        if (file->checksum == same && std::filesystem::equivalent(other, path, error)) {
          files_.push_back(file);
          break;
        }
      }
      if (static_cast<int64_t>(files_.size()) > r) continue;
      files_.push_back(std::make_shared<File>());
      files_.back()->path = path;
      files_.back()->checksum = same;
      by_path_.emplace_back(path, files_.back());
    }
  }

  void Read(int64_t rank, const NamedBuffer& state, const Buffer& buffer, std::byte* local) const {
    const ManifestState& s = *states_.at(state.name);
    if (s.is_param) return ReadParam(*files_[static_cast<size_t>(rank)], state.name, buffer, local);
    Initialise(rank, s, buffer, local);
  }

 private:
  struct File {
    std::string path, checksum;
    std::once_flag opened;
    std::unique_ptr<SafetensorsFile> tensors;
  };

  void ReadParam(File& file, const std::string& name, const Buffer& buffer,
                 std::byte* local) const {
    std::call_once(file.opened, [&] {
      CheckFile(plan_, file.path);
      file.tensors = std::make_unique<SafetensorsFile>(file.path);
    });
    auto entry = file.tensors->entries().find(name);
    if (entry == file.tensors->entries().end()) {
      throw Disagree(file.path, "has no tensor '" + name + "'");
    }
    if (entry->second.dtype != buffer.type.dtype || entry->second.shape != buffer.local_shape) {
      throw Disagree(file.path,
                     StrCat("'", name, "' is ", DTypeName(entry->second.dtype),
                            ShapeToString(entry->second.shape), ", and the program wants ",
                            DTypeName(buffer.type.dtype), ShapeToString(buffer.local_shape)));
    }
    std::span<const std::byte> data = file.tensors->Data(name);
    std::copy(data.begin(), data.end(), local);
  }

  // The memory is zero already, and padding stays so.
  void Initialise(int64_t rank, const ManifestState& s, const Buffer& buffer,
                  std::byte* local) const {
    if (s.init == 0) return;
    for (const ShardBox& box : ShardBoxes(buffer.type, plan_.manifest.mesh, rank)) {
      HostTensor value(buffer.type.dtype, box.size);
      for (int64_t i = 0; i < value.num_elements(); ++i) value.SetDouble(i, s.init);
      CopyBox(value.raw(), box.size, Shape(box.size.size()), local, buffer.local_shape, box.local,
              box.size, DTypeSize(buffer.type.dtype));
    }
  }

  const Plan& plan_;
  std::map<std::string, const ManifestState*> states_;
  std::vector<std::shared_ptr<File>> files_;  // by rank
  std::vector<std::pair<std::string, std::shared_ptr<File>>> by_path_;
};

}  // namespace

Plan LoadPlan(const std::string& folder) {
  Plan plan = LoadManifest(folder);
  CheckFile(plan, plan.folder + "/graph.shardc");
  std::vector<const Program*> set;
  for (int64_t r = 0; r < plan.manifest.mesh.num_ranks(); ++r) {
    plan.programs.push_back(LoadProgram(plan, r));
  }
  for (const Program& p : plan.programs) set.push_back(&p);
  CheckProgramSet(set);
  CheckStates(plan);
  return plan;
}

std::vector<const Program*> StagesOf(const Plan& plan) {
  const std::optional<int> axis = plan.manifest.mesh.FindAxis(plan.manifest.pipeline_axis);
  std::vector<const Program*> stages;
  for (const Program& p : plan.programs) {
    const int64_t stage = axis ? p.mesh.Coordinate(p.rank, *axis) : 0;
    if (stage == static_cast<int64_t>(stages.size())) stages.push_back(&p);
  }
  return stages;
}

Plan LoadPlanOfStages(const std::string& folder) {
  Plan plan = LoadManifest(folder);
  const Mesh& mesh = plan.manifest.mesh;
  const std::optional<int> axis = mesh.FindAxis(plan.manifest.pipeline_axis);
  int64_t next = 0;
  for (int64_t r = 0; r < mesh.num_ranks(); ++r) {
    const int64_t stage = axis ? mesh.Coordinate(r, *axis) : 0;
    if (stage != next) {
      CheckFile(plan, ProgramPath(plan.folder, r));
      continue;
    }
    plan.programs.push_back(LoadProgram(plan, r));
    CheckProgramBody(plan.programs.back());
    ++next;
  }
  CheckStates(plan);
  return plan;
}

Plan LoadPlanOfRank(const std::string& folder, int64_t rank) {
  Plan plan = LoadManifest(folder);
  int64_t ranks = plan.manifest.mesh.num_ranks();
  if (rank < 0 || rank >= ranks) {
    throw Diagnostic(
        "E6106", ExitCode::kUsage, "--program",
        StrCat("there is no rank ", rank, " in the mesh ", plan.manifest.mesh.ToString()),
        StrCat("ranks are 0 to ", ranks - 1));
  }
  for (int64_t r = 0; r < ranks; ++r) {
    if (r != rank) CheckFile(plan, ProgramPath(plan.folder, r));
  }
  plan.programs.push_back(LoadProgram(plan, rank));
  CheckProgramBody(plan.programs.front());
  CheckStates(plan);
  return plan;
}

StateReader WeightsReader(const Plan& plan) {
  bool params = std::any_of(plan.manifest.states.begin(), plan.manifest.states.end(),
                            [](const ManifestState& s) { return s.is_param; });
  if (!plan.manifest.has_weights) {
    if (params) {
      throw Diagnostic("E4008", ExitCode::kUsage, plan.folder,
                       "the plan was compiled without weights", "compile with --weights split");
    }
    return [](int64_t, const NamedBuffer&, const Buffer&, std::byte*) {};
  }
  auto weights = std::make_shared<Weights>(plan);
  return [weights](int64_t rank, const NamedBuffer& state, const Buffer& buffer, std::byte* local) {
    weights->Read(rank, state, buffer, local);
  };
}

}  // namespace shardc
