// Attention in the spellings of the exporters, each against what it was recovered from.
#include <limits>

#include "frontend/dropout.h"
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

constexpr int64_t kB = 2, kS = 5, kHeads = 4, kD = 6;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kMin = -3.4028234663852886e38;

HostTensor Mask(const Shape& shape, DType dtype, double on, double off,
                const std::function<bool(int64_t i, int64_t j)>& keep) {
  HostTensor t(dtype, shape);
  int64_t columns = shape.back(), rows = shape[shape.size() - 2];
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, keep(i / columns % rows, i % columns) ? on : off);
  }
  return t;
}
bool Triangle(int64_t i, int64_t j) { return j <= i; }
bool Band(int64_t i, int64_t j) { return j <= i && j + 2 > i; }

enum class KForm { kPerm, kAfterHeads, kFlat, kNt };
struct Form {
  KForm k = KForm::kPerm;
  int scale = 0;
  int heads_kv = kHeads;
  std::function<Value*(TestGraph&, Value*)> mask = [](TestGraph&, Value* s) { return s; };
  bool guard = false;
  bool rotate = false;
  enum Repeat { kHeadsFirst, kHeadsLast, kTile, kStack } repeat = kHeadsFirst;  // of kv heads
  double dropout = 0;
};

// q, k, v from inputs [b, s, heads * d], o back to that.
void Attention(TestGraph& b, const Form& f) {
  auto heads = [&](const std::string& name, int64_t n) {
    return b.Reshape(b.In(name, {kB, kS, n * kD}), {kB, kS, n, kD});
  };
  auto expand = [&](Value* x) {  // [b, kv, s, d] -> [b, heads, s, d]
    int64_t kv = x->type.shape[1];
    if (kv == kHeads) return x;
    x = b.BroadcastTo(b.Reshape(x, {kB, kv, 1, kS, kD}), {kB, kv, kHeads / kv, kS, kD});
    return b.Reshape(x, {kB, kHeads, kS, kD});
  };
  auto expand_last = [&](Value* x) {  // [b, s, kv, d] -> [b, s, heads, d]
    int64_t kv = x->type.shape[2], times = kHeads / kv;
    if (f.repeat == Form::kHeadsFirst) return x;
    if (f.repeat == Form::kTile) {
      x = b.Reshape(x, {1, kB, 1, kS, 1, kv, 1, 1, 1, kD});
      x = b.BroadcastTo(x, {1, kB, 1, kS, 1, kv, times, 1, 1, kD});
    } else if (f.repeat == Form::kStack) {
      x = b.Reshape(x, {kB, kS, kv, 1, kD});
      x = b.Make("concat", std::vector<Value*>(static_cast<size_t>(times), x),
                 {{"axis", int64_t{-2}}});
    } else {
      x = b.BroadcastTo(b.Reshape(x, {kB, kS, kv, 1, kD}), {kB, kS, kv, times, kD});
    }
    return b.Reshape(x, {kB, kS, kHeads, kD});
  };
  Value* q = b.Transpose(heads("q", kHeads), {0, 2, 1, 3});
  Value* k = expand_last(heads("k", f.heads_kv));
  Value* v = expand(b.Transpose(expand_last(heads("v", f.heads_kv)), {0, 2, 1, 3}));
  if (f.rotate) {  // rotary positions, the halves by slice and by split
    Value* table = b.Constant(Random("cos", {kS, kD}));
    Value* low = b.Slice(q, {0, 0, 0, 0}, {kB, kHeads, kS, kD / 2});
    Op* halves = b.Create("split", {q}, {{"axis", int64_t{3}}, {"sizes", Ints{kD / 2, kD / 2}}});
    Value* turned = b.Make("concat", {b.Neg(halves->result(1)), low}, {{"axis", int64_t{3}}});
    Value* sin = b.Constant(Random("sin", {1, 1, kS, kD}));
    q = b.Add(b.Mul(q, table), b.Mul(sin, turned));
    q = b.Create("rms_norm", {q, b.P("q_norm", {kD})}, {{"eps", 1e-5}})->result();
  }
  Value* scores = nullptr;
  double root = std::sqrt(std::sqrt(1.0 / kD));
  auto scaled = [&](Value* x) { return f.scale == 2 ? b.Mul(b.C(root, {1}), x) : x; };
  if (f.scale == 3) q = b.Div(q, b.C(std::sqrt(1.0 * kD)));
  if (f.k == KForm::kPerm && f.heads_kv == kHeads) {
    scores = b.Matmul(scaled(q), scaled(b.Transpose(k, {0, 2, 3, 1})));
  } else {
    k = expand(b.Transpose(k, {0, 2, 1, 3}));
    if (f.k == KForm::kNt) {
      scores = b.Make("matmul_nt", {scaled(q), scaled(k)});
    } else if (f.k == KForm::kFlat) {
      Value* flat = b.Transpose(b.Reshape(k, {kB * kHeads, kS, kD}), {0, 2, 1});
      scores = b.Matmul(scaled(q), scaled(b.Reshape(flat, {kB, kHeads, kD, kS})));
    } else {
      scores = b.Matmul(scaled(q), b.Transpose(scaled(k), {0, 1, 3, 2}));
    }
  }
  if (f.scale == 0) scores = b.Div(scores, b.C(std::sqrt(1.0 * kD)));
  if (f.scale == 1) scores = b.Mul(b.C(1 / std::sqrt(1.0 * kD), {1}), scores);
  Value* p = b.Softmax(f.mask(b, scores));
  if (f.guard) p = b.Where(b.Op1("is_nan", p), b.C(0), p);
  if (f.dropout > 0) p = AddDropout(b, p, f.dropout, 7);
  Value* o = b.Transpose(b.Matmul(p, v), {0, 2, 1, 3});
  b.Out(b.Reshape(o, {kB, kS, kHeads * kD}));
}

