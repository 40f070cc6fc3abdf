#include "tools/dump.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "ir/counted.h"
#include "ir/diagnostic.h"
#include "tools/verbs.h"

namespace shardc {
namespace {

// "[0..7]", "[0,8,..,56]", "[0,1]".
std::string GroupText(const std::vector<int>& group) {
  std::string text = "[";
  bool consecutive = true;
  for (size_t i = 0; i < group.size(); ++i)
    consecutive &= group[i] == group[0] + static_cast<int>(i);
  if (group.size() > 4 && consecutive) return StrCat("[", group.front(), "..", group.back(), "]");
  if (group.size() > 4) return StrCat("[", group[0], ",", group[1], ",..,", group.back(), "]");
  for (size_t i = 0; i < group.size(); ++i) text += StrCat(i ? "," : "", group[i]);
  return text + "]";
}

std::string GroupsText(const std::vector<std::vector<int>>& groups) {
  if (groups.size() > 1 && groups.size() * groups[0].size() > 8) {
    return StrCat(groups.size(), " groups of ", groups[0].size(), ": ", GroupText(groups[0]),
                  " ...");
  }
  std::string text;
  for (const auto& g : groups) text += GroupText(g);
  return text;
}

std::string ShapesText(const std::vector<Shape>& shapes) {
  std::string text = ShapeToString(shapes.front());
  if (shapes.size() > 1) text += StrCat(" and ", shapes.size() - 1, " more");
  return text;
}

// What decided it, and what asked for it.
std::string WhyText(const std::vector<std::string>& why) {
  if (why.empty()) return "-";
  if (why.size() == 1) return why[0];
  return why.front() + (why.size() > 2 ? " ... " : "; ") + why.back();
}

using Row = std::vector<std::string>;

// The first row is the heading. Columns of `right` are aligned to the right; the last one is not
// padded.
void PrintColumns(const std::vector<Row>& rows, const std::set<size_t>& right) {
  std::vector<size_t> width(rows[0].size());
  for (const Row& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      std::string pad(width[c] - row[c].size(), ' ');
      bool last = c + 1 == row.size();
      if (c) line += "  ";
      line += right.contains(c) ? pad + row[c] : row[c] + (last ? "" : pad);
    }
    std::printf("%s\n", line.c_str());
  }
}

// "1", "0 to 1".
std::string StageText(const Plan& plan, const CollectiveUse& use) {
  const Collective& c = *use.collective;
  if (c.kind == CollectiveKind::kSendRecv) return StrCat(c.from, " to ", c.to);
  return StrCat(StageOf(plan, *use.program));
}

void PrintCollectives(const Plan& plan, const std::vector<CollectiveUse>& uses) {
  const Mesh& mesh = plan.manifest.mesh;
  const bool pipeline = !plan.manifest.pipeline_axis.empty();
  std::map<std::pair<std::vector<int>, std::string>, std::string> groups;
  std::vector<Row> rows = {
      {"id", "phase", "kind", "axes", "groups", "dtype", "shape", "bytes", "op", "where", "why"}};
  if (pipeline) rows[0].insert(rows[0].begin() + 2, "stage");
  for (const CollectiveUse& use : uses) {
    const Collective& c = *use.collective;
    const std::string stage = StageText(plan, use);
    auto [text, fresh] = groups.try_emplace({c.axes, stage});
    if (fresh) text->second = GroupsText(GroupsOf(plan, use));
    const std::string& site = use.instruction->site;
    rows.push_back({StrCat(c.id), std::string(PhaseName(use.instruction->phase)),
                    StrCat(CollectiveKindName(c.kind), c.max ? " max" : ""),
                    Join(mesh.Names(c.axes), ","), text->second, std::string(DTypeName(c.dtype)),
                    ShapesText(use.shapes), StrCat(use.bytes), c.op, site.empty() ? "-" : site,
                    WhyText(c.why)});
    if (pipeline) rows.back().insert(rows.back().begin() + 2, stage);
  }
  PrintColumns(rows, {0, pipeline ? 8u : 7u});
}

void PrintTotals(const std::vector<CollectiveUse>& uses) {
  struct Sum {
    int64_t count = 0, bytes = 0;
  };
  std::map<std::pair<Phase, CollectiveKind>, Sum> sums;
  Sum all;
  for (const CollectiveUse& use : uses) {
    for (Sum* s : {&sums[{use.instruction->phase, use.collective->kind}], &all}) {
      ++s->count;
      s->bytes += use.bytes;
    }
  }
  std::vector<Row> rows = {{"phase", "kind", "count", "bytes"}};
  for (const auto& [key, sum] : sums) {
    rows.push_back({std::string(PhaseName(key.first)), std::string(CollectiveKindName(key.second)),
                    StrCat(sum.count), StrCat(sum.bytes)});
  }
  rows.push_back({"total", "", StrCat(all.count), StrCat(all.bytes)});
  PrintColumns(rows, {2, 3});
}

void PrintMemory(const Manifest& m) {
  PrintColumns({{"memory of a rank", "bytes"},
                {"weights", StrCat(m.weights_bytes)},
                {"gradients", StrCat(m.gradients_bytes)},
                {"activations", StrCat(m.activations_bytes)},
                {"arena", StrCat(m.arena_bytes)},
                {"optimizer", StrCat(m.optimizer_bytes)},
                {"inputs", StrCat(m.inputs_bytes)},
                {"kernels", StrCat(m.kernels_bytes)},
                {"total", StrCat(m.total_bytes())}},
               {1});
}

}  // namespace

