#include "tools/compile_report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "ir/counted.h"
#include "ir/diagnostic.h"

namespace shardc {

void WarnOfIdleAxes(const StagePrograms& programs, const Spec& spec) {
  const Mesh& mesh = programs.stages[0].mesh;
  std::vector<std::string> cut_over;
  for (const std::vector<SpecRule>* rules :
       {&spec.params, &spec.inputs, &spec.values, &spec.tensors}) {
    for (const SpecRule& rule : *rules) {
      for (const CutDim& cut : rule.cuts) {
        if (!std::count(cut_over.begin(), cut_over.end(), cut.axis)) cut_over.push_back(cut.axis);
      }
    }
  }
  for (int a = 0; a < mesh.num_axes(); ++a) {
    if (mesh.axis_size(a) == 1 || a == programs.axis) continue;
    const bool used =
        std::any_of(programs.stages.begin(), programs.stages.end(), [&](const Program& p) {
          return std::any_of(p.buffers.begin(), p.buffers.end(),
                             [&](const Buffer& b) { return b.type.sharding.Uses(a); });
        });
    if (used) continue;
    const std::string& name = mesh.axes()[a].name;
    const bool cut = std::count(cut_over.begin(), cut_over.end(), name) > 0;
    const std::string near = cut ? "" : DidYouMean(name, cut_over);
    std::fprintf(
        stderr, "warning: nothing is cut over axis '%s': its %lld ranks all do the same work; %s\n",
        name.c_str(), static_cast<long long>(mesh.axis_size(a)),
        StrCat("spec ", spec.name,
               cut_over.empty() ? " cuts nothing" : " cuts over " + Join(cut_over, ", "),
               near.empty() ? "" : "; " + near)
            .c_str());
  }
}

namespace {

// What the model gives beside its loss may be most of what a step holds in the end.
void NoteLargeOutputs(const Program& p) {
  constexpr int64_t kLarge = int64_t{256} << 20;
  const bool trains = std::any_of(p.instructions.begin(), p.instructions.end(),
                                  [](const Instruction& i) { return i.phase == Phase::kBackward; });
  if (!trains) return;
  for (const NamedBuffer& o : p.outputs) {
    const Buffer& b = p.buffers[o.buffer];
    if (!ParamOfGradient(o.name).empty() || b.space != Space::kArena) continue;
    if (b.bytes < std::max(kLarge, p.arena_bytes / 10)) continue;
    const std::string text =
        StrCat("output '", o.name, "' holds ", b.bytes, " of an arena's ", p.arena_bytes,
               " bytes to the end of a step; --drop '", o.name, "' is without it");
    std::fprintf(stderr, "note: %s\n", text.c_str());
  }
}

}  // namespace

void PrintNotes(const Graph& graph, const StagePrograms& programs) {
  for (const std::string& note : graph.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  for (const Program& program : programs.stages) NoteLargeOutputs(program);
}

void Summarise(const Graph& graph, const StagePrograms& programs, const std::string& folder) {
  struct Sum {
    int64_t count = 0, bytes = 0;
  };
  std::map<std::string, Sum> kinds;
  size_t instructions = 0;
  int64_t arena = 0;
  for (const Program& program : programs.stages) {
    for (const Instruction& i : program.instructions) {
      // A transfer is counted where it begins.
      if (i.collective < 0 || i.operands.empty()) continue;
      const Collective& c = program.collectives[i.collective];
      Sum& s = kinds[std::string(CollectiveKindName(c.kind))];
      ++s.count;
      s.bytes += c.elements * DTypeSize(c.dtype);
    }
    instructions = std::max(instructions, program.instructions.size());
    arena = std::max(arena, program.arena_bytes);
  }
  std::string list;
  for (const auto& [kind, sum] : kinds) {
    list += StrCat(list.empty() ? "" : ", ", sum.count, " ", kind, " (", sum.bytes, " bytes)");
  }
  const size_t stages = programs.stages.size();
  const std::string mesh = graph.mesh.ToString();
  const std::string text = StrCat(
      folder, ": ", mesh.empty() ? "" : "mesh " + mesh + ", ",
      Counted(graph.mesh.num_ranks(), "rank"), stages > 1 ? StrCat(", ", stages, " stages") : "",
      ", ", Counted(static_cast<int64_t>(instructions), "instruction"), ", arena ", arena,
      " bytes, ", list.empty() ? "no communication" : list);
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace shardc