Graph RecoverForm(const Form& f) {
  return Recover([&](TestGraph& b) { Attention(b, f); });
}

TEST(Attention, EveryFormOfKAndOfTheScale) {
  for (KForm k : {KForm::kPerm, KForm::kAfterHeads, KForm::kFlat, KForm::kNt}) {
    for (int scale = 0; scale < 4; ++scale) {
      SCOPED_TRACE(StrCat(static_cast<int>(k), " ", scale));
      Graph g = RecoverForm({.k = k, .scale = scale});
      ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
      const Op* attention = Find(g, "attention");
      EXPECT_EQ(attention->attrs.String("layout"), "bshd");
      EXPECT_NEAR(attention->attrs.Float("scale"), 1 / std::sqrt(1.0 * kD), 1e-15);
      EXPECT_FALSE(attention->attrs.Bool("causal"));
    }
  }
}

TEST(Attention, GroupedHeads) {
  for (KForm k : {KForm::kAfterHeads, KForm::kFlat, KForm::kNt}) {
    for (int kv : {1, 2}) {
      for (int scale : {0, 2}) {
        Graph g = RecoverForm({.k = k, .scale = scale, .heads_kv = kv});
        ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
        EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kS, kv, kD}));
        EXPECT_EQ(Find(g, "attention")->in(2).shape, (Shape{kB, kS, kv, kD}));
      }
    }
  }
}

TEST(Attention, RotatedHeadsStayBehindTheSequence) {
  Graph g = RecoverForm({.rotate = true});
  EXPECT_EQ(Find(g, "attention")->attrs.String("layout"), "bshd");
  EXPECT_THAT(Ops(g), Not(Contains("transpose")));
}

TEST(Attention, KvHeadsRepeatedBeforeTheTranspose) {
  for (int kv : {1, 2}) {
    for (Form::Repeat repeat : {Form::kHeadsLast, Form::kTile, Form::kStack}) {
      SCOPED_TRACE(StrCat(kv, " ", static_cast<int>(repeat)));
      Graph g = RecoverForm({.k = KForm::kAfterHeads, .heads_kv = kv, .repeat = repeat});
      ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
      EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kS, kv, kD}));
      EXPECT_EQ(Find(g, "attention")->in(2).shape, (Shape{kB, kS, kv, kD}));
    }
  }
}

