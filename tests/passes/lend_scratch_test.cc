#include "passes/lend_scratch.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "frontend/gpt_config.h"
#include "ir/op_def.h"
#include "passes/check_programs.h"
#include "passes/emit.h"
#include "passes/pipeline.h"
#include "passes/place_buffers.h"
#include "tests/exec/harness.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_programs_fixture.h"

namespace shardc::testing {
namespace {

using ::testing::AnyOf;

constexpr int64_t kMiB = int64_t{1} << 20;

bool Overlap(const Buffer& a, const Buffer& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// A program with a gradient of attention, 1024 queries of two heads, all of whose operands are
// inputs.
struct WithGradient {
  explicit WithGradient(DType dtype = DType::kBF16, const char* mesh = "dp=2") {
    p.mesh = Mesh::Parse(mesh);
    for (int k = 0; k < 5; ++k) Input(TensorType(dtype, {1, 2, 1024, 64}));
    Input(F32({1, 2, 1024}));
  }
  int Input(TensorType type) {
    return Add(
        MakeBuffer(p.mesh, std::move(type), Space::kInput, 0, StrCat("x", p.buffers.size())));
  }
  int Arena(int64_t bytes, int64_t offset = 0) {
    return Add(MakeBuffer(p.mesh, F32({bytes / 4}), Space::kArena, offset));
  }
  int Add(Buffer b) {
    p.buffers.push_back(std::move(b));
    return static_cast<int>(p.buffers.size()) - 1;
  }
  void Gradient() {
    std::vector<int> results;
    for (int k = 0; k < 3; ++k) {
      results.push_back(Add(MakeBuffer(p.mesh, p.buffers[0].type, Space::kArena)));
    }
    AddInstruction(p, "attention_grad", {0, 1, 2, 3, 4, 5}, results, {{"scale", 1.0}});
  }
  void Communicate(CollectiveKind kind, std::vector<int> in, std::vector<int> out, int from = -1) {
    Collective c;
    c.id = static_cast<int>(p.collectives.size());
    c.kind = kind;
    c.axes = {0};
    for (int b : in.empty() ? out : in) c.elements += NumElements(p.buffers[b].local_shape);
    c.from = from;
    c.to = from < 0 ? -1 : 1 - from;
    AddInstruction(p, std::string(CollectiveKindName(kind)), std::move(in), std::move(out));
    p.instructions.back().collective = c.id;
    p.collectives.push_back(std::move(c));
  }
  // Of the gradient; or null.
  const Buffer* Scratch() const {
    for (const Instruction& i : p.instructions) {
      if (i.scratch >= 0) return &p.buffers[i.scratch];
    }
    return nullptr;
  }

  Program p;
};

struct Stretch {
  int64_t begin, end;
  bool operator==(const Stretch&) const = default;
};

// What instruction 1 of 3 is lent.
Stretch Lent(const std::vector<MemoryRequest>& placed, int64_t arena, DType dtype = DType::kBF16) {
  WithGradient w(dtype);
  w.p.arena_bytes = arena;
  AddInstruction(w.p, "neg", {0}, {0});
  w.Gradient();
  AddInstruction(w.p, "neg", {0}, {0});
  LendScratch(w.p, placed);
  EXPECT_EQ(w.p.arena_bytes, arena);
  EXPECT_EQ(w.p.instructions[0].scratch, -1);
  EXPECT_EQ(w.p.instructions[2].scratch, -1);
  const Buffer* b = w.Scratch();
  return b ? Stretch{b->offset, b->offset + b->bytes} : Stretch{0, 0};
}

TEST(LendScratch, TheLargestStretchThatIsFreeMeanwhile) {
  // [1, 2) is needed before, [6, 7) and [4, 5) then, [3, 4) afterwards.
  EXPECT_EQ(Lent({{kMiB, 0, 0, kMiB},
                  {kMiB, 1, 1, 6 * kMiB},
                  {kMiB, 0, 3, 4 * kMiB},
                  {kMiB, 2, 2, 3 * kMiB},
                  {kMiB, 0, 1, 0}},
                 8 * kMiB),
            (Stretch{kMiB, 4 * kMiB}));
  EXPECT_EQ(Lent({{6 * kMiB, 0, 1, 0}}, 8 * kMiB), (Stretch{6 * kMiB, 8 * kMiB}));
}

// A value and what is made in its place.
TEST(LendScratch, NotWhatIsNeededTwice) {
  EXPECT_EQ(Lent({{2 * kMiB, 0, 1, 0}, {2 * kMiB, 1, 2, 0}}, 4 * kMiB),
            (Stretch{2 * kMiB, 4 * kMiB}));
}

TEST(LendScratch, Aligned) {
  EXPECT_EQ(Lent({{100, 0, 2, 64}, {64, 0, 2, 3 * kMiB + 64}}, 3 * kMiB + 128),
            (Stretch{256, 3 * kMiB}));
}

TEST(LendScratch, NoMoreThanIsOfUse) {
  const Stretch all = Lent({}, 100 * kMiB);
  EXPECT_EQ(all.begin, 0);
  EXPECT_GE(all.end, 2 * 2 * 1024 * 1024) << "two bytes of each score";
  EXPECT_LE(all.end, 6 * kMiB);
  EXPECT_EQ(Lent({}, 100 * kMiB, DType::kF32), (Stretch{0, 0}));
}

// In MiB, what cuDNN 9.19 says for an H200, asked without one.
TEST(LendScratch, EnoughForCudnn) {
  struct Asked {
    int64_t b, heads, of_keys, s, d;
    double mib;
  };
  for (const Asked& z : {Asked{64, 12, 12, 1024, 64, 1539}, Asked{16, 25, 25, 1024, 64, 801.6},
                         Asked{8, 32, 8, 2048, 128, 2306}, Asked{8, 32, 1, 2048, 64, 2178},
                         Asked{8, 16, 16, 1000, 96, 256.5}, Asked{1, 12, 12, 100, 64, 0.38}}) {
    const TensorType o(DType::kBF16, {z.b, z.s, z.heads, z.d}),
        keys(DType::kBF16, {z.b, z.s, z.of_keys, z.d}),
        all(DType::kBF16, {z.b, z.s, 3 * z.heads, z.d}), lse = F32({z.b, z.heads, z.s});
    const Attributes attrs = {{"scale", 1.0}, {"layout", std::string("bshd")}};
    const TensorType* operands[] = {&o, &o, &keys, &keys, &o, &lse};
    const int64_t bytes = GetOpDef("attention_grad").scratch_bytes({operands, attrs});
    EXPECT_GE(bytes, static_cast<int64_t>(z.mib * kMiB)) << z.s;
    EXPECT_LE(bytes, static_cast<int64_t>(1.6 * z.mib * kMiB) + kMiB) << z.s;
    if (z.heads != z.of_keys) continue;
    const TensorType* packed[] = {&o, &all, &o, &lse};
    EXPECT_EQ(GetOpDef("packed_attention_grad").scratch_bytes({packed, {{"scale", 1.0}}}), bytes);
  }
}

TEST(LendScratch, NotALittle) {
  EXPECT_EQ(Lent({}, kLeastScratch), (Stretch{0, kLeastScratch}));
  EXPECT_EQ(Lent({}, kLeastScratch - 64), (Stretch{0, 0}));
}

// It is received when nobody knows: the place is used again, but not where that is for nothing.
TEST(LendScratch, NotWhatIsBeingSent) {
  for (const bool told : {false, true}) {
    WithGradient w(DType::kBF16, "pp=2");
    const int sent = w.Arena(2 * kMiB), back = w.Arena(256);
    AddInstruction(w.p, "broadcast_to", {0}, {sent});
    w.Communicate(CollectiveKind::kSendRecv, {sent}, {}, 0);
    w.Communicate(CollectiveKind::kSendRecv, {}, {back}, 1);
    w.Gradient();
    const int later = w.Arena(8 * kMiB);
    AddInstruction(w.p, "neg", {0}, {later});
    std::unordered_map<int, int> told_by;
    if (told) told_by[0] = 1;
    PlaceBuffers(w.p, told_by);
    EXPECT_EQ(w.p.arena_bytes, 8 * kMiB) << "the place of what is sent is used again";
    ASSERT_NE(w.Scratch(), nullptr);
    EXPECT_EQ(Overlap(*w.Scratch(), w.p.buffers[sent]), told);
  }
}

// What a collective reads that is not in place.
TEST(LendScratch, NotWhatTravels) {
  for (const bool long_ago : {false, true}) {
    WithGradient w;
    const int read = w.Arena(2 * kMiB), scattered = w.Arena(kMiB), late = w.Arena(kMiB);
    AddInstruction(w.p, "broadcast_to", {0}, {read});
    w.Communicate(CollectiveKind::kReduceScatter, {read}, {scattered});
    AddInstruction(w.p, "exp", {0}, {w.Arena(64)});
    w.p.instructions.back().flops = long_ago ? int64_t{1} << 50 : 0;
    w.Gradient();
    w.p.instructions.back().flops = int64_t{1} << 50;
    AddInstruction(w.p, "neg", {scattered}, {late});
    w.p.outputs = {{"late", late}};
    PlaceBuffers(w.p, {});
    const Buffer* scratch = w.Scratch();
    EXPECT_EQ(scratch && Overlap(*scratch, w.p.buffers[read]), long_ago);
    EXPECT_FALSE(scratch && Overlap(*scratch, w.p.buffers[scattered]));
  }
}

struct Case {
  const char *spec, *mesh, *recompute;
  int zero = 0, microbatches = 1;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.spec << " " << c.mesh << " recompute " << c.recompute << " zero " << c.zero << ", "
      << c.microbatches << " microbatches";
}

StagePrograms ProgramsOf(const Case& c, const std::string& precision = "bf16") {
  Graph graph =
      BuildGpt(ParseBuiltin("builtin:gpt?layers=4,hidden=128,heads=4,vocab=64,batch=8,seq=512"));
  PipelineOptions options;
  options.loss = "lm";
  options.precision.compute = precision;
  options.recompute = c.recompute;
  options.optimizer.kind = "adamw";
  Spec spec = SpecOf(c.spec);
  spec.zero.stage = c.zero;
  if (c.microbatches > 1) spec.microbatches.count = c.microbatches;
  CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse(c.mesh)), options);
  return EmitStages(graph);
}

std::string IdOfProof(const Program& p) {
  return IdThrownBy([&] { CheckProgramBody(p); });
}

class LentToGpt : public ::testing::TestWithParam<Case> {};

TEST_P(LentToGpt, ProvedAndWithinTheArena) {
  for (const Program& p : ProgramsOf(GetParam()).stages) {
    EXPECT_EQ(IdOfProof(p), "none");
    int lent = 0;
    for (const Instruction& i : p.instructions) {
      if (i.scratch < 0) continue;
      EXPECT_TRUE(FindOpDef(i.op)->scratch_bytes) << i.op;
      const Buffer& scratch = p.buffers[i.scratch];
      EXPECT_EQ(scratch.offset % kScratchAlignment, 0);
      EXPECT_LE(scratch.offset + scratch.bytes, p.arena_bytes);
      ++lent;
    }
    EXPECT_GT(lent, 0);
  }
}

// Over whatever is needed afterwards, or by itself.
TEST_P(LentToGpt, TheProofRefusesWhatOverlaps) {
  Program p = ProgramsOf(GetParam()).stages[0];
  std::vector<int> first(p.buffers.size(), -1), last = first;
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    for (int b : p.instructions[i].results) {
      int& at = first[RootOf(p, b)];
      if (at < 0) at = static_cast<int>(i);
      last[RootOf(p, b)] = static_cast<int>(i);
    }
    for (int b : p.instructions[i].operands) last[RootOf(p, b)] = static_cast<int>(i);
  }
  for (const NamedBuffer& o : p.outputs) last[RootOf(p, o.buffer)] = 1 << 30;
  const auto lent =
      std::ranges::find_if(p.instructions, [](const Instruction& i) { return i.scratch >= 0; });
  ASSERT_NE(lent, p.instructions.end());
  const int at = static_cast<int>(lent - p.instructions.begin());
  Buffer& scratch = p.buffers[lent->scratch];
  const Buffer valid = scratch;
  int needed = 0;
  for (size_t b = 0; b < p.buffers.size(); ++b) {
    const Buffer& other = p.buffers[b];
    if (other.space != Space::kArena || other.alias_of >= 0 || other.bytes == 0) continue;
    if (first[b] < 0 || first[b] > at || last[b] < at) continue;
    ++needed;
    EXPECT_FALSE(Overlap(valid, other)) << b;
    scratch =
        MakeBuffer(p.mesh, F32({16}), Space::kArena, other.offset + (other.bytes - 1) / 64 * 64);
    if (scratch.offset + scratch.bytes > p.arena_bytes) continue;
    EXPECT_THAT(IdOfProof(p), AnyOf("E3102", "E3103", "E3107")) << b;
  }
  EXPECT_GT(needed, 4);
}

INSTANTIATE_TEST_SUITE_P(
    Of, LentToGpt,
    ::testing::Values(Case{"serial", "", "none"}, Case{"serial", "", "selective"},
                      Case{"dp", "dp=2", "none", 1}, Case{"dp", "dp=2", "full", 3},
                      Case{"megatron", "tp=2", "none"}, Case{"megatron_sp", "tp=2,cp=2", "none"},
                      Case{"ulysses", "cp=2", "none"}, Case{"megatron", "pp=2", "none", 0, 4},
                      Case{"megatron", "pp=2,dp=2,tp=2", "selective", 1, 2}));

TEST(LentToGpt, NothingInF32) {
  const Program p = ProgramsOf({"serial", "", "none"}, "f32").stages[0];
  for (const Instruction& i : p.instructions) EXPECT_EQ(i.scratch, -1);
}

}  // namespace
}  // namespace shardc::testing
