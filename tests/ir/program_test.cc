#include "ir/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/ir/cpu_time.h"
#include "tests/ir/file_testing.h"
#include "tests/ir/thrown.h"

namespace shardc {
namespace {

using ::testing::AnyOf;
using testing::CpuSeconds;
using ::testing::HasSubstr;
using testing::IdThrownBy;

constexpr double kOddNan = std::bit_cast<double>(uint64_t{0x7ff8dead'beef0001});

Buffer MakeBuffer(const Mesh& mesh, TensorType type, Space space, int64_t offset = 0,
                  std::string name = {}) {
  Buffer b;
  b.local_shape = LocalShape(type, mesh);
  b.bytes = LocalBytes(type, mesh);
  b.type = std::move(type);
  b.space = space;
  b.offset = offset;
  b.name = std::move(name);
  return b;
}

TensorType Cut(DType dtype, Shape shape, int dim, int axis) {
  TensorType t(dtype, std::move(shape));
  t.sharding.dims[dim].axes = {axis};
  return t;
}

constexpr int kX = 0, kW = 1, kC = 2, kY = 3, kSum = 4, kView = 5, kScratch = 6;

// y = x w, summed over tp; a view of the sum is the output.
Program Sample() {
  Program p;
  p.mesh = Mesh::Parse("dp=2,tp=2");
  p.rank = 3;
  p.arena_bytes = 512;
  p.constants.assign(64, std::byte{7});
  auto add = [&](TensorType type, Space space, int64_t offset = 0, std::string name = {}) {
    p.buffers.push_back(MakeBuffer(p.mesh, std::move(type), space, offset, std::move(name)));
  };
  add(Cut(DType::kF32, {4, 8}, 0, 0), Space::kInput, 0, "x");
  TensorType w = Cut(DType::kF32, {8, 12}, 1, 1);
  w.sharding.dims[1].segments = {4, 4, 4};
  w.sharding.dims[1].granule = 2;
  add(w, Space::kState, 0, "w");
  add(TensorType(DType::kI32, {3}), Space::kConstant);
  TensorType partial = Cut(DType::kF32, {4, 6}, 0, 0), whole = partial;
  partial.sharding.partial_sum = {1};
  add(partial, Space::kArena, 0);
  add(whole, Space::kArena, 64);
  add(Cut(DType::kF32, {4, 2, 3}, 0, 0), Space::kArena, 64);
  p.buffers.back().alias_of = kSum;
  add(TensorType(DType::kF64, {5}), Space::kArena, 128);

  Instruction matmul;
  matmul.op = "matmul";
  matmul.operands = {kX, kW};
  matmul.results = {kY};
  matmul.scratch = kScratch;
  matmul.site = "h.0.mlp";
  matmul.flops = int64_t{1} << 40;
  matmul.bytes = 12345;
  matmul.attrs = {
      {"int", int64_t{-5}},
      {"float", -0.0},
      {"nan", kOddNan},
      {"bool", true},
      {"string", std::string("a\"b\n\0c", 6)},
      {"ints", Ints{1, -2, std::numeric_limits<int64_t>::min()}},
      {"no_ints", Ints{}},
      {"strings", Strings{"tp", ""}},
      {"tensor", std::make_shared<const HostTensor>(HostTensor::Of<float>({2, 1}, {1.5f, -0.0f}))}};
  p.instructions.push_back(matmul);
  Instruction reduce;
  reduce.op = "all_reduce";
  reduce.operands = {kY};
  reduce.results = {kSum};
  reduce.collective = 0;
  reduce.phase = Phase::kBackward;
  p.instructions.push_back(reduce);
  Collective c;
  c.id = 17;
  c.axes = {1};
  c.elements = 12;
  c.op = "matmul";
  c.why = {"spec a.textproto:3", "role MLP_UP"};
  p.collectives.push_back(c);
  p.inputs = {{"x", kX}};
  p.states = {{"w", kW, {"whole w", 1, 4, 20}}};
  p.outputs = {{"y", kView}};
  return p;
}

std::string FileOf(const Program& p) { return SerializeProgram(p, SerializeBody(p)); }
Program Parse(const std::string& bytes) { return ParseProgram(bytes, "rank0003.program").program; }
std::string IdOf(const std::string& bytes) {
  return IdThrownBy([&] { Parse(bytes); });
}

void ExpectEqual(const std::vector<NamedBuffer>& a, const std::vector<NamedBuffer>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].buffer, b[i].buffer);
    EXPECT_EQ(a[i].piece, b[i].piece);
  }
}

TEST(Program, RoundTrip) {
  Program p = Sample(), q = Parse(FileOf(p));
  EXPECT_EQ(q.version, kProgramVersion);
  EXPECT_EQ(q.mesh, p.mesh);
  EXPECT_EQ(q.rank, 3);
  EXPECT_EQ(q.arena_bytes, 512);
  EXPECT_EQ(q.constants, p.constants);
  ExpectEqual(q.inputs, p.inputs);
  ExpectEqual(q.outputs, p.outputs);
  ExpectEqual(q.states, p.states);
  ASSERT_EQ(q.buffers.size(), p.buffers.size());
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    const Buffer &a = p.buffers[i], &b = q.buffers[i];
    EXPECT_EQ(a.type, b.type) << i;
    EXPECT_EQ(a.local_shape, b.local_shape) << i;
    EXPECT_EQ(std::tie(a.space, a.offset, a.bytes, a.name, a.alias_of),
              std::tie(b.space, b.offset, b.bytes, b.name, b.alias_of))
        << i;
  }
  ASSERT_EQ(q.collectives.size(), 1u);
  const Collective &c = p.collectives[0], &d = q.collectives[0];
  EXPECT_EQ(std::tie(c.id, c.kind, c.max, c.axes, c.dtype, c.elements, c.op, c.why),
            std::tie(d.id, d.kind, d.max, d.axes, d.dtype, d.elements, d.op, d.why));
  ASSERT_EQ(q.instructions.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const Instruction &a = p.instructions[i], &b = q.instructions[i];
    EXPECT_EQ(std::tie(a.op, a.operands, a.results, a.collective, a.scratch, a.phase, a.site,
                       a.flops, a.bytes),
              std::tie(b.op, b.operands, b.results, b.collective, b.scratch, b.phase, b.site,
                       b.flops, b.bytes));
  }
}