using MaskFn = std::function<Value*(TestGraph&, Value*)>;
MaskFn AddConst(HostTensor t) {
  return [t](TestGraph& b, Value* s) { return b.Add(b.Constant(t), s); };
}
MaskFn WhereConst(HostTensor keep, double fill) {
  return [=](TestGraph& b, Value* s) { return b.Where(b.Constant(keep), s, b.C(fill)); };
}

TEST(Attention, CausalMasksBecomeAFlag) {
  const Shape square = {kS, kS}, lead = {1, 1, kS, kS}, batch = {kB, 1, kS, kS};
  std::vector<MaskFn> masks = {
      AddConst(Mask(square, DType::kF64, 0, -kInf, Triangle)),
      AddConst(Mask(batch, DType::kF64, 0, kMin, Triangle)),
      AddConst(Mask(lead, DType::kF64, 0, -1e4, Triangle)),
      WhereConst(Mask(lead, DType::kBool, 1, 0, Triangle), -kInf),
      WhereConst(Mask(batch, DType::kBool, 1, 0, Triangle), kMin),
      // masked_fill: the condition is true where the fill goes
      [=](TestGraph& b, Value* s) {
        return b.Where(b.Constant(Mask(square, DType::kBool, 0, 1, Triangle)), b.C(-kInf), s);
      },
      [=](TestGraph& b, Value* s) {
        Value* drop = b.Make("not", {b.Constant(Mask(square, DType::kBool, 1, 0, Triangle))});
        return b.Where(drop, b.BroadcastTo(b.C(kMin), s->type.shape), s);
      },
      // eager: both
      [=](TestGraph& b, Value* s) {
        s = b.Where(b.Constant(Mask(lead, DType::kBool, 1, 0, Triangle)), s, b.C(kMin));
        return b.Add(s, b.Constant(Mask(batch, DType::kF64, 0, kMin, Triangle)));
      },
      // made of constants by ops that nobody folded
      [=](TestGraph& b, Value* s) {
        Value* keep = b.BroadcastTo(b.Constant(Mask(square, DType::kBool, 1, 0, Triangle)), batch);
        return b.Add(s, b.Where(keep, b.C(0), b.C(-kInf)));
      },
  };
  for (size_t i = 0; i < masks.size(); ++i) {
    for (bool guard : {false, true}) {
      SCOPED_TRACE(StrCat(i, " ", guard));
      Graph g = RecoverForm({.mask = masks[i], .guard = guard});
      ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
      EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
      EXPECT_EQ(Find(g, "attention")->operands.size(), 3u);
    }
  }
}

TEST(Attention, OtherConstantMasksStay) {
  auto slopes = Mask({kHeads, kS, kS}, DType::kF64, -0.5, -kInf, Triangle);
  for (const MaskFn& mask :
       {WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Band), -kInf),
        AddConst(Mask({kB, 1, kS, kS}, DType::kF64, 0, kMin, Band)), AddConst(slopes)}) {
    Graph g = RecoverForm({.mask = mask});
    ASSERT_THAT(Ops(g), Contains("attention"));
    EXPECT_FALSE(Find(g, "attention")->attrs.Bool("causal"));
    EXPECT_EQ(Find(g, "attention")->operands.size(), 4u);
  }
}

// Row 1 of the first batch sees no key.
HostTensor Padding() {
  HostTensor t(DType::kBool, {kB, 1, kS, kS});
  for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, i / kS != 1 && (i * 7) % 3 != 0);
  return t;
}

// A bias by distance, and a triangle whose fill, the lowest of half precision, absorbs no score.
TEST(Attention, ABiasAndAFillOfHalfPrecision) {
  auto bias = [](TestGraph& b, Value* s) { return b.Add(s, b.Constant(Random("bias", {kS, kS}))); };
  constexpr double kLowest = -65504;
  Graph g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), kLowest)(b, bias(b, s));
  }});
  const Op* attention = Find(g, "attention");
  ASSERT_TRUE(attention);
  EXPECT_EQ(attention->operands.size(), 4u);
  // Not where a row may see no key, or where the fill can be near a score.
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return b.Where(b.In("padding", Padding()), bias(b, s), b.C(kLowest));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), -100)(b, bias(b, s));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

