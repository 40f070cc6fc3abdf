#include "runtime/name_input.h"

#include <algorithm>

#include "ir/contains.h"
#include "runtime/describe.h"

namespace shardc {

int IndicesOf(const Program& program, const Instruction& instruction) {
  int indices = -1;
  for (int b : instruction.operands) {
    if (IsInteger(program.buffers[b].type.dtype)) indices = b;
  }
  return instruction.collective < 0 ? indices : -1;
}

std::string InputBehind(const Program& program, size_t instruction, int buffer,
                        std::vector<std::string>* through) {
  auto type = [&](int b) { return program.buffers[b].type.dtype; };
  int root = RootOf(program, buffer);
  for (size_t i = instruction; i-- > 0;) {
    const Instruction& maker = program.instructions[i];
    const bool writes = std::any_of(maker.results.begin(), maker.results.end(),
                                    [&](int r) { return RootOf(program, r) == root; });
    if (!writes) continue;
    if (maker.operands.empty() || type(maker.operands[0]) != type(buffer)) return "";
    if (through) through->insert(through->begin(), maker.op);
    buffer = maker.operands[0];
    root = RootOf(program, buffer);
  }
  const Buffer& b = program.buffers[root];
  return b.space == Space::kInput ? b.name : "";
}

Diagnostic NameInput(const Program& program, size_t instruction, const Diagnostic& error) {
  const int indices = IndicesOf(program, program.instructions[instruction]);
  std::vector<std::string> through;
  const std::string input = indices < 0 ? "" : InputBehind(program, instruction, indices, &through);
  const std::string way = through.empty() ? "" : " through " + Join(through, ", ");
  // A kernel may be of a simpler op than the instruction, which is the one to name.
  return Diagnostic(error.id(), error.code(), DescribeInstruction(program, instruction),
                    input.empty()
                        ? error.message()
                        : StrCat(error.message(), "; it comes from input '", input, "'", way),
                    error.fix());
}

Diagnostic NameIntegers(const Program& program, size_t instruction, const Diagnostic& error) {
  std::vector<std::string> inputs;  // quoted
  for (int b : program.instructions[instruction].operands) {
    if (!IsInteger(program.buffers[b].type.dtype)) continue;
    const std::string input = InputBehind(program, instruction, b), quoted = "'" + input + "'";
    if (!input.empty() && !Contains(inputs, quoted)) inputs.push_back(quoted);
  }
  const std::string from =
      inputs.empty() ? "" : StrCat("; its operands come from input ", Join(inputs, ", "));
  return Diagnostic("E4010", ExitCode::kUsage, DescribeInstruction(program, instruction),
                    error.message() + from,
                    "look at the integers in the inputs that reach this op, and at the model where "
                    "it makes them itself");
}

}  // namespace shardc
