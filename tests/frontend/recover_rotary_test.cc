// Rotary positions as exporters write them, and what only looks like them.
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

constexpr int64_t kB = 2, kH = 3, kS = 4, kD = 8, kHalf = kD / 2;
const Shape kHeads = {kB, kH, kS, kD};

// Tables of the angles of pairs, [s, d / 2].
HostTensor Angles(const std::string& name) { return Random(name, {kS, kHalf}); }
// With each angle twice: halves alike, or neighbours.
HostTensor Doubled(const HostTensor& half, bool interleaved) {
  HostTensor t(half.dtype(), {kS, kD});
  for (int64_t s = 0; s < kS; ++s) {
    for (int64_t i = 0; i < kD; ++i) {
      t.SetDouble(s * kD + i, half.AsDouble(s * kHalf + (interleaved ? i / 2 : i % kHalf)));
    }
  }
  return t;
}

// Elements [from, to) of the last dim, every step-th.
Value* Part(TestGraph& b, Value* x, int64_t from, int64_t to, int64_t step = 1) {
  Ints starts(x->type.rank(), 0), limits = x->type.shape, steps(x->type.rank(), 1);
  starts.back() = from, limits.back() = to, steps.back() = step;
  return b.Make("slice", {x}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
}
Value* Join(TestGraph& b, std::vector<Value*> parts, int64_t axis = -1) {
  if (axis < 0) axis += parts[0]->type.rank();
  return b.Make("concat", std::move(parts), {{"axis", axis}});
}
Value* RotateHalf(TestGraph& b, Value* x) {
  const int64_t n = x->type.shape.back();
  return Join(b, {b.Neg(Part(b, x, n / 2, n)), Part(b, x, 0, n / 2)});
}
// [..., n] as pairs [..., n / 2, 2] with the second of each, negated, first.
Value* RotateEveryTwo(TestGraph& b, Value* x) {
  const Shape all = x->type.shape;
  Shape column = all;
  column.back() /= 2;
  column.push_back(1);
  const int64_t n = all.back();
  Value *even = Part(b, x, 0, n, 2), *odd = Part(b, x, 1, n, 2);
  return b.Reshape(Join(b, {b.Reshape(b.Neg(odd), column), b.Reshape(even, column)}), all);
}

struct Expected {
  bool interleaved = false, inverse = false;
  Shape table = {kS, kHalf};
  std::vector<std::string> ops = {"rotary"};
};
void ExpectRotary(const std::function<void(TestGraph&)>& build, const Expected& e = {}) {
  const Graph g = Recover(build);
  EXPECT_EQ(Ops(g), e.ops);
  const Op* rotary = Find(g, "rotary");
  ASSERT_NE(rotary, nullptr);
  EXPECT_EQ(rotary->attrs.Bool("interleaved"), e.interleaved);
  EXPECT_EQ(rotary->attrs.Bool("inverse"), e.inverse);
  EXPECT_EQ(rotary->in(1).shape, e.table);
  EXPECT_EQ(rotary->in(2).shape, e.table);
}
void ExpectNone(const std::function<void(TestGraph&)>& build) {
  EXPECT_THAT(Ops(Recover(build)), Not(Contains("rotary")));
}

Value* Table(TestGraph& b, const std::string& name, bool interleaved = false) {
  return b.Constant(Doubled(Angles(name), interleaved));
}

// x cos + rotate(x) sin.
Value* Sum(TestGraph& b, Value* x, Value* turned, bool interleaved = false) {
  return b.Add(b.Mul(x, Table(b, "cos", interleaved)), b.Mul(turned, Table(b, "sin", interleaved)));
}

TEST(Rotary, HalvesBySlice) {
  ExpectRotary([](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    b.Out(Sum(b, x, RotateHalf(b, x)));
  });
}

TEST(Rotary, HalvesBySplitInAnyOrder) {
  ExpectRotary([](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    Op* halves = b.Create("split", {x}, {{"axis", int64_t{-1}}, {"sizes", Ints{kHalf, kHalf}}});
    Value* turned = Join(b, {b.Neg(halves->result(1)), halves->result(0)});
    b.Out(b.Add(b.Mul(Table(b, "sin"), turned), b.Mul(Table(b, "cos"), x)));
  });
}

TEST(Rotary, NegatedBehindTheJoin) {
  // -(x2, -x1) sin: minus what is turned back, which is turned.
  ExpectRotary([](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    Value* back = Join(b, {Part(b, x, kHalf, kD), b.Neg(Part(b, x, 0, kHalf))});
    b.Out(b.Sub(b.Mul(x, Table(b, "cos")), b.Mul(back, Table(b, "sin"))));
  });
  ExpectRotary([](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    Value* back = Join(b, {Part(b, x, kHalf, kD), b.Neg(Part(b, x, 0, kHalf))});
    b.Out(b.Add(b.Mul(x, Table(b, "cos")), b.Neg(b.Mul(back, Table(b, "sin")))));
  });
}

TEST(Rotary, TurnedBack) {
  ExpectRotary(
      [](TestGraph& b) {
        Value* x = b.In("x", kHeads);
        b.Out(b.Sub(b.Mul(x, Table(b, "cos")), b.Mul(RotateHalf(b, x), Table(b, "sin"))));
      },
      {.inverse = true});
}

TEST(Rotary, HalvesWrittenOut) {
  ExpectRotary([](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    Value *cos = b.Constant(Angles("cos")), *sin = b.Constant(Angles("sin"));
    Value *x1 = Part(b, x, 0, kHalf), *x2 = Part(b, x, kHalf, kD);
    Value* y1 = b.Sub(b.Mul(x1, cos), b.Mul(sin, x2));
    Value* y2 = b.Add(b.Mul(sin, x1), b.Mul(x2, cos));
    b.Out(Join(b, {y1, y2}));
  });
}

TEST(Rotary, NeighboursByEveryOtherElement) {
  ExpectRotary(
      [](TestGraph& b) {
        Value* x = b.In("x", kHeads);
        b.Out(Sum(b, x, RotateEveryTwo(b, x), true));
      },
      {.interleaved = true});
}

// As complex numbers, [..., d / 2, 2].
TEST(Rotary, NeighboursInADimOfTheirOwn) {
  ExpectRotary(
      [](TestGraph& b) {
        const Shape pairs = {kB, kH, kS, kHalf, 2}, column = {kB, kH, kS, kHalf, 1};
        Value* x = b.Reshape(b.In("x", kHeads), pairs);
        Op* parts = b.Create("split", {x}, {{"axis", int64_t{4}}, {"sizes", Ints{1, 1}}});
        Value *real = b.Reshape(parts->result(0), {kB, kH, kS, kHalf}),
              *imaginary = b.Reshape(parts->result(1), {kB, kH, kS, kHalf});
        Value *cos = b.Constant(Angles("cos")), *sin = b.Constant(Angles("sin"));
        Value* y1 = b.Sub(b.Mul(real, cos), b.Mul(imaginary, sin));
        Value* y2 = b.Add(b.Mul(real, sin), b.Mul(imaginary, cos));
        b.Out(b.Reshape(Join(b, {b.Reshape(y1, column), b.Reshape(y2, column)}), kHeads));
      },
      {.interleaved = true});
}

// y[..., 0::2] = y1 and y[..., 1::2] = y2, which dynamo writes to rows in front.
TEST(Rotary, NeighboursByAssignment) {
  ExpectRotary(
      [](TestGraph& b) {
        Value* x = b.In("x", kHeads);
        Value *even = Part(b, x, 0, kD, 2), *odd = Part(b, x, 1, kD, 2);
        Value *cos = b.Constant(Angles("cos")), *sin = b.Constant(Angles("sin"));
        Value* y1 = b.Sub(b.Mul(even, cos), b.Mul(odd, sin));
        Value* y2 = b.Add(b.Mul(even, sin), b.Mul(odd, cos));
        const Ints in_front = {3, 1, 2, 0};
        auto assign = [&](Value* rows, Value* part, std::vector<int64_t> from) {
          Value* all = Join(b, {rows, b.Transpose(part, in_front)}, 0);
          Value* at = b.Constant(HostTensor::Of<int64_t>({kD}, from));
          return b.Make("gather", {all, at}, {{"axis", int64_t{0}}});
        };
        Value* rows = b.Transpose(b.C(0, kHeads), in_front);
        rows = assign(rows, y1, {kD, 1, kD + 1, 3, kD + 2, 5, kD + 3, 7});
        rows = assign(rows, y2, {0, kD, 2, kD + 1, 4, kD + 2, 6, kD + 3});
        b.Out(b.Transpose(rows, in_front));
      },
      {.interleaved = true});
}

// The whole width at once, as LTX-Video's, with angles of its own for each head.
TEST(Rotary, NeighboursOfTheWholeWidth) {
  const Shape heads = {kB, kS, 2, kD / 2};
  ExpectRotary(
      [&](TestGraph& b) {
        Value* x = b.In("x", {kB, kS, kD});
        Value* turned = Sum(b, x, RotateEveryTwo(b, x), true);
        b.Out(b.Transpose(b.Reshape(turned, heads), {0, 2, 1, 3}));
      },
      {.interleaved = true, .table = {kS, 2, kD / 4}, .ops = {"reshape", "rotary", "transpose"}});
}

// Heads of one pair, [.., h, 2], are not the pairs of one head.
TEST(Rotary, OnePairAHead) {
  const Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {kB, kS, kH, 2});
    HostTensor cos = Random("cos", {kS, 1, 2}), sin = Random("sin", {kS, 1, 2});
    for (HostTensor* t : {&cos, &sin}) {
      for (int64_t s = 0; s < kS; ++s) t->SetDouble(2 * s + 1, t->AsDouble(2 * s));
    }
    b.Out(b.Add(b.Mul(x, b.Constant(cos)), b.Mul(RotateHalf(b, x), b.Constant(sin))));
  });
  ASSERT_NE(Find(g, "rotary"), nullptr);
  EXPECT_EQ(Find(g, "rotary")->in(0).shape, (Shape{kB, kS, kH, 2}));
  EXPECT_EQ(Find(g, "rotary")->in(1).shape, (Shape{kS, 1, 1}));
}