TEST(Program, AttributesAreExact) {
  Program p = Sample(), q = Parse(FileOf(p));
  Attributes a = p.instructions[0].attrs, b = q.instructions[0].attrs;
  EXPECT_EQ(std::bit_cast<uint64_t>(b.Float("nan")), std::bit_cast<uint64_t>(kOddNan));
  EXPECT_EQ(std::bit_cast<uint64_t>(b.Float("float")), std::bit_cast<uint64_t>(-0.0));
  a.Erase("nan");  // equal to nothing
  b.Erase("nan");
  EXPECT_TRUE(a == b);
}

TEST(Program, SharedTypesAndAttributesStayApart) {
  // Equal in all but one detail: what the tables must tell apart.
  Program p = Sample();
  p.instructions.push_back(p.instructions[0]);
  p.instructions.push_back(p.instructions[0]);
  p.instructions[2].attrs.Set("float", 0.0);
  p.instructions[3].attrs.Set("strings", Strings{"t", "p"});
  Program q = Parse(FileOf(p));
  EXPECT_TRUE(std::signbit(q.instructions[0].attrs.Float("float")));
  EXPECT_FALSE(std::signbit(q.instructions[2].attrs.Float("float")));
  EXPECT_EQ(q.instructions[3].attrs.StringList("strings"), (Strings{"t", "p"}));
  EXPECT_EQ(q.buffers[kY].type.sharding.partial_sum.size(), 1);
  EXPECT_EQ(q.buffers[kSum].type.sharding.partial_sum.size(), 0);
}

TEST(Program, Deterministic) {
  EXPECT_EQ(FileOf(Sample()), FileOf(Sample()));
  Program other = Sample();
  other.rank = 1;
  EXPECT_EQ(SerializeBody(other), SerializeBody(Sample()));
  EXPECT_NE(FileOf(other), FileOf(Sample()));
  EXPECT_EQ(FileOf(Parse(FileOf(Sample()))), FileOf(Sample()));
}

TEST(Program, EveryFlippedByteIsRefused) {
  std::string good = FileOf(Sample());
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bits : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ bits);
      EXPECT_THAT(IdOf(bad), AnyOf("E3001", "E3002", "E3003")) << "byte " << i;
    }
  }
}

TEST(Program, EveryTruncationIsRefused) {
  std::string good = FileOf(Sample());
  for (size_t n = 0; n < good.size(); ++n) EXPECT_EQ(IdOf(good.substr(0, n)), "E3001") << n;
  EXPECT_EQ(IdOf(good + '\0'), "E3001");
}

