#include "tools/plan.h"

#include <optional>

#include "ir/checksum.h"
#include "passes/check_programs.h"
#include "tools/files.h"

namespace shardc {
namespace {

// Who compiles gives a plan its name as a whole, but its files are read one by one.
std::string OrReplaced(const std::string& fix) {
  return StrCat("if the plan was compiled anew while it was read, run this again; else ", fix);
}

Diagnostic Damaged(const std::string& path, const std::string& what) {
  return Diagnostic("E3002", ExitCode::kVerification, path, what,
                    OrReplaced("the file was changed or damaged: compile again, or copy the plan "
                               "again"));
}

void CheckBytes(const std::string& path, const ManifestFile& listed, int64_t bytes,
                const std::string& checksum) {
  if (bytes != listed.bytes) {
    throw Damaged(path, StrCat("has ", bytes, " bytes, and the manifest says ", listed.bytes));
  }
  if (checksum != listed.checksum) throw Damaged(path, "its checksum is not the manifest's");
}

// Of a file of the plan; says so where it cannot be read.
template <typename Read>
auto ReadListed(const Read& read) {
  try {
    return read();
  } catch (const Diagnostic& d) {
    if (d.id() != "E5001") throw;
    throw Diagnostic(d.id(), d.code(), d.where(), d.message(),
                     OrReplaced("the plan needs this file: copy the whole folder again, or compile "
                                "it again"));
  }
}

// Reads the programs of a plan; of those that run the same, the body once.
class Loader {
 public:
  explicit Loader(const Plan& plan) : plan_(plan) {}

  Program Load(int64_t rank) {
    ProgramFile file = Read(rank);
    if (file.body_at == rank) {
      Keep(file);
      return std::move(file.program);
    }
    if (!bodies_.contains(file.body_at)) {
      const ProgramFile holder = Read(file.body_at);
      if (holder.body_at == file.body_at) Keep(holder);
    }
    const auto found = bodies_.find(file.body_at);
    if (found == bodies_.end() || found->second.body_sum != file.body_sum) {
      throw MixedPlans(ProgramPath(plan_.folder, rank),
                       StrCat("runs what ", ProgramPath(plan_.folder, file.body_at),
                              " should have and has not"));
    }
    Program program = found->second.program;
    program.rank = rank;
    return program;
  }

 private:
  ProgramFile Read(int64_t rank) const {
    const std::string path = ProgramPath(plan_.folder, rank);
    const std::string bytes = ReadListed([&] { return ReadFile(path); });
    ProgramFile file = ParseProgram(bytes, path);
    CheckBytes(path, ListedFile(plan_, path), static_cast<int64_t>(bytes.size()),
               ChecksumOf(bytes));
    const Program& program = file.program;
    if (!(program.mesh == plan_.manifest.mesh) || program.rank != rank) {
      throw MixedPlans(path,
                       StrCat("is rank ", program.rank, " of mesh ", program.mesh.ToString(),
                              ", and the manifest's mesh is ", plan_.manifest.mesh.ToString()));
    }
    return file;
  }

  void Keep(const ProgramFile& file) { bodies_.emplace(file.body_at, file); }

  const Plan& plan_;
  std::map<int64_t, ProgramFile> bodies_;  // by the rank whose file has them
};

void CheckStates(const Plan& plan) {
  const std::map<std::string, const ManifestState*> states = StatesByName(plan);
  for (const Program& program : plan.programs) {
    for (const NamedBuffer& state : program.states) {
      const Buffer& b = program.buffers[state.buffer];
      const auto found = states.find(state.name);
      if (found == states.end()) {
        throw MixedPlans(ManifestPath(plan.folder), "does not list '" + state.name + "'");
      }
      const ManifestState* s = found->second;
      if (s->dtype != b.type.dtype || s->shape != b.type.shape || s->local_shape != b.local_shape) {
        throw MixedPlans(ManifestPath(plan.folder),
                         "gives '" + state.name + "' another type than the programs");
      }
    }
  }
}

// A plan without its programs.
Plan LoadManifest(const std::string& folder) {
  Plan plan;
  plan.folder = folder;
  while (plan.folder.size() > 1 && plan.folder.back() == '/') plan.folder.pop_back();
  plan.manifest = ReadManifest(ManifestPath(plan.folder));
  CheckListedFile(plan, plan.folder + "/graph.shardc");
  return plan;
}

}  // namespace

Diagnostic MixedPlans(const std::string& where, const std::string& what) {
  return Diagnostic("E3006", ExitCode::kVerification, where, what,
                    OrReplaced("files of different plans were mixed: compile again"));
}

std::map<std::string, const ManifestState*> StatesByName(const Plan& plan) {
  std::map<std::string, const ManifestState*> states;
  for (const ManifestState& s : plan.manifest.states) states.emplace(s.name, &s);
  return states;
}

const ManifestFile& ListedFile(const Plan& plan, const std::string& path) {
  std::string name = path.substr(plan.folder.size() + 1);
  for (const ManifestFile& f : plan.manifest.files) {
    if (f.path == name) return f;
  }
  throw MixedPlans(ManifestPath(plan.folder), StrCat("does not list the file ", name));
}

void CheckListedFile(const Plan& plan, const std::string& path) {
  int64_t bytes = 0;
  std::string checksum = ReadListed([&] { return FileChecksum(path, &bytes); });
  CheckBytes(path, ListedFile(plan, path), bytes, checksum);
}

std::string ChecksumOfFiles(const Plan& plan) {
  std::string list;
  for (const ManifestFile& f : plan.manifest.files) list += StrCat(f.path, " ", f.checksum, "\n");
  return ChecksumOf(list);
}

Plan LoadPlan(const std::string& folder) {
  Plan plan = LoadManifest(folder);
  std::vector<const Program*> set;
  Loader loader(plan);
  for (int64_t r = 0; r < plan.manifest.mesh.num_ranks(); ++r) {
    plan.programs.push_back(loader.Load(r));
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
      CheckListedFile(plan, ProgramPath(plan.folder, r));
      continue;
    }
    plan.programs.push_back(Loader(plan).Load(r));
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
    if (r != rank) CheckListedFile(plan, ProgramPath(plan.folder, r));
  }
  plan.programs.push_back(Loader(plan).Load(rank));
  CheckProgramBody(plan.programs.front());
  CheckStates(plan);
  return plan;
}

}  // namespace shardc