// Nor are positions, [.., s, 2], whose tables have no two angles alike.
TEST(Rotary, OnePairAPosition) {
  const Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {kB, kH, kS, 2});
    HostTensor cos = Random("cos", {kS, 2}), sin = Random("sin", {kS, 2});
    for (HostTensor* t : {&cos, &sin}) {
      for (int64_t s = 0; s < kS; ++s) t->SetDouble(2 * s + 1, t->AsDouble(2 * s));
    }
    b.Out(b.Add(b.Mul(x, b.Constant(cos)), b.Mul(RotateHalf(b, x), b.Constant(sin))));
  });
  ASSERT_NE(Find(g, "rotary"), nullptr);
  EXPECT_EQ(Find(g, "rotary")->in(0).shape, (Shape{kB, kH, kS, 2}));
  EXPECT_EQ(Find(g, "rotary")->in(1).shape, (Shape{kS, 1}));
}

// q of [b, h, 3, s, d] or [3, b, h, s, d] (ModernBERT, vision models), and heads that are examples:
// the product with cos is on other dims than the one with sin.
TEST(Rotary, RowsThatOtherDimsCount) {
  for (bool interleaved : {false, true}) {
    for (const Shape& lead : {Shape{kB, kH, 1, kS}, {1, kB, kH, kS}, {kB, 1, kH, kS}}) {
      for (const Shape& heads : {kHeads, Shape{kB * kH, kS, kD}}) {
        Shape apart = lead;
        apart.push_back(kD);
        const Graph g = Recover([&](TestGraph& b) {
          Value* of = b.In("x", apart);
          Value* x = b.Reshape(of, heads);
          Value* turned = interleaved ? RotateEveryTwo(b, x) : RotateHalf(b, x);
          Value* sines = b.Mul(turned, Table(b, "sin", interleaved));
          b.Out(b.Add(b.Reshape(b.Mul(of, Table(b, "cos", interleaved)), heads), sines));
        });
        const Op* rotary = Find(g, "rotary");
        ASSERT_NE(rotary, nullptr);
        EXPECT_EQ(rotary->in(1).shape, (Shape{kS, kHalf}));
        EXPECT_THAT(Ops(g), Not(Contains("mul")));
      }
    }
  }
}

