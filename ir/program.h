// The program of one rank: a straight line of instructions over buffers at fixed offsets. What
// `compile` writes, the checker proves and the runtime executes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/attributes.h"
#include "ir/graph.h"
#include "ir/mesh.h"
#include "ir/sharding.h"
#include "ir/shared_vector.h"

namespace shardc {

inline constexpr int kProgramVersion = 2;
// Of buffers in the arena and of constants, in bytes: a cache line, and as much as any vector load
// wants.
inline constexpr int64_t kBufferAlignment = 64;

enum class Space : uint8_t {
  kArena,     // [offset, offset + bytes) of the arena; contents undefined until written
  kState,     // a parameter or optimizer state of its own name, persistent over steps
  kInput,     // a graph input, this rank's part; filled by the runtime before each step
  kConstant,  // [offset, offset + bytes) of Program::constants; read only
};

struct Buffer {
  TensorType type;    // global shape and sharding
  Shape local_shape;  // physical shape on every rank (LocalShape(type, mesh))
  Space space = Space::kArena;
  int64_t offset = 0;  // arena and constants: bytes, a multiple of kBufferAlignment
  int64_t bytes = 0;
  std::string name;   // state and input: which
  int alias_of = -1;  // another buffer whose memory this one is (a view of the same bytes), or -1
};

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSendRecv,
};
std::string_view CollectiveKindName(CollectiveKind kind);  // "all_reduce"

// Raw semantics on contiguous buffers, per rank. all_reduce: operands[i] -> results[i], equal
// sizes. all_gather: operand of n elements -> result of group size * n, in group order.
// reduce_scatter: operand of group size * n -> n. all_to_all: group size pieces of n, piece j goes
// to member j. send_recv: member `from` has operands and no results, member `to` results and no
// operands, of equal sizes; the others of the group have no part in it.
struct Collective {
  int id = 0;  // unique in the program; the same on all ranks of the same program set
  CollectiveKind kind = CollectiveKind::kAllReduce;
  bool max = false;       // all_reduce and reduce_scatter: max instead of sum
  std::vector<int> axes;  // mesh axes, in order; the group of a rank is Mesh::Group(rank, axes)
  DType dtype = DType::kF32;
  // Of the whole tensor(s) reduced, of the result gathered, of the operand scattered.
  int64_t elements = 0;
  std::string op;  // the op that needed it
  std::vector<std::string> why;
  int from = -1, to = -1;  // send_recv: members of the group (Mesh::GroupIndex over `axes`)
};

// Besides the registered ops there are three that only move bytes within a rank:
//   copy: x -> y of the same local shape;
//   pack {axes, dim, cut_axes, granule, segments}: x -> [group, piece...]: piece j is what member j
//   of the group over
//     `axes` holds of x when its dim is cut over `cut_axes` with that granule and those segments,
//     padding zero;
//   unpack, with the same attributes: [group, piece...] -> x, the inverse.
struct Instruction {
  std::string op;
  Attributes attrs;
  std::vector<int> operands;  // buffers
  std::vector<int> results;
  int collective = -1;  // index into Program::collectives
  int scratch = -1;     // a buffer that the instruction may use, or -1
  Phase phase = Phase::kForward;
  std::string site;
  // What one rank does, by the local shapes, padding included, for profiles: floating point
  // operations (OpDef::flops; none for collectives and movements), and bytes read and written
  // (BytesMoved; of a collective: those handed in).
  int64_t flops = 0;
  int64_t bytes = 0;
};

// Where a tensor that is kept in several pieces has one of them. The pieces of a tensor lie one
// after the other along one dim and fill it.
struct PieceOf {
  std::string whole;  // the tensor's name; empty: not a piece
  int dim = 0;
  int64_t start = 0;       // in the dim
  int64_t whole_size = 0;  // of the dim
  bool operator==(const PieceOf&) const = default;
};

struct NamedBuffer {
  std::string name;
  int buffer = -1;
  PieceOf piece = {};
};

// All ranks of a mesh, or of a pipeline stage, run the same body; what differs follows from `rank`.
// Their programs are copies that hold it once.
struct Program {
  int version = kProgramVersion;
  Mesh mesh;
  int64_t rank = 0;
  SharedVector<Buffer> buffers;
  SharedVector<Instruction> instructions;
  SharedVector<Collective> collectives;
  SharedVector<NamedBuffer> inputs;
  SharedVector<NamedBuffer> outputs;  // read by the runtime after the last instruction
  SharedVector<NamedBuffer> states;   // params and optimizer state
  int64_t arena_bytes = 0;
  SharedVector<std::byte> constants;
};

// The buffer whose memory this one is in the end: itself, unless it is an alias. Of programs whose
// aliases are known to have no cycle (ParseProgram, EmitStages).
inline int RootOf(const Program& program, int buffer) {
  while (program.buffers[buffer].alias_of >= 0) {
    buffer = program.buffers[buffer].alias_of;
  }
  return buffer;
}
// Whether an instruction writes a state: the next step finds other weights.
inline bool ChangesStates(const Program& program) {
  return std::ranges::any_of(program.instructions, [&](const Instruction& instruction) {
    return std::ranges::any_of(instruction.results, [&](int r) {
      return program.buffers[RootOf(program, r)].space == Space::kState;
    });
  });
}

// The rank-independent part, serialised (protobuf); equal bytes for ranks of equal programs.
std::string SerializeBody(const Program& program);
// A program file: header (magic, version, mesh, rank, the rank whose file has the body, length and
// XXH3-128 of the body, checksum), then the body, unless another rank's file has it. Here that of
// `program.rank`, with this body.
std::string SerializeProgram(const Program& program, const std::string& body);
// The files of `ranks`, which all run the program: the body is in that of `program.rank`.
std::vector<std::string> SerializePrograms(const Program& program, std::span<const int64_t> ranks);

struct ProgramFile {
  Program program;       // without a body: only version, mesh and rank
  int64_t body_at = 0;   // the rank whose file has the body; program.rank: this one
  std::string body_sum;  // its XXH3-128, 16 bytes
};
// Checks magic, version, checksum and every bound (buffer ids, offsets, sizes, enum values, known
// ops) before it returns. Throws Diagnostic E3001 (not a program, truncated), E3002 (checksum),
// E3003 (version), E3004 (bounds); `where` names the file.
ProgramFile ParseProgram(const std::string& bytes, const std::string& where);
// One line per instruction, for reading.
std::string ProgramToText(const Program& program);

}  // namespace shardc
