#include "tools/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>

#include "ir/checksum.h"
#include "ir/contains.h"
#include "ir/diagnostic.h"
#include "ir/npy.h"
#include "ir/op_def.h"
#include "ir/safetensors.h"
#include "runtime/name_input.h"

namespace shardc {

namespace {

struct NamedTensor {
  std::string name;
  HostTensor value;
};

struct InputText {
  std::string name, path, tensor;  // tensor: empty where the file is one array
};

std::optional<InputText> Parse(const std::string& text) {
  size_t eq = text.find("=@");
  if (eq == std::string::npos || eq == 0) return std::nullopt;
  InputText input{text.substr(0, eq), text.substr(eq + 2), ""};
  constexpr std::string_view kEnd = ".safetensors";
  if (input.path.ends_with(kEnd)) {
    input.tensor = input.name;
  } else if (size_t at = input.path.find(StrCat(kEnd, ":")); at != std::string::npos) {
    input.tensor = input.path.substr(at + kEnd.size() + 1);
    input.path.resize(at + kEnd.size());
    if (input.tensor.empty()) return std::nullopt;
  }
  if (input.path.empty()) return std::nullopt;
  return input;
}

NamedTensor ReadInput(const std::string& text) {
  const std::optional<InputText> input = Parse(text);
  if (!input) {
    throw Diagnostic("E4001", ExitCode::kUsage, "--input " + text, "is not name=@file",
                     "for example --input input_ids=@ids.npy");
  }
  if (input->tensor.empty()) return {input->name, ReadNpy(input->path)};
  return {input->name, SafetensorsFile(input->path).Read(input->tensor)};
}

bool Widens(DType from, DType to) {
  if (from == DType::kBool) return true;
  if (IsInteger(from)) return IsInteger(to);
  return IsFloat(to) && DTypeSize(from) < DTypeSize(to);
}

// The same numbers in the type that the plan wants, where that loses none: integers that fit, bools
// as 0 and 1, floats in a wider type. What else there is stays, and is refused.
HostTensor InType(HostTensor value, DType to, const std::string& name) {
  if (value.dtype() == to || !Widens(value.dtype(), to)) return value;
  HostTensor out(to, value.shape());
  for (int64_t i = 0; i < value.num_elements(); ++i) {
    if (IsFloat(to)) {
      out.SetDouble(i, value.AsDouble(i));
      continue;
    }
    const int64_t v = value.AsInt(i);
    if (to == DType::kI32 && v != static_cast<int32_t>(v)) {
      throw Diagnostic("E4002", ExitCode::kUsage, "--input " + name,
                       StrCat("element ", i, " is ", v, ", and the plan wants ", DTypeName(to)));
    }
    if (to == DType::kI32) out.data<int32_t>()[i] = static_cast<int32_t>(v);
    if (to == DType::kI64) out.data<int64_t>()[i] = v;
  }
  return out;
}

// How many steps the array holds; 0 when it has no dim for them.
int64_t StepsIn(const HostTensor& value, const TensorType& type) {
  const Shape& shape = value.shape();
  const bool holds = shape.size() == type.shape.size() + 1 &&
                     std::equal(type.shape.begin(), type.shape.end(), shape.begin() + 1);
  return holds ? shape[0] : 0;
}

HostTensor StepOf(const HostTensor& values, int64_t step) {
  HostTensor value(values.dtype(), Shape(values.shape().begin() + 1, values.shape().end()));
  std::memcpy(value.raw(), values.raw() + step * value.bytes(), static_cast<size_t>(value.bytes()));
  return value;
}

}  // namespace

std::string FileOfInput(const std::string& text) {
  const std::optional<InputText> input = Parse(text);
  return input ? input->path : "";
}

GivenInputs::GivenInputs(const std::vector<std::string>& texts, const Session& session,
                         bool shifts_labels) {
  const std::vector<std::string> inputs = session.InputNames();
  auto find = [&](const std::string& name) {
    return std::find_if(given_.begin(), given_.end(), [&](auto& g) { return g.name == name; });
  };
  const Given* longest = nullptr;
  for (const std::string& text : texts) {
    NamedTensor input = ReadInput(text);
    if (find(input.name) != given_.end()) {
      throw Diagnostic("E4001", ExitCode::kUsage, "--input " + text,
                       "input '" + input.name + "' is given twice");
    }
    const bool known = Contains(inputs, input.name);
    if (known) {
      input.value = InType(std::move(input.value), session.InputType(input.name).dtype, input.name);
    }
    Given g{input.name, std::make_shared<HostTensor>(std::move(input.value))};
    if (known) g.steps = StepsIn(*g.value, session.InputType(g.name));
    given_.push_back(std::move(g));
  }
  for (const Given& g : given_) {
    if (g.steps == 0) continue;
    if (longest && g.steps != longest->steps) {
      throw Diagnostic(
          "E4002", ExitCode::kUsage, "--input " + g.name,
          StrCat("holds ", g.steps, " steps, and '", longest->name, "' holds ", longest->steps),
          "give as many of each");
    }
    longest = &g;
  }
  if (longest) steps_ = longest->steps;
  if (!shifts_labels) return;
  auto ids = find("input_ids");
  if (ids == given_.end() || find("labels") != given_.end() || !Contains(inputs, "labels")) return;
  if (!Contains(inputs, "input_ids") ||
      !(session.InputType("labels") == session.InputType("input_ids")))
    return;
  std::fprintf(stderr, "note: labels = input_ids; pass --input labels=@file.npy for others\n");
  given_.push_back({"labels", ids->value, ids->steps});
}

void GivenInputs::Set(int64_t step, Session& session) const {
  for (const Given& g : given_) {
    if (g.steps > 0) {
      session.SetInput(g.name, StepOf(*g.value, step % g.steps));
    } else if (step == 0) {
      session.SetInput(g.name, *g.value);
    }
  }
}

namespace {

// 0: none is found.
int64_t LimitIn(const Program& program, const std::string& input) {
  int64_t limit = 0;
  for (size_t at = 0; at < program.instructions.size(); ++at) {
    const Instruction& instruction = program.instructions[at];
    const OpDef* def = FindOpDef(instruction.op);  // none: the op moves bytes within a rank
    if (!def || !def->index_limit) continue;
    const std::vector<int>& in = instruction.operands;
    std::vector<const TensorType*> types;
    for (int b : in) types.push_back(&program.buffers[b].type);
    for (size_t i = 0; i < in.size(); ++i) {
      const int64_t n = def->index_limit(static_cast<int>(i), {types, instruction.attrs});
      if (n <= 0 || InputBehind(program, at, in[i]) != input) continue;
      limit = limit ? std::min(limit, n) : n;
    }
  }
  return limit;
}

}  // namespace

int64_t IndexLimit(std::span<const Program* const> stages, const std::string& input) {
  int64_t limit = 0;
  for (const Program* stage : stages) {
    const int64_t n = LimitIn(*stage, input);
    if (n > 0) limit = limit ? std::min(limit, n) : n;
  }
  return limit ? limit : 2;
}

void FillRandomInputs(std::span<const Program* const> stages, uint64_t seed, Session& session) {
  for (const std::string& name : session.MissingInputs()) {
    const TensorType type = session.InputType(name);
    // Each input has its own stream, so that giving one does not change the others.
    const std::string key = StrCat(seed, " ", ChecksumOf(name));
    std::seed_seq sequence(key.begin(), key.end());
    std::mt19937_64 random(sequence);
    HostTensor value(type.dtype, type.shape);
    double limit = IsFloat(type.dtype) ? 1 : static_cast<double>(IndexLimit(stages, name));
    for (int64_t i = 0; i < value.num_elements(); ++i) {
      double unit = static_cast<double>(random() >> 11) / 9007199254740992.0;
      value.SetDouble(i, IsFloat(type.dtype) ? unit : std::floor(unit * limit));
    }
    session.SetInput(name, value);
  }
}

}  // namespace shardc