// A table with an entry for each head is none for rows in which heads are examples.
TEST(Rotary, TablesOfDimsThatAreMergedStay) {
  ExpectNone([](TestGraph& b) {
    Value* of = b.In("x", kHeads);
    Value *x = b.Reshape(of, {kB * kH, kS, kD}), *angles = b.In("angles", {kH, 1, kHalf});
    Value* cosines = b.Mul(of, b.Op1("cos", Join(b, {angles, angles})));
    b.Out(b.Add(b.Reshape(cosines, x->type.shape), b.Mul(RotateHalf(b, x), Table(b, "sin"))));
  });
}

// NeoX: the rest of each head passes.
TEST(Rotary, APartOfEachHead) {
  for (bool interleaved : {false, true}) {
    ExpectRotary(
        [=](TestGraph& b) {
          Value* x = b.In("x", {kB, kH, kS, kD + 6});
          Value *part = Part(b, x, 0, kD), *rest = Part(b, x, kD, kD + 6);
          Value* turned = interleaved ? RotateEveryTwo(b, part) : RotateHalf(b, part);
          b.Out(Join(b, {Sum(b, part, turned, interleaved), rest}));
        },
        {.interleaved = interleaved});
  }
}

// Of which more than what is turned and the rest is read, or the rest comes from elsewhere.
TEST(Rotary, APartWithoutItsRestStaysAPart) {
  auto build = [](int64_t from, bool other) {
    return [=](TestGraph& b) {
      Value* x = b.In("x", {kB, kH, kS, kD + 6});
      Value* part = Part(b, x, 0, kD);
      Value* rest = Part(b, other ? b.In("z", {kB, kH, kS, kD + 6}) : x, from, kD + 6);
      b.Out(Join(b, {Sum(b, part, RotateHalf(b, part)), rest}));
    };
  };
  for (const auto& [from, other] : {std::pair(kD + 1, false), {kD - 1, false}, {kD, true}}) {
    const Graph g = Recover(build(from, other));
    EXPECT_EQ(Find(g, "rotary")->in(0).shape, kHeads);
    EXPECT_THAT(Ops(g), Contains("concat"));
  }
}