// Where all that a row sees is brought down to it, a fill that absorbs nothing is seen too.
TEST(Attention, AFillThatOtherMasksComeNear) {
  auto triangle = WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), -1e4);
  Graph g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return triangle(b, b.Add(s, b.Where(b.In("padding", Padding()), b.C(0), b.C(-1e4))));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
  auto below_first_row = [](int64_t i, int64_t) { return i > 0; };
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    s = AddConst(Mask({kS, kS}, DType::kF64, -3, -1e4, below_first_row))(b, s);
    return triangle(b, s);
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

TEST(Attention, ComputedMaskWithGuard) {
  Graph g = RecoverForm({.mask =
                             [](TestGraph& b, Value* s) {
                               Value* keep = b.Make(
                                   "and", {b.Constant(Mask({kS, kS}, DType::kBool, 1, 0, Triangle)),
                                           b.In("padding", Padding())});
                               return b.Add(s, b.Where(keep, b.C(0), b.C(-kInf)));
                             },
                         .guard = true});
  const Op* attention = Find(g, "attention");
  ASSERT_TRUE(attention);
  EXPECT_TRUE(attention->attrs.Bool("causal"));
  EXPECT_EQ(attention->operands[3], g.FindInput("padding"));
}

TEST(Attention, FiniteComputedMaskKeepsUniformRows) {
  for (bool replace : {true, false}) {
    Graph g = RecoverForm({.mask = [=](TestGraph& b, Value* s) {
      Value* keep = b.In("padding", Padding());
      s = b.Where(b.Constant(Mask({kS, kS}, DType::kBool, 1, 0, Triangle)), s, b.C(kMin));
      return replace ? b.Where(keep, s, b.C(kMin)) : b.Add(s, b.Where(keep, b.C(0), b.C(kMin)));
    }});
    const Op* attention = Find(g, "attention");
    ASSERT_TRUE(attention);
    EXPECT_FALSE(attention->attrs.Bool("causal"));
    EXPECT_EQ(attention->in(3).dtype, DType::kF64);
  }
}

// max(scores, the type's lowest) after the masks: rows that see no key are uniform.
TEST(Attention, AFloorUnderTheScores) {
  auto floor = [](TestGraph& b, Value* s, double least) { return b.Make("max", {s, b.C(least)}); };
  Graph g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return floor(b, AddConst(Mask({kS, kS}, DType::kF64, 0, kMin, Triangle))(b, s), kMin);
  }});
  ASSERT_THAT(Ops(g), Contains("attention"));
  EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
  EXPECT_EQ(Find(g, "attention")->operands.size(), 3u);
  for (double fill : {kMin, -kInf}) {
    g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
      s = b.Add(s, b.Where(b.In("padding", Padding()), b.C(0), b.C(fill)));
      return floor(b, s, kMin);
    }});
    ASSERT_THAT(Ops(g), Contains("attention"));
    EXPECT_EQ(Find(g, "attention")->operands.size(), 4u);
  }
  // Not where scores may lie below it, or where rows may be NaN after it.
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) { return floor(b, s, -100); }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return b.Add(floor(b, s, kMin), b.Where(b.In("padding", Padding()), b.C(0), b.C(-kInf)));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

// The mask of an attention has no gradient.
TEST(Attention, ATrainedBiasStaysAnAdd) {
  auto biased = [](bool trained, bool guard) {
    return RecoverForm({.mask =
                            [=](TestGraph& b, Value* s) {
                              Value* bias = trained ? b.P("bias", {kHeads, kS, kS})
                                                    : b.In("bias", {kHeads, kS, kS});
                              return b.Add(s, b.Mul(bias, b.C(3)));
                            },
                        .guard = guard});
  };
  EXPECT_THAT(Ops(biased(false, true)), Contains("attention"));
  EXPECT_THAT(Ops(biased(true, true)), Not(Contains("attention")));
  EXPECT_THAT(Ops(biased(true, false)), Not(Contains("attention")));
}

