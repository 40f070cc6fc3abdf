#include "runtime/rank_memory.h"

namespace shardc {

std::vector<std::byte*> AddressesOf(const Program& program, const RankMemory& memory) {
  std::vector<std::byte*> addresses;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& root = program.buffers[RootOf(program, static_cast<int>(i))];
    if (root.space == Space::kArena) {
      addresses.push_back(memory.arena + program.buffers[i].offset);
    } else if (root.space == Space::kConstant) {
      addresses.push_back(memory.constants + program.buffers[i].offset);
    } else {
      addresses.push_back(memory.named.at({root.space, root.name}));
    }
  }
  return addresses;
}

std::vector<Buffers> BuffersOf(const Program& program, const Instruction& instruction,
                               std::span<std::byte* const> addresses) {
  const Collective& c = program.collectives[instruction.collective];
  const std::vector<int>&in = instruction.operands, &out = instruction.results;
  const bool by_piece =
      c.kind == CollectiveKind::kReduceScatter || c.kind == CollectiveKind::kAllToAll;
  std::vector<Buffers> buffers;
  for (size_t i = 0; i < std::max(in.size(), out.size()); ++i) {
    int64_t count = NumElements(program.buffers[i < in.size() ? in[i] : out[i]].local_shape);
    if (by_piece) count /= program.mesh.GroupSize(c.axes);
    buffers.push_back({i < in.size() ? addresses[in[i]] : nullptr,
                       i < out.size() ? addresses[out[i]] : nullptr, count, c.dtype});
  }
  return buffers;
}

TensorView ViewOf(const Buffer& buffer, std::byte* data) {
  return {data, buffer.type.dtype, buffer.local_shape, &buffer.type};
}

}  // namespace shardc
