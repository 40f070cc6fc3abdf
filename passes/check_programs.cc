#include "passes/check_programs.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "ir/describe_instruction.h"
#include "ir/diagnostic.h"
#include "passes/check_context.h"

namespace shardc {

void FailCheck(const std::string& where, std::string id, std::string what) {
  throw Diagnostic(std::move(id), ExitCode::kVerification, where, std::move(what),
                   "the plan is damaged or was made by a broken compiler: compile again");
}

std::string CheckContext::DescribeBuffer(int id) const {
  const Buffer& b = buffer(id);
  std::string text = StrCat("buffer ", id, " (");
  if (!b.name.empty()) text += StrCat("'", b.name, "', ");
  if (static_cast<int>(b.type.dtype) < kNumDTypes) text += DTypeName(b.type.dtype);
  text += ShapeToString(b.type.shape);
  switch (b.space) {
    case Space::kArena:
      return StrCat(text, ", arena from ", b.offset, ", ", b.bytes, " bytes)");
    case Space::kState:
      return text + ", state)";
    case Space::kInput:
      return text + ", input)";
    case Space::kConstant:
      return text + ", constant)";
  }
  return text + ")";
}

void CheckContext::FailAt(int i, std::string id, std::string what) const {
  FailCheck(DescribeInstruction(program, static_cast<size_t>(i)), std::move(id), std::move(what));
}

void CheckContext::Fail(const std::string& where, std::string id, std::string what) const {
  FailCheck(StrCat("rank ", program.rank, ", ", where), std::move(id), std::move(what));
}

int64_t CheckProgramBody(const Program& program) {
  CheckContext context(program);
  CheckBuffers(context);
  CheckNamedLists(context);
  CheckInstructions(context);
  CheckCollectives(context);
  CheckShares(context);
  CheckMemory(context);
  return context.visits;
}

namespace {

bool Equal(const Buffer& a, const Buffer& b) {
  return a.space == b.space && a.offset == b.offset && a.bytes == b.bytes &&
         a.alias_of == b.alias_of && a.local_shape == b.local_shape && a.name == b.name &&
         a.type == b.type;
}

bool Equal(const Instruction& a, const Instruction& b) {
  return a.operands == b.operands && a.results == b.results && a.collective == b.collective &&
         a.scratch == b.scratch && a.phase == b.phase && a.op == b.op && a.site == b.site &&
         a.attrs == b.attrs;
}

bool Equal(const Collective& a, const Collective& b) {
  return a.id == b.id && a.kind == b.kind && a.max == b.max && a.axes == b.axes &&
         a.dtype == b.dtype && a.elements == b.elements && a.from == b.from && a.to == b.to;
}

bool Equal(const NamedBuffer& a, const NamedBuffer& b) {
  return a.buffer == b.buffer && a.name == b.name && a.piece == b.piece;
}

template <typename T>
bool Equal(const SharedVector<T>& a, const SharedVector<T>& b) {
  return a.SharesWith(b) || std::equal(a.begin(), a.end(), b.begin(), b.end(),
                                       [](const T& x, const T& y) { return Equal(x, y); });
}

// Equal in all that is checked and not in the rank.
bool EqualBodies(const Program& a, const Program& b) {
  return &a == &b ||
         (a.mesh == b.mesh && a.arena_bytes == b.arena_bytes && Equal(a.buffers, b.buffers) &&
          Equal(a.instructions, b.instructions) && Equal(a.collectives, b.collectives) &&
          Equal(a.inputs, b.inputs) && Equal(a.outputs, b.outputs) && Equal(a.states, b.states) &&
          a.constants == b.constants);
}

void CheckRanks(std::span<const Program* const> programs) {
  if (programs.empty()) FailCheck("program set", "E3201", "there is no program");
  const Mesh& mesh = programs[0]->mesh;
  for (size_t i = 1; i < programs.size(); ++i) {
    if (programs[i]->mesh == mesh) continue;
    FailCheck(StrCat("program ", i), "E3203",
              StrCat("is for the mesh ", programs[i]->mesh.ToString(), ", but program 0 is for ",
                     mesh.ToString()));
  }
  if (static_cast<int64_t>(programs.size()) != mesh.num_ranks()) {
    FailCheck("program set", "E3201",
              StrCat("has ", programs.size(), " programs for the ", mesh.num_ranks(), " ranks of ",
                     mesh.ToString()));
  }
  for (size_t i = 0; i < programs.size(); ++i) {
    if (programs[i]->rank == static_cast<int64_t>(i)) continue;
    FailCheck(StrCat("program ", i), "E3202",
              StrCat("is for rank ", programs[i]->rank, ", not for rank ", i));
  }
}

// All ranks of a stage hold parts of the same tensors.
void CheckSameNames(const Program& first, const Program& other) {
  auto check = [&](const std::vector<NamedBuffer>& a, const std::vector<NamedBuffer>& b,
                   std::string_view what) {
    std::string where = StrCat("rank ", other.rank);
    if (a.size() != b.size()) {
      FailCheck(where, "E3207",
                StrCat("has ", b.size(), " ", what, "s, but rank ", first.rank, " has ", a.size()));
    }
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].name != b[i].name) {
        FailCheck(where, "E3207",
                  StrCat(what, " ", i, " is '", b[i].name, "', but '", a[i].name, "' on rank ",
                         first.rank));
      }
      if (!(a[i].piece == b[i].piece)) {
        FailCheck(where, "E3207",
                  StrCat(what, " '", a[i].name, "' is another piece than on rank ", first.rank));
      }
      const TensorType &s = first.buffers[a[i].buffer].type, &t = other.buffers[b[i].buffer].type;
      if (s == t) continue;
      FailCheck(where, "E3207",
                StrCat(what, " '", a[i].name, "' is ", TypeToString(t, other.mesh), ", but ",
                       TypeToString(s, first.mesh), " on rank ", first.rank));
    }
  };
  check(first.inputs, other.inputs, "input");
  check(first.outputs, other.outputs, "output");
  check(first.states, other.states, "state");
}