TEST(Attention, RowsThatMightSeeNothingAndBeNaNAreLeftAlone) {
  Graph g = RecoverForm({.mask = [](TestGraph& b, Value* s) {
    return b.Where(b.In("padding", Padding()), s, b.C(-kInf));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
  g = RecoverForm({.mask = WhereConst(Padding(), -kInf)});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
  g = RecoverForm({.mask = WhereConst(Padding(), kMin)});
  EXPECT_THAT(Ops(g), Contains("attention"));
}

TEST(Attention, ProbabilitiesThatAreWantedElsewhereStay) {
  Graph g = Recover([](TestGraph& b) {
    Value* p = b.Softmax(b.Make("matmul_nt", {b.In("q", {1, 2, 3, 4}), b.In("k", {1, 2, 3, 4})}));
    b.Out(p, "p");
    b.Out(b.Matmul(p, b.In("v", {1, 2, 3, 4})));
  });
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

TEST(Attention, FlattenedBatchAndHeads) {
  Graph g = Recover([](TestGraph& b) {
    auto flat = [&](const std::string& name) {
      return b.Reshape(b.In(name, {kB, kHeads, kS, kD}), {kB * kHeads, kS, kD});
    };
    Value* scores = b.Matmul(flat("q"), b.Transpose(flat("k"), {0, 2, 1}));
    scores = b.Add(scores, b.Constant(Mask({1, kS, kS}, DType::kF64, 0, -kInf, Triangle)));
    b.Out(b.Reshape(b.Matmul(b.Softmax(scores), flat("v")), {kB, kHeads, kS, kD}));
  });
  ASSERT_THAT(Ops(g), ElementsAre("attention"));
  EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
  EXPECT_EQ(Find(g, "attention")->attrs.String("layout"), "bhsd");
}

// One head of k and v for all queries: einsum makes heads and queries the rows of one matrix.
TEST(Attention, HeadsAsRows) {
  Graph g = Recover([](TestGraph& b) {
    const Shape scores_shape = {kB, kHeads, kS, kS};
    Value* q = b.Reshape(b.In("q", {kB, kHeads, kS, kD}), {kB, kHeads * kS, kD});
    Value* scores = b.Reshape(b.Make("matmul_nt", {q, b.In("k", {kB, kS, kD})}), scores_shape);
    scores = b.Add(scores, b.Constant(Random("bias", {kHeads, kS, kS})));
    scores = b.Add(scores, b.Constant(Mask({kS, kS}, DType::kF64, 0, -kInf, Triangle)));
    Value* p = b.Reshape(b.Softmax(scores), {kB, kHeads * kS, kS});
    b.Out(b.Reshape(b.Matmul(p, b.In("v", {kB, kS, 3})), {kB, kHeads, kS, 3}));
  });
  ASSERT_THAT(Ops(g), Contains("attention"));
  EXPECT_THAT(Ops(g), Not(Contains("matmul")));
  EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, 1, kS, kD}));
}

// [b, g, h / g, s, d], with or without a dim of 1 in k and v.
TEST(Attention, HeadsInGroups) {
  constexpr int64_t kGroups = 2, kEach = kHeads / kGroups;
  for (bool as_rows : {true, false}) {
    for (int mask = 0; mask < 3; ++mask) {
      SCOPED_TRACE(StrCat(as_rows, " ", mask));
      Graph g = Recover([&](TestGraph& b) {
        Value* q = b.Reshape(b.In("q", {kB, kHeads, kS, kD}), {kB, kGroups, kEach, kS, kD});
        auto kv = [&](const std::string& name) {
          Value* x = b.In(name, {kB, kGroups, kS, kD});
          return as_rows ? x : b.Reshape(x, {kB, kGroups, 1, kS, kD});
        };
        if (as_rows) q = b.Reshape(q, {kB, kGroups, kEach * kS, kD});
        Value* scores = b.Make("matmul_nt", {q, kv("k")});
        scores = b.Reshape(scores, {kB, kGroups, kEach, kS, kS});
        const Shape shapes[] = {{kS, kS}, {kB, kGroups, kEach, kS, kS}, {kGroups, 1, kS, kS}};
        scores = b.Add(scores, b.Constant(Random("mask", shapes[mask])));
        Value* p = b.Softmax(scores);
        if (as_rows) p = b.Reshape(p, {kB, kGroups, kEach * kS, kS});
        b.Out(b.Reshape(b.Matmul(p, kv("v")), {kB, kHeads, kS, kD}));
      });
      // A mask for each group and not for each head has no shape that broadcasts to heads.
      const auto ops = Ops(g);
      ASSERT_EQ(std::count(ops.begin(), ops.end(), "attention"), mask == 2 ? 0 : 1);
      if (mask == 2) continue;
      EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kGroups, kS, kD}));
      EXPECT_EQ(Find(g, "attention")->in(0).shape, (Shape{kB, kHeads, kS, kD}));
    }
  }
}

