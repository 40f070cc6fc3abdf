// Instructions by themselves: known ops, with operands, attributes and results that fit.
#include <algorithm>
#include <span>

#include "ir/diagnostic.h"
#include "passes/check_context.h"

namespace shardc {
namespace {

class InstructionChecker {
 public:
  explicit InstructionChecker(CheckContext& context)
      : context_(context), program_(context.program) {}

  void Run() {
    context_.defs.resize(program_.instructions.size());
    for (size_t i = 0; i < program_.instructions.size(); ++i) Check(static_cast<int>(i));
  }

 private:
  void Check(int i) {
    const Instruction& instruction = context_.instruction(i);
    context_.visits +=
        static_cast<int64_t>(instruction.operands.size() + instruction.results.size());
    CheckIds(i, instruction.operands, "operand");
    CheckIds(i, instruction.results, "result");
    CheckScratch(i);
    // The sender of a transfer has none; what it may have is up to check_collectives.cc.
    const bool transfer = instruction.op == CollectiveKindName(CollectiveKind::kSendRecv);
    if (instruction.results.empty() && !transfer) {
      context_.FailAt(i, "E3108", "has no result");
    }
    if (instruction.op == "copy") return CheckCopy(i);
    if (instruction.op == "pack" || instruction.op == "unpack") return CheckPieces(i);
    const OpDef* def = Lookup(i);
    context_.defs[i] = def;
    if (!transfer) CheckOperandCount(i, *def);
    // What collectives move follows from the collective: check_collectives.cc.
    if (def->communicates) return;
    CheckAttributes(i, def->attrs);
    CheckResultTypes(i, *def);
  }

  void CheckIds(int i, const std::vector<int>& ids, const char* what) const {
    int n = static_cast<int>(program_.buffers.size());
    for (size_t k = 0; k < ids.size(); ++k) {
      if (ids[k] >= 0 && ids[k] < n) continue;
      context_.FailAt(i, "E3104",
                      StrCat(what, " ", k, " is buffer ", ids[k], ", which does not exist"));
    }
  }

  void CheckScratch(int i) const {
    int scratch = context_.instruction(i).scratch;
    if (scratch == -1) return;
    if (scratch < 0 || scratch >= static_cast<int>(program_.buffers.size())) {
      context_.FailAt(i, "E3104", StrCat("scratch is buffer ", scratch, ", which does not exist"));
    }
    if (context_.root(scratch).space == Space::kArena) return;
    context_.FailAt(i, "E3104",
                    StrCat("scratch is outside the arena: ", context_.DescribeBuffer(scratch)));
  }

  void CheckOneToOne(int i) const {
    const Instruction& instruction = context_.instruction(i);
    if (instruction.operands.size() == 1 && instruction.results.size() == 1) return;
    context_.FailAt(i, "E3108",
                    StrCat("moves one buffer, not ", instruction.operands.size(), " to ",
                           instruction.results.size()));
  }

  void CheckCopy(int i) const {
    CheckOneToOne(i);
    int from = context_.instruction(i).operands[0], to = context_.instruction(i).results[0];
    const TensorType &a = context_.buffer(from).type, &b = context_.buffer(to).type;
    if (a.SameTensor(b) && Canonical(a, program_.mesh) == Canonical(b, program_.mesh)) return;
    bool state = context_.root(to).space == Space::kState;
    context_.FailAt(
        i, state ? "E3111" : "E3105",
        StrCat("copies ", TypeToString(a, program_.mesh), " to ", context_.DescribeBuffer(to),
               " of another type, ", TypeToString(b, program_.mesh)));
  }

  // pack: a tensor to one piece for each rank of a group, cut along `dim`; unpack: the other way.
  void CheckPieces(int i) {
    static const std::vector<AttrSpec> kSpecs = {{"axes", AttrKind::kStrings, true},
                                                 {"cut_axes", AttrKind::kStrings, true},
                                                 {"dim", AttrKind::kInt, true},
                                                 {"granule", AttrKind::kInt},
                                                 {"segments", AttrKind::kInts}};
    CheckOneToOne(i);
    CheckAttributes(i, kSpecs);
    const Instruction& instruction = context_.instruction(i);
    int whole = instruction.operands[0], pieces = instruction.results[0];
    if (instruction.op == "unpack") std::swap(whole, pieces);
    const Buffer &w = context_.buffer(whole), &p = context_.buffer(pieces);
    int64_t dim = instruction.attrs.Int("dim");
    if (dim < 0 || dim >= w.type.rank()) {
      context_.FailAt(i, "E3108",
                      StrCat("there is no dim ", dim, " in ", context_.DescribeBuffer(whole)));
    }
    Shape want = w.local_shape;
    auto d = static_cast<size_t>(dim);
    want[d] = LocalDim(w.type.shape[d], CutOfPieces(i, w.type.shape[d]), program_.mesh);
    want.insert(want.begin(), program_.mesh.GroupSize(AxesAttribute(i, "axes")));
    if (p.local_shape == want && p.type.dtype == w.type.dtype) return;
    context_.FailAt(
        i, "E3105",
        StrCat("the pieces of ", context_.DescribeBuffer(whole), " are ", DTypeName(w.type.dtype),
               ShapeToString(want), ", not ", context_.DescribeBuffer(pieces)));
  }