// cos and sin of angles that are data, [b, s, d / 2], each twice, with a factor.
TEST(Rotary, ComputedTables) {
  for (bool interleaved : {false, true}) {
    ExpectRotary(
        [=](TestGraph& b) {
          Value *x = b.In("x", kHeads), *angles = b.In("angles", {kB, kS, kHalf});
          Value* both = nullptr;
          if (interleaved) {
            both = b.BroadcastTo(b.Reshape(angles, {kB, kS, kHalf, 1}), {kB, kS, kHalf, 2});
            both = b.Reshape(both, {kB, kS, kD});
          } else {
            both = Join(b, {angles, angles});
          }
          auto table = [&](const char* fn) {
            return b.Reshape(b.Mul(b.Op1(fn, both), b.C(1.25)), {kB, 1, kS, kD});
          };
          Value* turned = interleaved ? RotateEveryTwo(b, x) : RotateHalf(b, x);
          b.Out(b.Add(b.Mul(x, table("cos")), b.Mul(turned, table("sin"))));
        },
        {.interleaved = interleaved,
         .table = {kB, 1, kS, kHalf},
         .ops = {"cos", "mul", "reshape", "sin", "mul", "reshape", "rotary"}});
  }
}

// Rows of tables looked up by positions.
TEST(Rotary, LookedUpTables) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    Value* positions = b.In("positions", HostTensor::Of<int64_t>({kS}, {3, 0, 2, 2}));
    auto rows = [&](const char* name) {
      return b.Make("gather", {Table(b, name), positions}, {{"axis", int64_t{0}}});
    };
    b.Out(b.Add(b.Mul(x, rows("cos")), b.Mul(RotateHalf(b, x), rows("sin"))));
  });
  ASSERT_NE(Find(g, "rotary"), nullptr);
  EXPECT_EQ(Find(g, "rotary")->in(1).shape, (Shape{kS, kHalf}));
}