// Megatron-LM's own: [s, b, h], with batch and heads as one dim for baddbmm and bmm.
TEST(Attention, SequenceFirstWithBatchAndHeadsMerged) {
  Graph g = Recover([](TestGraph& b) {
    auto flat = [&](const std::string& name, Ints perm) {
      Value* x = b.Reshape(b.In(name, {kS, kB, kHeads * kD}), {kS, kB * kHeads, kD});
      return b.Transpose(x, std::move(perm));
    };
    Value* scores = b.Mul(b.Matmul(flat("q", {1, 0, 2}), flat("k", {1, 2, 0})), b.C(0.25));
    scores = b.Reshape(scores, {kB, kHeads, kS, kS});
    scores = b.Where(b.Constant(Mask({1, 1, kS, kS}, DType::kBool, 1, 0, Triangle)), scores,
                     b.C(-10000));
    Value* p = b.Reshape(b.Softmax(scores), {kB * kHeads, kS, kS});
    Value* o = b.Reshape(b.Matmul(p, flat("v", {1, 0, 2})), {kB, kHeads, kS, kD});
    b.Out(b.Reshape(b.Transpose(o, {2, 0, 1, 3}), {kS, kB, kHeads * kD}));
  });
  ASSERT_THAT(Ops(g), Contains("attention"));
  EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
  // Batch and heads are nowhere one dim.
  for (const auto& op : g.ops()) {
    for (const Value* r : op->results) EXPECT_THAT(r->type.shape, Not(Contains(kB * kHeads)));
  }
}