  std::vector<int> AxesAttribute(int i, std::string_view name) const {
    std::vector<int> axes;
    for (const std::string& axis : context_.instruction(i).attrs.StringList(name)) {
      auto found = program_.mesh.FindAxis(axis);
      if (!found) context_.FailAt(i, "E3108", StrCat("the mesh has no axis '", axis, "'"));
      if (std::find(axes.begin(), axes.end(), *found) != axes.end()) {
        context_.FailAt(i, "E3108", StrCat("attribute '", name, "' names '", axis, "' twice"));
      }
      axes.push_back(*found);
    }
    return axes;
  }

  DimSharding CutOfPieces(int i, int64_t size) const {
    const Attributes& attrs = context_.instruction(i).attrs;
    TensorType type(DType::kF32, {size});
    DimSharding& cut = type.sharding.dims[0];
    std::vector<int> axes = AxesAttribute(i, "cut_axes");
    if (axes.size() > AxisList::kMax) context_.FailAt(i, "E3108", "cuts over too many axes");
    for (int a : axes) cut.axes.push_back(a);
    cut.granule = attrs.Int("granule", 1);
    cut.segments = attrs.IntList("segments", {});
    std::string what = MalformedType(type, program_.mesh);
    try {
      if (what.empty()) CheckSharding(type, program_.mesh, {});
    } catch (const Diagnostic& d) {
      what = d.message();
    }
    if (!what.empty()) context_.FailAt(i, "E3108", "its pieces do not fit: " + what);
    return cut;
  }

  const OpDef* Lookup(int i) {
    const Instruction& instruction = context_.instruction(i);
    auto [it, added] = known_.try_emplace(instruction.op, nullptr);
    if (added) it->second = FindOpDef(instruction.op);
    const OpDef* def = it->second;
    if (!def) context_.FailAt(i, "E3108", StrCat("there is no op '", instruction.op, "'"));
    if (def->is_state || def->name == "update" || def->name == "reshard") {
      context_.FailAt(i, "E3108", StrCat("op '", instruction.op, "' is no instruction"));
    }
    return def;
  }

  void CheckOperandCount(int i, const OpDef& def) const {
    const size_t n = context_.instruction(i).operands.size();
    if (def.Takes(n)) return;
    std::string want = StrCat(def.min_operands);
    if (def.max_operands < 0) {
      want += " or more";
    } else if (def.max_operands != def.min_operands) {
      want += StrCat(" to ", def.max_operands);
    }
    context_.FailAt(i, "E3108", StrCat("has ", n, " operands, needs ", want));
  }

  // All that kernels may ask for has been checked by the op, so there is nothing else.
  void CheckAttributes(int i, std::span<const AttrSpec> specs) const {
    const Attributes& attrs = context_.instruction(i).attrs;
    for (const auto& entry : attrs.entries()) {
      if (std::any_of(specs.begin(), specs.end(),
                      [&](const AttrSpec& s) { return s.name == entry.first; })) {
        continue;
      }
      context_.FailAt(i, "E3108", StrCat("the op has no attribute '", entry.first, "'"));
    }
    for (const AttrSpec& spec : specs) {
      const Attribute* a = attrs.Find(spec.name);
      if (!a && spec.required) {
        context_.FailAt(i, "E3108", StrCat("lacks the attribute '", spec.name, "'"));
      }
      if (a && !IsOfKind(*a, spec.kind)) {
        context_.FailAt(i, "E3108", StrCat("attribute '", spec.name, "' has the wrong kind"));
      }
    }
  }

  void CheckResultTypes(int i, const OpDef& def) {
    const Instruction& instruction = context_.instruction(i);
    operands_.clear();
    for (int b : instruction.operands) operands_.push_back(&context_.buffer(b).type);
    std::vector<TensorType> want;
    try {
      want = def.infer(InferArgs{operands_, instruction.attrs});
    } catch (const Diagnostic& d) {
      context_.FailAt(i, "E3108", StrCat("operands or attributes do not fit: ", d.message()));
    }
    if (want.size() != instruction.results.size()) {
      context_.FailAt(i, "E3108",
                      StrCat("has ", instruction.results.size(), " results, needs ", want.size()));
    }
    for (size_t k = 0; k < want.size(); ++k) {
      int result = instruction.results[k];
      if (context_.buffer(result).type.SameTensor(want[k])) continue;
      context_.FailAt(
          i, "E3105",
          StrCat("result ", k, " is ", context_.DescribeBuffer(result), ", but the op gives ",
                 DTypeName(want[k].dtype), ShapeToString(want[k].shape)));
    }
  }

  CheckContext& context_;
  const Program& program_;
  std::unordered_map<std::string_view, const OpDef*> known_;
  std::vector<const TensorType*> operands_;
};

}  // namespace

void CheckInstructions(CheckContext& context) { InstructionChecker(context).Run(); }

}  // namespace shardc
