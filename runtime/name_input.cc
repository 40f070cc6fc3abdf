#include "runtime/name_input.h"

#include <algorithm>
#include <vector>

#include "ir/op_def.h"

namespace shardc {

std::string InputBehind(const Program& program, size_t instruction, int buffer) {
  auto type = [&](int b) { return program.buffers[static_cast<size_t>(b)].type.dtype; };
  int root = RootOf(program, buffer);
  for (size_t i = instruction; i-- > 0;) {
    const Instruction& maker = program.instructions[i];
    const bool writes = std::any_of(maker.results.begin(), maker.results.end(),
                                    [&](int r) { return RootOf(program, r) == root; });
    if (!writes) continue;
    if (maker.operands.empty() || type(maker.operands[0]) != type(buffer)) return "";
    buffer = maker.operands[0];
    root = RootOf(program, buffer);
  }
  const Buffer& b = program.buffers[static_cast<size_t>(root)];
  return b.space == Space::kInput ? b.name : "";
}

Diagnostic NameInput(const Program& program, size_t instruction, const Diagnostic& error) {
  const Instruction& i = program.instructions[instruction];
  const OpDef* def = FindOpDef(i.op);
  if (!def || !def->index_limit) return error;
  std::vector<const TensorType*> types;
  for (int b : i.operands) types.push_back(&program.buffers[static_cast<size_t>(b)].type);
  for (size_t k = 0; k < i.operands.size(); ++k) {
    if (def->index_limit(static_cast<int>(k), {types, i.attrs}) <= 0) continue;
    const std::string input = InputBehind(program, instruction, i.operands[k]);
    if (input.empty()) continue;
    return Diagnostic(error.id(), error.code(), error.where(),
                      StrCat(error.message(), "; it comes from input '", input, "'"), error.fix());
  }
  return error;
}

}  // namespace shardc