// Stages may name different tensors, but not different tensors alike; and each has the whole of
// its own.
void CheckNamesOfStages(const std::vector<const Program*>& stages, const std::set<int>& axes) {
  for (auto list : {&Program::inputs, &Program::outputs, &Program::states}) {
    std::map<std::string_view, std::pair<const Program*, const NamedBuffer*>> first;
    std::map<std::string_view, const Program*> in_pieces;
    for (const Program* p : stages) {
      for (const NamedBuffer& b : p->*list) {
        const TensorType& type = p->buffers[b.buffer].type;
        std::string where = StrCat("rank ", p->rank, ", '", b.name, "'");
        for (int axis : axes) {
          if (!type.sharding.Uses(axis)) continue;
          FailCheck(
              where, "E3207",
              StrCat("is cut over ", p->mesh.axes()[axis].name, ", along which programs differ"));
        }
        auto [it, fresh] = first.try_emplace(b.name, p, &b);
        const auto& [other, entry] = it->second;
        if (!(entry->piece == b.piece && other->buffers[entry->buffer].type == type)) {
          FailCheck(where, "E3207", StrCat("is another tensor than on rank ", other->rank));
        }
        if (!fresh || b.piece.whole.empty()) continue;
        const Program* cuts = in_pieces.try_emplace(b.piece.whole, p).first->second;
        if (cuts == p) continue;
        FailCheck(
            where, "E3207",
            StrCat("is a piece of '", b.piece.whole, "', which is in others on rank ", cuts->rank));
      }
    }
    for (const auto& [whole, p] : in_pieces) {
      auto it = first.find(whole);
      if (it == first.end()) continue;
      FailCheck(StrCat("rank ", it->second.first->rank, ", '", whole, "'"), "E3207",
                StrCat("is in pieces on rank ", p->rank));
    }
  }
}

// Along the axes of transfers programs differ on purpose: they are the stages of a pipeline.
void CheckNames(const std::vector<const Program*>& bodies, const std::vector<int>& body_of) {
  std::set<int> axes;
  for (const Program* body : bodies) {
    for (const Collective& c : body->collectives) {
      if (c.kind == CollectiveKind::kSendRecv) axes.insert(c.axes.begin(), c.axes.end());
    }
  }
  const std::vector<int> along(axes.begin(), axes.end());
  std::map<int64_t, const Program*> stages;
  for (size_t r = 0; r < body_of.size(); ++r) {
    const Program* body = bodies[body_of[r]];
    auto [stage, fresh] =
        stages.try_emplace(body->mesh.GroupIndex(static_cast<int64_t>(r), along), body);
    if (!fresh && stage->second != body) CheckSameNames(*stage->second, *body);
  }
  std::vector<const Program*> all;
  for (const auto& [index, program] : stages) all.push_back(program);
  CheckNamesOfStages(all, axes);
}

}  // namespace

int64_t CheckProgramBodies(const std::vector<const Program*>& bodies,
                           const std::vector<int>& body_of) {
  int64_t visits = 0;
  for (const Program* body : bodies) visits += CheckProgramBody(*body);
  CheckNames(bodies, body_of);
  return visits + CheckSchedule(bodies, body_of);
}

int64_t CheckProgramSet(std::span<const Program* const> programs) {
  for (const Program* p : programs) SHARDC_CHECK(p != nullptr);
  CheckRanks(programs);
  std::vector<const Program*> bodies;
  std::vector<int> body_of;
  int64_t visits = 0;
  for (const Program* p : programs) {
    auto same = std::find_if(bodies.begin(), bodies.end(), [&](const Program* b) {
      visits += static_cast<int64_t>(p->buffers.size() + p->instructions.size());
      return EqualBodies(*b, *p);
    });
    body_of.push_back(static_cast<int>(same - bodies.begin()));
    if (same == bodies.end()) bodies.push_back(p);
  }
  return visits + CheckProgramBodies(bodies, body_of);
}

}  // namespace shardc
