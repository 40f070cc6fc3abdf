#include "ir/scalar_program.h"

#include <sstream>

#include "ir/diagnostic.h"
#include "ir/graph.h"

namespace shardc {
namespace {

// Not InferError: the CUDA plugin has this file without the registry of ops.
[[noreturn]] void Fail(const std::string& what) {
  throw Diagnostic("E1101", ExitCode::kBadModel, "op 'fused_elementwise'", what);
}

constexpr std::array<ScalarOpInfo, kNumScalarOps> kInfo = {{
    {"add", "add", "", 2},
    {"sub", "sub", "", 2},
    {"mul", "mul", "", 2},
    {"div", "div", "", 2},
    {"pow", "pow", "", 2},
    {"min", "min", "", 2},
    {"max", "max", "", 2},
    {"neg", "neg", "", 1},
    {"abs", "abs", "", 1},
    {"sqrt", "sqrt", "", 1},
    {"rsqrt", "rsqrt", "", 1},
    {"reciprocal", "reciprocal", "", 1},
    {"exp", "exp", "", 1},
    {"log", "log", "", 1},
    {"log1p", "log1p", "", 1},
    {"sin", "sin", "", 1},
    {"cos", "cos", "", 1},
    {"tanh", "tanh", "", 1},
    {"erf", "erf", "", 1},
    {"sigmoid", "sigmoid", "", 1},
    {"relu", "relu", "", 1},
    {"silu", "silu", "", 1},
    {"gelu_tanh", "gelu", "tanh", 1},
    {"gelu_erf", "gelu", "none", 1},
    {"tanh_grad", "tanh_grad", "", 2},
    {"sigmoid_grad", "sigmoid_grad", "", 2},
    {"relu_grad", "relu_grad", "", 2},
    {"silu_grad", "silu_grad", "", 2},
    {"gelu_tanh_grad", "gelu_grad", "tanh", 2},
    {"gelu_erf_grad", "gelu_grad", "none", 2},
    {"equal", "equal", "", 2},
    {"not_equal", "not_equal", "", 2},
    {"less", "less", "", 2},
    {"less_equal", "less_equal", "", 2},
    {"greater", "greater", "", 2},
    {"greater_equal", "greater_equal", "", 2},
    {"where", "where", "", 3},
}};

ScalarStep ParseStep(const std::string& text, int values) {
  std::istringstream in(text);
  std::string name;
  in >> name;
  for (int i = 0; i < kNumScalarOps; ++i) {
    if (kInfo[i].name != name) continue;
    ScalarStep step{static_cast<ScalarOp>(i)};
    for (int k = 0; k < kInfo[i].operands; ++k) {
      if (!(in >> step.operands[k]) || step.operands[k] < 0 || step.operands[k] >= values) {
        Fail(StrCat("step '", text, "' needs ", kInfo[i].operands,
                    " numbers of values before it, which are ", values));
      }
    }
    if (in >> name) Fail(StrCat("step '", text, "' has more than it needs"));
    return step;
  }
  Fail(StrCat("step '", text, "' is of no known function"));
}

}  // namespace

const ScalarOpInfo& InfoOf(ScalarOp op) { return kInfo[static_cast<size_t>(op)]; }

std::optional<ScalarOp> ScalarOpOf(const Op& op) {
  for (int i = 0; i < kNumScalarOps; ++i) {
    if (kInfo[i].op != op.name()) continue;
    if (kInfo[i].approximate.empty() || op.attrs.String("approximate") == kInfo[i].approximate) {
      return static_cast<ScalarOp>(i);
    }
  }
  return std::nullopt;
}

Strings ScalarProgram::StepsToStrings() const {
  Strings text;
  for (const ScalarStep& s : steps) {
    const ScalarOpInfo& info = InfoOf(s.op);
    std::string line(info.name);
    for (int k = 0; k < info.operands; ++k) line += StrCat(" ", s.operands[k]);
    text.push_back(std::move(line));
  }
  return text;
}

ScalarProgram ScalarProgram::Parse(const Attributes& attrs, int inputs) {
  ScalarProgram program;
  program.inputs = inputs;
  const Strings& steps = attrs.StringList("steps");
  const Ints& results = attrs.IntList("results");
  if (inputs > kMaxInputs || steps.size() > kMaxSteps || results.size() > kMaxResults) {
    Fail(StrCat("takes at most ", kMaxInputs, " operands, ", kMaxSteps, " steps and ", kMaxResults,
                " results"));
  }
  if (results.empty()) Fail("has no result");
  for (const std::string& text : steps) {
    program.steps.push_back(ParseStep(text, inputs + static_cast<int>(program.steps.size())));
  }
  for (int64_t r : results) {
    if (r < 0 || r >= inputs + static_cast<int64_t>(steps.size())) {
      Fail(StrCat("there is no value ", r));
    }
    program.results.push_back(static_cast<int>(r));
  }
  return program;
}

}  // namespace shardc
