#include "tests/exec/minimize.h"

#include <algorithm>
#include <sstream>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/text.h"
#include "tests/ir/data_source.h"
#include "tests/ir/interpreter.h"

namespace shardc::testing {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

Op* OpAt(Graph& graph, size_t index) {
  auto it = graph.ops().begin();
  std::advance(it, static_cast<std::ptrdiff_t>(index));
  return it->get();
}

Values Evaluated(const RandomModelGraph& model) {
  return Interpret(model.graph, ByName(model.graph, DataOf(model)));
}

class Minimizer {
 public:
  Minimizer(FuzzCase& c, const std::function<bool(const FuzzCase&)>& fails)
      : c_(c), fails_(fails) {}

  void Run() {
    for (bool progress = true; progress && tries_ < 4000;) {
      progress = Options();
      progress |= SpecLines();
      progress |= Outputs();
      progress |= Ops();
    }
  }

 private:
  // Keeps the change if the case still fails.
  template <typename Change>
  bool Keep(const Change& change) {
    FuzzCase smaller = CopyOf(c_);
    if (!change(smaller)) return false;
    smaller.model.graph.EraseDead();
    ++tries_;
    if (!fails_(smaller)) return false;
    c_ = std::move(smaller);
    return true;
  }

  bool Options() {
    bool progress = false;
    auto reset = [&](auto differs, auto set) {
      if (differs(c_.setup)) {
        progress |= Keep([&](FuzzCase& c) {
          set(c.setup);
          return true;
        });
      }
    };
    reset([](const RunSetup& s) { return s.pipeline.recompute != "none"; },
          [](RunSetup& s) { s.pipeline.recompute = "none"; });
    reset([](const RunSetup& s) { return s.pipeline.chunk.least_bytes == 1; },
          [](RunSetup& s) { s.pipeline.chunk = {}; });
    reset([](const RunSetup& s) { return s.steps > 1; }, [](RunSetup& s) { s.steps = 1; });
    reset([](const RunSetup& s) { return s.session.threads != 1; },
          [](RunSetup& s) { s.session.threads = 1; });
    reset([](const RunSetup& s) { return !s.session.reference_kernels; },
          [](RunSetup& s) { s.session.reference_kernels = true; });
    reset([](const RunSetup& s) { return !s.pipeline.optimizer.kind.empty(); },
          [](RunSetup& s) { s.pipeline.optimizer.kind = ""; });
    reset([](const RunSetup& s) { return s.pipeline.gradients; },
          [](RunSetup& s) { s.pipeline.gradients = false; });
    if (c_.setup.mesh.empty()) return progress;
    const std::vector<MeshAxis> axes = Mesh::Parse(c_.setup.mesh).axes();
    for (size_t a = 0; a < axes.size(); ++a) {
      for (int64_t size = 2; size < axes[a].size; ++size) {
        std::string mesh;
        for (size_t i = 0; i < axes.size(); ++i) {
          mesh += StrCat(i ? "," : "", axes[i].name, "=", i == a ? size : axes[i].size);
        }
        if (Keep([&](FuzzCase& c) {
              c.setup.mesh = mesh;
              return true;
            })) {
          return true;
        }
      }
    }
    return progress;
  }

  bool SpecLines() {
    bool progress = false;
    for (size_t i = Lines(c_.setup.spec).size(); i-- > 0;) {
      progress |= Keep([&](FuzzCase& c) {
        std::vector<std::string> lines = Lines(c.setup.spec);
        if (lines.size() < 2 || i >= lines.size() || lines[i].starts_with("#")) return false;
        lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(i));
        c.setup.spec = Joined(lines);
        return true;
      });
    }
    return progress;
  }

  bool Outputs() {
    bool progress = false;
    for (size_t i = c_.model.graph.outputs.size(); i-- > 1;) {
      progress |= Keep([&](FuzzCase& c) {
        c.model.graph.outputs.erase(c.model.graph.outputs.begin() + static_cast<std::ptrdiff_t>(i));
        return true;
      });
    }
    return progress;
  }

  bool Ops() {
    bool progress = false;
    for (size_t i = c_.model.graph.num_ops(); i-- > 0;) {
      if (i >= c_.model.graph.num_ops()) continue;
      const Op& op = *OpAt(c_.model.graph, i);
      if (op.operands.empty() || op.results.empty()) continue;
      for (size_t k = 0; k < op.operands.size(); ++k) {
        if (Bypass(i, k)) {
          progress = true;
          break;
        }
      }
      if (i >= c_.model.graph.num_ops()) continue;
      progress |= Cut(i, true) || Cut(i, false);
    }
    return progress;
  }

  bool Bypass(size_t i, size_t operand) {
    return Keep([&](FuzzCase& c) {
      Op* op = OpAt(c.model.graph, i);
      if (operand >= op->operands.size() || op->results.empty()) return false;
      Value* by = op->operands[operand];
      if (!by->type.SameTensor(op->result()->type)) return false;
      c.model.graph.ReplaceAllUses(op->result(), by);
      return true;
    });
  }

  bool Cut(size_t i, bool to_param) {
    return Keep([&](FuzzCase& c) {
      Op* op = OpAt(c.model.graph, i);
      if (op->operands.empty()) return false;
      bool cut = false;
      const Values values = Evaluated(c.model);
      for (Value* r : op->results) {
        if (!c.model.graph.HasUses(r) || r == c.model.graph.outputs[0].value) continue;
        if (to_param && !IsFloat(r->type.dtype)) return false;
        const std::string name = StrCat("new", names_++);
        const HostTensor& value = values.at(r);
        Value* by;
        if (to_param) {
          Builder b(c.model.graph, op);
          by = b.Param(name, r->type.dtype, r->type.shape);
          c.model.graph.sources[name] = std::make_shared<DataSource>(value);
        } else {
          by = c.model.graph.AddInput(name, TensorType(r->type.dtype, r->type.shape));
          c.model.inputs[name] = value;
        }
        c.model.graph.ReplaceAllUses(r, by);
        cut = true;
      }
      return cut;
    });
  }

  FuzzCase& c_;
  const std::function<bool(const FuzzCase&)>& fails_;
  int tries_ = 0, names_ = 0;
};

}  // namespace

FuzzCase CopyOf(const FuzzCase& c) { return {{CopyOf(c.model.graph), c.model.inputs}, c.setup}; }

void Minimize(FuzzCase& c, const std::function<bool(const FuzzCase&)>& fails) {
  Minimizer(c, fails).Run();
}

std::string Describe(const FuzzCase& c) {
  std::string text = PrintGraph(c.model.graph);
  const RunSetup& s = c.setup;
  return StrCat(
      text, Reproduction("fuzz.shardc", s), "threads ", s.session.threads,
      s.session.reference_kernels ? ", reference kernels" : "",
      s.pipeline.chunk.least_bytes == 1 ? StrCat(", ", s.pipeline.chunk.pieces, " pieces") : "",
      "\n");
}

}  // namespace shardc::testing
