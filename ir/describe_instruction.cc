#include "ir/describe_instruction.h"

#include "ir/diagnostic.h"

namespace shardc {
namespace {

// The ops that a fused one stands for: " of mul, silu".
std::string Steps(const Instruction& i) {
  const Attribute* steps = i.attrs.Find("steps");
  if (!steps || !std::holds_alternative<Strings>(*steps)) return "";
  std::string list;
  for (const std::string& step : std::get<Strings>(*steps)) {
    list += (list.empty() ? " of " : ", ") + step.substr(0, step.find(' '));
  }
  return list;
}

}  // namespace

std::string DescribeInstruction(const Program& program, size_t instruction, int64_t rank) {
  const Instruction& i = program.instructions[instruction];
  return StrCat("rank ", rank, ", instruction ", instruction, " (", i.op, Steps(i),
                i.site.empty() ? "" : " at " + i.site,
                i.phase == Phase::kForward ? "" : StrCat(", ", PhaseName(i.phase)), ")");
}

std::string DescribeInstruction(const Program& program, size_t instruction) {
  return DescribeInstruction(program, instruction, program.rank);
}

}  // namespace shardc