// Qwen2-VL: angles of time, height and width, each of which serves a section of both halves.
void SectionsOfPositions(TestGraph& b, int64_t last) {
  Value *x = b.In("x", kHeads), *angles = b.In("angles", {3, kS, kHalf});
  auto table = [&](const char* fn) {
    Value* both = b.Op1(fn, Join(b, {angles, angles}));
    std::vector<Value*> sections;
    for (const auto& [of, from, to] : {std::array<int64_t, 3>{0, 0, 1},
                                       {1, 1, 3},
                                       {2, 3, 4},
                                       {0, 4, 5},
                                       {1, 5, 7},
                                       {last, 7, 8}}) {
      Value* section = b.Slice(Part(b, both, from, to), {of, 0, 0}, {of + 1, kS, to - from});
      sections.push_back(b.Reshape(section, {kS, to - from}));
    }
    return Join(b, sections);
  };
  b.Out(b.Add(b.Mul(x, table("cos")), b.Mul(RotateHalf(b, x), table("sin"))));
}
TEST(Rotary, TablesInSections) {
  const Graph g = Recover([](TestGraph& b) { SectionsOfPositions(b, 2); });
  ASSERT_NE(Find(g, "rotary"), nullptr);
  EXPECT_EQ(Find(g, "rotary")->in(1).shape, (Shape{kS, kHalf}));
  EXPECT_THAT(Ops(g), Not(Contains("neg")));
  ExpectNone([](TestGraph& b) { SectionsOfPositions(b, 1); });
}

// Computed in f32 between casts, with tables in f32: on what it was cast from.
TEST(Rotary, HalvesWidenedForIt) {
  for (DType half : {DType::kBF16, DType::kF16}) {
    const Graph g = Recover(
        [=](TestGraph& b) {
          Value* x = b.Cast(b.Cast(b.In("x", kHeads), half), DType::kF32);
          Value *cos = b.Cast(Table(b, "cos"), DType::kF32),
                *sin = b.Cast(Table(b, "sin"), DType::kF32);
          Value* y = b.Add(b.Mul(x, cos), b.Mul(RotateHalf(b, x), sin));
          b.Out(b.Cast(y, half));
        },
        half == DType::kF16 ? 1e-3 : 1e-2);
    ASSERT_NE(Find(g, "rotary"), nullptr);
    EXPECT_EQ(Find(g, "rotary")->in(0).dtype, half);
    EXPECT_EQ(Find(g, "rotary")->in(1).dtype, DType::kF32);
  }
}

// Transposed heads, of which an attention wants the layout before: the transpose sinks.
TEST(Rotary, OneRowForAll) {
  ExpectRotary(
      [](TestGraph& b) {
        Value* x = b.In("x", {kD});
        HostTensor angles = Random("angle", {kHalf});
        HostTensor both(DType::kF64, {kD});
        for (int64_t i = 0; i < kD; ++i) both.SetDouble(i, angles.AsDouble(i % kHalf));
        b.Out(b.Add(b.Mul(x, b.Constant(both)), b.Mul(RotateHalf(b, x), b.Constant(both))));
      },
      {.table = {kHalf}});
}