// A mask or another number for each of batch and heads as one dim is not the scores' any more.
TEST(Attention, MaskedBeforeItIsRegroupedStays) {
  Graph g = Recover([](TestGraph& b) {
    Value* q = b.In("q", {kB * kHeads, kS, kD});
    Value* scores = b.Make("matmul_nt", {q, b.In("k", {kB * kHeads, kS, kD})});
    scores = b.Add(scores, b.Constant(Random("alibi", {kB * kHeads, 1, kS})));
    Value* p = b.Softmax(b.Reshape(scores, {kB, kHeads, kS, kS}));
    b.Out(b.Matmul(b.Reshape(p, {kB * kHeads, kS, kS}), b.In("v", {kB * kHeads, kS, kD})));
  });
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

TEST(Attention, AMaskOfTheModelsOwnAttention) {
  Graph g = Recover([](TestGraph& b) {
    Value *q = b.In("q", {kB, kHeads, kS, kD}), *k = b.In("k", {kB, 2, kS, kD}),
          *v = b.In("v", {kB, 2, kS, kD});
    Value* mask = b.Constant(Mask({kB, 1, kS, kS}, DType::kBool, 1, 0, Triangle));
    Attributes attrs = {{"scale", 0.3}, {"causal", false}, {"layout", std::string("bhsd")}};
    b.Out(b.Create("attention", {q, k, v, mask}, attrs)->result());
  });
  EXPECT_THAT(Ops(g), ElementsAre("attention"));
  EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
  EXPECT_EQ(Find(g, "attention")->operands.size(), 3u);
}

// f32 and f64 stand for half precision and f32.
enum class Widened { kOperands, kScores, kComputed };
Graph RecoverWidened(Widened how, bool guard) {
  return Recover(
      [=](TestGraph& b) {
        auto narrow = [&](const char* name) {
          return b.Cast(b.In(name, {kB, kHeads, kS, kD}), DType::kF32);
        };
        Value *q = narrow("q"), *k = narrow("k"), *v = narrow("v");
        auto wide = [&](Value* x) { return b.Cast(x, DType::kF64); };
        Value* scores = nullptr;
        if (how == Widened::kScores) {
          scores = wide(b.Make("matmul_nt", {q, k}));
        } else {
          q = wide(q);
          if (how == Widened::kComputed) q = b.Mul(q, b.P("w", {kD}));
          scores = b.Matmul(b.Mul(q, b.C(0.4)), b.Transpose(wide(k), {0, 1, 3, 2}));
        }
        scores = b.Add(scores, b.Constant(Mask({kS, kS}, DType::kF64, 0, kMin, Triangle)));
        Value* p = b.Softmax(scores);
        if (guard) {
          p = b.Cast(p, DType::kF32);
          HostTensor zero(DType::kF32, {});
          p = b.Where(b.Op1("is_nan", p), b.Constant(zero), p);
        }
        b.Out(b.Matmul(b.Cast(p, DType::kF32), v));
      },
      1e-6);
}

TEST(Attention, ScoresInAWiderTypeThanTheValues) {
  for (Widened how : {Widened::kOperands, Widened::kScores, Widened::kComputed}) {
    for (bool guard : {false, true}) {
      SCOPED_TRACE(StrCat(static_cast<int>(how), " ", guard));
      Graph g = RecoverWidened(how, guard);
      const Op* attention = Find(g, "attention");
      ASSERT_TRUE(attention);
      EXPECT_TRUE(attention->attrs.Bool("causal"));
      EXPECT_EQ(attention->operands.size(), 3u);
      DType expected = how == Widened::kComputed ? DType::kF64 : DType::kF32;
      EXPECT_EQ(attention->in(0).dtype, expected);
      EXPECT_EQ(g.outputs[0].value->type.dtype, DType::kF32);
      EXPECT_THAT(Ops(g), Not(Contains("softmax")));
    }
  }
}

TEST(Attention, MasksInTwoTypesAreAddedInTheWider) {
  Graph g = Recover(
      [](TestGraph& b) {
        auto narrow = [&](const char* name) {
          return b.Cast(b.In(name, {kB, kHeads, kS, kD}), DType::kF32);
        };
        Value* scores = b.Make("matmul_nt", {narrow("q"), narrow("k")});
        scores = b.Add(scores, b.Cast(b.Constant(Random("bias", {kHeads, kS, kS})), DType::kF32));
        scores = b.Add(b.Cast(scores, DType::kF64), b.Constant(Random("bias2", {kS, kS})));
        b.Out(b.Matmul(b.Cast(b.Softmax(scores), DType::kF32), narrow("v")));
      },
      1e-6);
  const Op* attention = Find(g, "attention");
  ASSERT_TRUE(attention);
  EXPECT_EQ(attention->in(0).dtype, DType::kF32);
  ASSERT_EQ(attention->operands.size(), 4u);
  EXPECT_EQ(attention->in(3).dtype, DType::kF64);
}

void ExpectDropping(const Graph& g, int64_t operands) {
  const Op* attention = Find(g, "attention");
  ASSERT_TRUE(attention);
  EXPECT_THAT(Ops(g), Not(Contains("softmax")));
  EXPECT_EQ(attention->attrs.Float("ratio"), 0.4);
  EXPECT_EQ(attention->attrs.Int("seed"), 7);
  EXPECT_EQ(attention->operands.size(), static_cast<size_t>(operands));
  EXPECT_TRUE(attention->operands.back()->producer->def->is_state);
}

// That what is drawn is the same, Recover itself sees.
TEST(Attention, DropoutOfTheProbabilities) {
  const MaskFn causal = WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), -kInf);
  const MaskFn biased = AddConst(Mask({kHeads, kS, kS}, DType::kF64, -0.5, -kInf, Triangle));
  for (KForm k : {KForm::kPerm, KForm::kAfterHeads, KForm::kFlat, KForm::kNt}) {
    for (int scale = 0; scale < 4; ++scale) {
      ExpectDropping(RecoverForm({.k = k, .scale = scale, .dropout = 0.4}), 4);
    }
  }
  for (bool guard : {false, true}) {
    Graph g = RecoverForm({.mask = causal, .guard = guard, .dropout = 0.4});
    ExpectDropping(g, 4);
    EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
    ExpectDropping(RecoverForm({.mask = biased, .guard = guard, .dropout = 0.4}), 5);
  }
  for (Form::Repeat repeat : {Form::kHeadsFirst, Form::kHeadsLast, Form::kTile}) {
    Graph g =
        RecoverForm({.k = KForm::kAfterHeads, .heads_kv = 2, .repeat = repeat, .dropout = 0.4});
    ExpectDropping(g, 4);
    EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kS, 2, kD}));
  }
  ExpectDropping(RecoverForm({.rotate = true, .dropout = 0.4}), 4);
}