// Ranks that run the same have its body once.
TEST(Program, AnotherRanksFileNamesTheBody) {
  const Program p = Sample();
  const std::vector<std::string> files = SerializePrograms(p, std::vector<int64_t>{1, 3});
  EXPECT_EQ(files[1], FileOf(p));
  const std::string good = files[0], body = SerializeBody(p);
  EXPECT_LT(good.size(), 100u);
  const ProgramFile file = ParseProgram(good, "rank0001.program");
  EXPECT_EQ(file.program.rank, 1);
  EXPECT_EQ(file.program.mesh, p.mesh);
  EXPECT_TRUE(file.program.instructions.empty());
  EXPECT_EQ(file.body_at, 3);
  const ProgramFile holder = ParseProgram(FileOf(p), "rank0003.program");
  EXPECT_EQ(holder.body_at, 3);
  EXPECT_EQ(holder.body_sum, file.body_sum);
  Program other = Sample();
  other.arena_bytes += 64;
  EXPECT_NE(ParseProgram(FileOf(other), "rank0003.program").body_sum, file.body_sum);

  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_THAT(IdOf(bad), AnyOf("E3001", "E3002", "E3003")) << "byte " << i;
    EXPECT_EQ(IdOf(good.substr(0, i)), "E3001") << i;
  }
  EXPECT_EQ(IdOf(good + body), "E3001");
  other.rank = 4;  // a file that is not there
  EXPECT_EQ(IdOf(SerializePrograms(other, std::vector<int64_t>{1})[0]), "E3004");
}

TEST(Program, OtherVersionIsNamed) {
  Program p = Sample();
  p.version = 9;
  EXPECT_THAT(testing::TextThrownBy([&] { Parse(FileOf(p)); }),
              HasSubstr("E3003 rank0003.program: a program of version 9"));
}

// A body that was damaged before its checksum was taken: no crash, whatever it says.
TEST(Program, DamagedBodiesWithRightChecksums) {
  Program p = Sample();
  std::string body = SerializeBody(p);
  int refused = 0;
  for (size_t i = 0; i < body.size(); ++i) {
    for (int bits : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff}) {
      std::string bad = body;
      bad[i] = static_cast<char>(bad[i] ^ bits);
      std::string id = IdThrownBy([&] { ProgramToText(Parse(SerializeProgram(p, bad))); });
      EXPECT_THAT(id, AnyOf("none", "E3001", "E3004")) << "byte " << i;
      refused += id != "none";
    }
  }
  EXPECT_GT(refused, 1000);
}

struct Damage {
  const char* name;
  std::function<void(Program&)> apply;
};
void PrintTo(const Damage& d, std::ostream* out) { *out << d.name; }

class ProgramBounds : public ::testing::TestWithParam<Damage> {};