TEST(Rotary, NearMissesStay) {
  const HostTensor cos = Doubled(Angles("cos"), false), sin = Doubled(Angles("sin"), false);
  // Halves of tables that are not alike, by one element.
  for (bool of_sin : {false, true}) {
    ExpectNone([&](TestGraph& b) {
      HostTensor c = cos, s = sin;
      HostTensor& other = of_sin ? s : c;
      other.SetDouble(kD + 2, other.AsDouble(kD + 2) + 1e-15);
      Value* x = b.In("x", kHeads);
      b.Out(b.Add(b.Mul(x, b.Constant(c)), b.Mul(RotateHalf(b, x), b.Constant(s))));
    });
  }
  // The tables of neighbours for halves.
  ExpectNone([](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    b.Out(Sum(b, x, RotateHalf(b, x), true));
  });
  // Nothing negated, both, or the other half.
  for (int negated : {0, 3}) {
    ExpectNone([&](TestGraph& b) {
      Value* x = b.In("x", kHeads);
      Value *x1 = Part(b, x, 0, kHalf), *x2 = Part(b, x, kHalf, kD);
      if (negated & 1) x2 = b.Neg(x2);
      if (negated & 2) x1 = b.Neg(x1);
      b.Out(b.Add(b.Mul(x, b.Constant(cos)), b.Mul(Join(b, {x2, x1}), b.Constant(sin))));
    });
  }
  // Less x cos.
  ExpectNone([&](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    b.Out(b.Sub(b.Mul(RotateHalf(b, x), b.Constant(sin)), b.Mul(x, b.Constant(cos))));
  });
  // A half backwards.
  ExpectNone([&](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    Value* back = b.Make("slice", {x},
                         {{"starts", Ints{0, 0, 0, kD - 1}},
                          {"limits", Ints{kB, kH, kS, kHalf - 1}},
                          {"steps", Ints{1, 1, 1, -1}}});
    Value* turned = Join(b, {b.Neg(back), Part(b, x, 0, kHalf)});
    b.Out(b.Add(b.Mul(x, b.Constant(cos)), b.Mul(turned, b.Constant(sin))));
  });
  // Pieces of unequal sizes.
  ExpectNone([&](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    Value* turned = Join(b, {b.Neg(Part(b, x, 3, kD)), Part(b, x, 0, 3)});
    b.Out(b.Add(b.Mul(x, b.Constant(cos)), b.Mul(turned, b.Constant(sin))));
  });
  // Halves of two tensors.
  ExpectNone([&](TestGraph& b) {
    Value *x = b.In("x", kHeads), *z = b.In("z", kHeads);
    b.Out(b.Add(b.Mul(x, b.Constant(cos)), b.Mul(RotateHalf(b, z), b.Constant(sin))));
  });
  // One table for the first half, another for the second.
  ExpectNone([&](TestGraph& b) {
    Value *x = b.In("x", kHeads), *a = b.In("a", {kS, kHalf}), *c = b.In("c", {kS, kHalf});
    b.Out(b.Add(b.Mul(x, b.Op1("cos", Join(b, {a, c}))),
                b.Mul(RotateHalf(b, x), b.Op1("sin", Join(b, {a, c})))));
  });
  // Heads turned against each other: the first dim of the row is no pair's.
  ExpectNone([&](TestGraph& b) {
    Value* x = b.In("x", {kB, kS, 2, kD});
    Value *first = b.Slice(x, {0, 0, 0, 0}, {kB, kS, 1, kD}),
          *second = b.Slice(x, {0, 0, 1, 0}, {kB, kS, 2, kD});
    Value *a = b.In("a", {kD}), *c = b.In("c", {kD});
    b.Out(Join(b,
               {b.Sub(b.Mul(first, a), b.Mul(second, c)), b.Add(b.Mul(second, c), b.Mul(first, a))},
               2));
  });
  // An odd number of elements.
  ExpectNone([&](TestGraph& b) {
    Value *x = b.In("x", {kB, 7}), *t = b.In("t", {7});
    Value* turned = Join(b, {b.Neg(Part(b, x, 4, 7)), Part(b, x, 0, 4)});
    b.Out(b.Add(b.Mul(x, t), b.Mul(turned, t)));
  });
}

// x is what is computed from weights, where tables are as large.
TEST(Rotary, OfTwoTensorsAlikeTheWeightsAreTurned) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Matmul(b.In("h", {kS, 5}), b.P("w", {5, kD}));
    Value* angles = b.In("angles", {kS, kHalf});
    Value* both = Join(b, {angles, angles});
    Value *cos = b.Op1("cos", both), *sin = b.Op1("sin", both);
    b.Out(b.Add(b.Mul(cos, x), b.Mul(sin, RotateHalf(b, x))));
  });
  ASSERT_NE(Find(g, "rotary"), nullptr);
  EXPECT_EQ(Find(g, "rotary")->operands[0]->producer->name(), "matmul");
}

// Each sum of a residual stream is one of many terms, of which the first is at the model's start.
TEST(Rotary, ALongSumIsNone) {
  ExpectNone([](TestGraph& b) {
    Value* x = b.In("x", kHeads);
    Value* sum = x;
    for (int i = 0; i < 60'000; ++i) sum = b.Add(sum, x);
    b.Out(sum);
  });
}

}  // namespace
}  // namespace shardc::recover_testing