// Heads that were never apart from the batch, and scores or probabilities that were for a while.
TEST(Attention, DropoutOfFlattenedHeads) {
  constexpr int64_t kFlat = kB * kHeads;
  for (int where = 0; where < 4; ++where) {
    SCOPED_TRACE(where);
    Graph g = Recover([=](TestGraph& b) {
      auto flat = [&](const char* name) {
        return b.Reshape(b.In(name, {kB, kHeads, kS, kD}), {kFlat, kS, kD});
      };
      Value* p = b.Matmul(flat("q"), b.Transpose(flat("k"), {0, 2, 1}));
      auto apart = [&](Value* x, bool now) { return now ? b.Reshape(x, {kB, kHeads, kS, kS}) : x; };
      p = b.Softmax(apart(p, where == 1 || where == 2));
      if (where == 2) p = b.Reshape(p, {kFlat, kS, kS});
      p = AddDropout(b, apart(p, where == 3), 0.4, 7);
      b.Out(b.Matmul(b.Reshape(p, {kFlat, kS, kS}), flat("v")));
    });
    ExpectDropping(g, 4);
  }
}

TEST(Attention, DropoutOfRoundedProbabilities) {
  for (bool first : {false, true}) {
    Graph g = Recover(
        [=](TestGraph& b) {
          auto narrow = [&](const char* name) {
            return b.Cast(b.In(name, {kB, kHeads, kS, kD}), DType::kF32);
          };
          Value* scores = b.Make("matmul_nt", {narrow("q"), narrow("k")});
          Value* p = b.Softmax(b.Cast(scores, DType::kF64));
          if (first) p = b.Cast(p, DType::kF32);
          p = AddDropout(b, p, 0.4, 7);
          b.Out(b.Matmul(b.Cast(p, DType::kF32), narrow("v")));
        },
        1e-6);
    ExpectDropping(g, 4);
  }
}

// Dropped probabilities that are wanted elsewhere too would be computed twice.
TEST(Attention, DropoutThatIsReadTwiceStays) {
  for (bool before : {false, true}) {
    Graph g = Recover([=](TestGraph& b) {
      Value* s = b.Make("matmul_nt", {b.In("q", {1, 2, 3, 4}), b.In("k", {1, 2, 3, 4})});
      Value* p = b.Softmax(s);
      Value* dropped = AddDropout(b, p, 0.4);
      Value* o = b.Matmul(dropped, b.In("v", {1, 2, 3, 4}));
      b.Out(b.Add(o, b.Make("reduce_sum", {before ? p : dropped},
                            {{"axes", Ints{3}}, {"keepdims", true}})));
    });
    EXPECT_THAT(Ops(g), Not(Contains("attention")));
  }
}

TEST(Attention, SoftmaxOverAnotherAxisStays) {
  Graph g = Recover([](TestGraph& b) {
    Value* s = b.Make("matmul_nt", {b.In("q", {1, 2, 3, 4}), b.In("k", {1, 2, 3, 4})});
    b.Out(b.Matmul(b.Make("softmax", {s}, {{"axis", int64_t{2}}}), b.In("v", {1, 2, 3, 4})));
  });
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

}  // namespace
}  // namespace shardc::recover_testing