int64_t StageOf(const Plan& plan, const Program& program) {
  const std::optional<int> axis = program.mesh.FindAxis(plan.manifest.pipeline_axis);
  return axis ? program.mesh.Coordinate(program.rank, *axis) : 0;
}

std::vector<CollectiveUse> CollectivesOf(const Plan& plan) {
  std::vector<CollectiveUse> uses;
  for (const Program* program : StagesOf(plan)) {
    for (const Instruction& i : program->instructions) {
      // A transfer is shown where it begins.
      if (i.collective < 0 || i.operands.empty()) continue;
      const Collective& c = program->collectives[i.collective];
      CollectiveUse use{program, &c, &i, c.elements * DTypeSize(c.dtype), {}, {}};
      bool result = c.kind == CollectiveKind::kAllReduce || c.kind == CollectiveKind::kAllGather;
      for (int b : result ? i.results : i.operands) {
        use.types.push_back(program->buffers[b].type);
        use.shapes.push_back(program->buffers[b].local_shape);
      }
      uses.push_back(std::move(use));
    }
  }
  // The numbers of a pipeline's collectives are in an order that all stages follow.
  if (!plan.manifest.pipeline_axis.empty()) {
    std::stable_sort(uses.begin(), uses.end(), [](const CollectiveUse& a, const CollectiveUse& b) {
      return a.collective->id < b.collective->id;
    });
  }
  return uses;
}

std::vector<std::vector<int>> GroupsOf(const Plan& plan, const CollectiveUse& use) {
  const Collective& c = *use.collective;
  std::vector<std::vector<int>> groups = plan.manifest.mesh.Groups(c.axes);
  if (c.kind == CollectiveKind::kSendRecv) {
    for (std::vector<int>& g : groups) {
      g = {g[c.from], g[c.to]};
    }
  } else if (const auto axis = plan.manifest.mesh.FindAxis(plan.manifest.pipeline_axis)) {
    const int64_t stage = StageOf(plan, *use.program);
    std::erase_if(groups, [&](const std::vector<int>& g) {
      return plan.manifest.mesh.Coordinate(g[0], *axis) != stage;
    });
  }
  return groups;
}

void PrintDumpTable(const Plan& plan) {
  std::vector<CollectiveUse> uses = CollectivesOf(plan);
  std::string mesh = plan.manifest.mesh.ToString();
  const size_t stages = StagesOf(plan).size();
  const std::string text = StrCat("model ", plan.manifest.model, ", spec ", plan.manifest.spec,
                                  mesh.empty() ? "" : ", mesh " + mesh, ", ",
                                  Counted(plan.manifest.mesh.num_ranks(), "rank"),
                                  stages > 1 ? StrCat(", ", stages, " stages") : "");
  std::printf("%s\n\n", text.c_str());
  if (uses.empty()) {
    std::printf("no collectives\n");
  } else {
    PrintCollectives(plan, uses);
    std::printf("\n");
    PrintTotals(uses);
  }
  std::printf("\n");
  PrintMemory(plan.manifest);
}

namespace {

struct DumpOptions {
  std::string plan, why;
  int64_t rank = 0;
  bool json = false, program = false;
};

void RunDump(const DumpOptions& o) {
  Plan plan = o.program ? LoadPlanOfRank(o.plan, o.rank) : LoadPlanOfStages(o.plan);
  if (o.program) {
    std::cout << ProgramToText(plan.programs.front());
  } else if (!o.why.empty()) {
    PrintWhy(plan, o.why);
  } else if (o.json) {
    PrintDumpJson(plan);
  } else {
    PrintDumpTable(plan);
  }
}

}  // namespace

void AddDumpVerb(CLI::App& app) {
  auto o = std::make_shared<DumpOptions>();
  CLI::App* verb = app.add_subcommand("dump", "every collective of a plan, and why it is there");
  verb->add_option("plan", o->plan, "folder that compile wrote")->required();
  auto* json = verb->add_flag("--json", o->json, "one JSON object on stdout");
  auto* why =
      verb->add_option("--why", o->why,
                       "what the cut of the parameters of this name (mlp.c_fc.weight, *.mlp.*) "
                       "causes, and which spec line caused it");
  auto* program =
      verb->add_option("--program", o->rank, "the program of this rank (0 without a number)");
  program->expected(0, 1)->excludes(json)->excludes(why);
  why->excludes(json);
  verb->callback([o, program] {
    o->program = program->count() > 0;
    RunDump(*o);
  });
}

}  // namespace shardc