TEST_P(ProgramBounds, Refused) {
  Program p = Sample();
  ASSERT_EQ(IdOf(FileOf(p)), "none");
  GetParam().apply(p);
  EXPECT_EQ(IdOf(FileOf(p)), "E3004");
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// A transfer of y from member 0 of tp to member 1, which rank 3 is.
void MakeTransfer(Program& p) {
  p.collectives[0].kind = CollectiveKind::kSendRecv;
  p.collectives[0].from = 0;
  p.collectives[0].to = 1;
  p.instructions[1].op = "send_recv";
  p.instructions[1].operands.clear();
}

// What is moved is so many elements of the type, to so many.
void MakeMovement(Program& p, CollectiveKind kind, DType dtype, int64_t from, int64_t to) {
  p.collectives[0].kind = kind;
  p.collectives[0].dtype = dtype;
  const int in = static_cast<int>(p.buffers.size()), out = in + 1;
  p.buffers.push_back(MakeBuffer(p.mesh, {dtype, {from}}, Space::kArena, 256));
  p.buffers.push_back(MakeBuffer(p.mesh, {dtype, {to}}, Space::kArena, 320));
  p.instructions[1].op = CollectiveKindName(kind);
  p.instructions[1].operands = {in};
  p.instructions[1].results = {out};
}

TEST(Program, TransfersComeBack) {
  Program p = Sample();
  MakeTransfer(p);
  const Program q = Parse(FileOf(p));
  EXPECT_EQ(q.collectives[0].from, 0);
  EXPECT_EQ(q.collectives[0].to, 1);
  EXPECT_NE(ProgramToText(q).find("send_recv over tp from 0 to 1 of 12 f32"), std::string::npos);
}

const Damage kDamages[] = {
    {"TransferToNobody",
     [](Program& p) {
       MakeTransfer(p);
       p.collectives[0].to = 2;
     }},
    {"TransferFromNobody",
     [](Program& p) {
       MakeTransfer(p);
       p.collectives[0].from = -1;
     }},
    {"TransferFromBeyond",
     [](Program& p) {
       MakeTransfer(p);
       p.collectives[0].from = 2;
     }},
    {"TransferToNegative",
     [](Program& p) {
       MakeTransfer(p);
       std::swap(p.instructions[1].operands, p.instructions[1].results);
       p.collectives[0].from = 1;
       p.collectives[0].to = -1;
     }},
    {"TransferToItself",
     [](Program& p) {
       MakeTransfer(p);
       p.collectives[0].from = 1;
     }},
    {"TransferOfAnotherMember",
     [](Program& p) {
       MakeTransfer(p);
       std::swap(p.collectives[0].from, p.collectives[0].to);
     }},
    {"TransferOfBothEnds",
     [](Program& p) {
       MakeTransfer(p);
       p.instructions[1].operands = {kY};
     }},
    {"TransferOfAnotherType",
     [](Program& p) {
       MakeTransfer(p);
       p.collectives[0].dtype = DType::kI32;
     }},
    {"RankAboveMesh", [](Program& p) { p.rank = 4; }},
    {"RankNegative", [](Program& p) { p.rank = -1; }},
    {"ArenaNegative", [](Program& p) { p.arena_bytes = -1; }},
    {"ArenaTooSmall", [](Program& p) { p.arena_bytes = 128 + 39; }},
    {"OffsetNegative", [](Program& p) { p.buffers[kY].offset = -64; }},
    {"OffsetUnaligned", [](Program& p) { p.buffers[kY].offset = 32; }},
    {"OffsetBeyond", [](Program& p) { p.buffers[kY].offset = 512; }},
    {"OffsetOverflows", [](Program& p) { p.buffers[kY].offset = kHuge / 64 * 64; }},
    {"ConstantBeyond", [](Program& p) { p.buffers[kC].offset = 64; }},
    {"ConstantsMissing", [](Program& p) { p.constants.clear(); }},
    {"BytesTooMany", [](Program& p) { p.buffers[kY].bytes += 4; }},
    {"BytesNegative", [](Program& p) { p.buffers[kY].bytes = -48; }},
    {"LocalShapeWrong",
     [](Program& p) {
       p.buffers[kY].local_shape = {6, 2};
     }},
    {"LocalShapeNegative", [](Program& p) { p.buffers[kC].local_shape = {-3}; }},
    {"ShapeNegative", [](Program& p) { p.buffers[kC].type.shape = {-3}; }},
    {"ShapeOverflows",
     [](Program& p) {
       p.buffers[kY].type.shape = {kHuge, kHuge};
     }},
    {"ShapeOverflowsBeforeZero",
     [](Program& p) {
       p.buffers[kY].type.shape = {int64_t{1} << 59, 1 << 8};
     }},
    {"PieceOfNoDim", [](Program& p) { p.states[0].piece.dim = 2; }},
    {"PieceOfNegativeDim", [](Program& p) { p.states[0].piece.dim = -1; }},
    {"PieceBefore", [](Program& p) { p.states[0].piece.start = -1; }},
    {"PieceBeyond", [](Program& p) { p.states[0].piece.start = 9; }},
    {"PieceOfNegativeWhole", [](Program& p) { p.states[0].piece.whole_size = -kHuge; }},
    {"OutputPieceBeyond",
     [](Program& p) {
       p.outputs[0].piece = {"whole", 0, 1, 4};
     }},
    {"ShapeWithoutSharding", [](Program& p) { p.buffers[kC].type.sharding.dims.clear(); }},
    {"GranuleZero", [](Program& p) { p.buffers[kW].type.sharding.dims[1].granule = 0; }},
    {"SegmentsShort",
     [](Program& p) {
       p.buffers[kW].type.sharding.dims[1].segments = {4, 4};
     }},
    {"SegmentsOverflow",
     [](Program& p) {
       p.buffers[kW].type.sharding.dims[1].segments = {kHuge, kHuge, 14};
     }},
    {"AxisTwice", [](Program& p) { p.buffers[kX].type.sharding.dims[1].axes = {0}; }},
    {"AxisUnknown", [](Program& p) { p.buffers[kX].type.sharding.dims[1].axes = {2}; }},
    {"PartialAxisUnknown", [](Program& p) { p.buffers[kX].type.sharding.partial_max = {9}; }},
    {"SpaceUnknown", [](Program& p) { p.buffers[kX].space = static_cast<Space>(4); }},
    {"DTypeUnknown", [](Program& p) { p.buffers[kX].type.dtype = static_cast<DType>(7); }},
    {"PhaseUnknown", [](Program& p) { p.instructions[0].phase = static_cast<Phase>(3); }},
    {"AliasBeyond", [](Program& p) { p.buffers[kView].alias_of = 7; }},
    {"AliasNegative", [](Program& p) { p.buffers[kView].alias_of = -2; }},
    {"AliasOfItself", [](Program& p) { p.buffers[kView].alias_of = kView; }},
    {"AliasCycle",
     [](Program& p) {
       p.buffers[kSum].alias_of = kY;
       p.buffers[kY].alias_of = kView;
     }},
    {"AliasOutside", [](Program& p) { p.buffers[kView].offset = 128; }},
    {"AliasBefore", [](Program& p) { p.buffers[kView].offset = 0; }},
    {"OperandBeyond", [](Program& p) { p.instructions[0].operands[1] = 7; }},
    {"OperandNegative", [](Program& p) { p.instructions[0].operands[1] = -1; }},
    {"ResultBeyond", [](Program& p) { p.instructions[0].results[0] = 1 << 30; }},
    {"ScratchBeyond", [](Program& p) { p.instructions[0].scratch = 7; }},
    {"ScratchNegative", [](Program& p) { p.instructions[0].scratch = -2; }},
    {"FlopsNegative", [](Program& p) { p.instructions[0].flops = -1; }},
    {"MovedBytesNegative", [](Program& p) { p.instructions[0].bytes = -1; }},
    {"OpUnknown", [](Program& p) { p.instructions[0].op = "matmull"; }},
    {"OpEmpty", [](Program& p) { p.instructions[0].op.clear(); }},
    {"CollectiveBeyond", [](Program& p) { p.instructions[1].collective = 1; }},
    {"CollectiveNegative", [](Program& p) { p.instructions[1].collective = -2; }},
    {"CollectiveKind", [](Program& p) { p.collectives[0].kind = static_cast<CollectiveKind>(6); }},
    {"CollectiveDType", [](Program& p) { p.collectives[0].dtype = DType::kF64; }},
    {"CollectiveAxis", [](Program& p) { p.collectives[0].axes = {2}; }},
    {"CollectiveAxisNegative", [](Program& p) { p.collectives[0].axes = {-1}; }},
    {"CollectiveAxisTwice",
     [](Program& p) {
       p.collectives[0].axes = {1, 1};
     }},
    {"CollectiveElements", [](Program& p) { p.collectives[0].elements = -1; }},
    {"CollectiveIdTwice", [](Program& p) { p.collectives.push_back(p.collectives[0]); }},
    {"CollectiveResultMissing", [](Program& p) { p.instructions[1].results.clear(); }},
    {"GatherTooSmall", [](Program& p) { p.collectives[0].kind = CollectiveKind::kAllGather; }},
    {"ScatterTooSmall", [](Program& p) { p.collectives[0].kind = CollectiveKind::kReduceScatter; }},
    {"GatherToMoreThanThePieces",
     [](Program& p) { MakeMovement(p, CollectiveKind::kAllGather, DType::kBool, 3, 7); }},
    {"ScatterOfMoreThanThePieces",
     [](Program& p) { MakeMovement(p, CollectiveKind::kReduceScatter, DType::kBool, 7, 3); }},
    {"AllToAllOfPiecesThatAreNotEqual",
     [](Program& p) { MakeMovement(p, CollectiveKind::kAllToAll, DType::kF32, 7, 7); }},
    {"AliasLongerThanItsState",
     [](Program& p) {
       p.buffers[kView] = MakeBuffer(p.mesh, {DType::kF32, {64}}, Space::kState, 0, "w");
       p.buffers[kView].alias_of = kW;
     }},
    {"InputIsAnAlias",
     [](Program& p) {
       p.inputs[0].buffer = static_cast<int>(p.buffers.size());
       p.buffers.push_back(Buffer(p.buffers[kX]));
       p.buffers.back().alias_of = kX;
     }},
    {"InputBeyond", [](Program& p) { p.inputs[0].buffer = 7; }},
    {"InputMissing", [](Program& p) { p.inputs.clear(); }},
    {"InputIsArena", [](Program& p) { p.inputs[0].buffer = kY; }},
    {"OutputNegative", [](Program& p) { p.outputs[0].buffer = -1; }},
    {"StateIsInput", [](Program& p) { p.states[0].buffer = kX; }},
    {"StateMissing", [](Program& p) { p.states.clear(); }},
    {"StateTwice",
     [](Program& p) {
       p.states.push_back({"v", kW});
     }},
    {"StateOfOtherSize",
     [](Program& p) {
       Buffer larger = MakeBuffer(p.mesh, {DType::kF32, {8, 12}}, Space::kState, 0, "w");
       p.buffers.push_back(larger);
     }},
};
INSTANTIATE_TEST_SUITE_P(All, ProgramBounds, ::testing::ValuesIn(kDamages),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Program, PiecesOfOtherCollectivesFit) {
  // Gather y over tp into a buffer twice as large, and scatter it back.
  Program p = Sample();
  int big = static_cast<int>(p.buffers.size());
  p.buffers.push_back(MakeBuffer(p.mesh, {DType::kF32, {2, 2, 6}}, Space::kArena, 256));
  auto add = [&](CollectiveKind kind, int from, int to) {
    Collective c = p.collectives[0];
    c.kind = kind;
    c.id = 100 + static_cast<int>(kind);
    Instruction i = p.instructions[1];
    i.op = CollectiveKindName(kind);
    i.operands = {from};
    i.results = {to};
    i.collective = static_cast<int>(p.collectives.size());
    p.collectives.push_back(c);
    p.instructions.push_back(i);
  };
  add(CollectiveKind::kAllGather, kY, big);
  add(CollectiveKind::kAllToAll, big, big);
  add(CollectiveKind::kReduceScatter, big, kSum);
  EXPECT_EQ(IdOf(FileOf(p)), "none");
  std::swap(p.instructions[2].operands, p.instructions[2].results);
  EXPECT_EQ(IdOf(FileOf(p)), "E3004");
}

TEST(Program, Text) {
  std::string text = ProgramToText(Sample());
  for (const char* line :
       {"mesh dp=2,tp=2\n", "rank 3 of 4\n", "arena 512 bytes",
        "state \"w\" = %1 : f32[8, 12@tp/3%2] local [8, 6] @state \"w\" of \"whole w\" dim 1 from "
        "4\n",
        "%3 = matmul %0, %1 {bool = true, float = -0.0, int = -5, ints = [1, -2, ",
        "site = \"h.0.mlp\"} : f32[4@dp, 6] partial(tp) local [2, 6] @arena+0 scratch %6 40 bytes",
        "%4 = all_reduce %3 {phase = backward} collective #17 all_reduce over tp of 12 f32 : "
        "f32[4@dp, 6] local [2, 6] @arena+64\n",
        "output \"y\" = %5 : f32[4@dp, 2, 3] local [2, 2, 3] @arena+64 alias of %4\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// As large as the program of GPT-3 175B: 96 layers of 128 instructions.
TEST(Program, LargeProgramsAreSmallAndFast) {
  Program p = Sample();
  Instruction matmul = p.instructions[0];
  for (int i = 0; i < 12288; ++i) {
    matmul.site = StrCat("h.", i / 128, ".op", i % 128);
    matmul.results = {static_cast<int>(p.buffers.size())};
    p.buffers.push_back(p.buffers[kY]);
    p.instructions.push_back(matmul);
  }
  const double start = CpuSeconds();
  std::string body = SerializeBody(p);
  const double serialized = CpuSeconds();
  Program q = Parse(SerializeProgram(p, body));
  const double serialize = serialized - start, parse = CpuSeconds() - serialized;
  EXPECT_EQ(q.instructions.size(), p.instructions.size());
  EXPECT_LT(body.size(), 1'000'000u);
  RecordProperty("serialize_us", static_cast<int>(serialize * 1e6));
  RecordProperty("parse_us", static_cast<int>(parse * 1e6));
  // Some 10 ms; the rest is for sanitizers.
  EXPECT_LT(serialize, 1.0);
  EXPECT_LT(parse, 2.0);
}

}  // namespace
}  // namespace shardc
