// Attentions of a head each, side by side.
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kB = 2, kS = 3, kH = 8, kD = 4;

enum class Bias { kNone, kAfter, kBefore, kTwo };

struct Form {
  int modules = 3;
  int64_t heads = 1;  // of each
  Bias bias = Bias::kNone;
  bool transposed = false;  // weights [out, in]
  bool shared = false;      // one k and v
  bool rotary = false;      // before heads have a dim
  bool windows = false;     // each attends to all sequences, as one
  int mask = 0;             // 1: one for all, 2: one for each, 3: one for each of [heads, s, s]
  int another = -1;         // the module that is not as the others: by its scale
  bool read_apart = false;  // one is an output, too
};

using Projections = std::map<std::string, Value*>;

Value* Project(TestGraph& b, const Form& f, Value* x, const std::string& name, int64_t width) {
  Value* y = f.transposed ? b.Make("matmul_nt", {x, b.P(name, {width, kH})})
                          : b.Matmul(x, b.P(name, {kH, width}));
  if (f.bias == Bias::kNone) return y;
  Value* bias = b.P(name + ".bias", {width});
  if (f.bias == Bias::kTwo) y = b.Op1("tanh", b.Add(y, b.P(name + ".first", {width})));
  return f.bias == Bias::kBefore ? b.Add(bias, y) : b.Add(y, bias);
}

Value* Rotated(TestGraph& b, const Form& f, Value* x) {
  if (!f.rotary) return x;
  auto table = [&](const char* name) { return b.Constant(Random(name, {kS, kD / 2})); };
  return b.Make("rotary", {x, table("cos"), table("sin")});
}

Value* Mask(TestGraph& b, const Form& f, int module) {
  const std::string name = f.mask == 1 ? "mask" : StrCat("mask", module);
  return b.Constant(Random(name, f.mask == 3 ? Shape{f.heads, kS, kS} : Shape{kS, kS}));
}

// [b, s, heads * d] of one module.
Value* Module(TestGraph& b, const Form& f, Value* x, int module, Projections& made) {
  const int64_t width = f.heads * kD;
  auto heads = [&](const std::string& what) {
    const std::string name = f.shared && what != "q" ? what : StrCat(what, module);
    Value*& y = made[name];
    if (!y) y = Project(b, f, x, name, width);
    Value* turned = what == "v" ? y : Rotated(b, f, y);
    if (f.windows) return b.Reshape(turned, {1, 1, kB * kS, kD});
    if (f.heads == 1) return b.Reshape(turned, {kB, 1, kS, kD});
    return b.Transpose(b.Reshape(turned, {kB, kS, f.heads, kD}), {0, 2, 1, 3});
  };
  Value *q = heads("q"), *k = heads("k"), *v = heads("v");
  Value* scores = b.Mul(b.Make("matmul_nt", {q, k}), b.C(module == f.another ? 0.25 : 0.5));
  if (f.mask > 0) scores = b.Add(scores, Mask(b, f, module));
  Value* y = b.Matmul(b.Softmax(scores), v);
  if (f.heads > 1) y = b.Transpose(y, {0, 2, 1, 3});
  y = b.Reshape(y, {kB, kS, width});
  if (f.read_apart && module == 1) b.Out(y, "apart");
  return y;
}

Graph SideBySide(const Form& f) {
  return Recover([&](TestGraph& b) {
    Value* x = b.In("x", {kB, kS, kH});
    std::vector<Value*> all;
    Projections made;
    for (int module = 0; module < f.modules; ++module) all.push_back(Module(b, f, x, module, made));
    Value* y = b.Make("concat", all, {{"axis", int64_t{2}}});
    b.Out(b.Matmul(y, b.P("out", {y->type.shape.back(), kH})));
  });
}

TEST(SeparateHeads, AreOneAttentionOfOneProductEach) {
  EXPECT_THAT(Ops(SideBySide({})),
              ElementsAre("concat", "matmul", "reshape", "concat", "matmul", "reshape", "concat",
                          "matmul", "reshape", "attention", "reshape", "matmul"));
  Graph g = SideBySide({.heads = 2});
  const Op* attention = Find(g, "attention");
  EXPECT_EQ(attention->in(0).shape, (Shape{kB, kS, 6, kD}));
  EXPECT_EQ(attention->attrs.String("layout"), "bshd");
  EXPECT_EQ(attention->attrs.Float("scale"), 0.5);
}

TEST(SeparateHeads, ProductsInTheirOtherForms) {
  for (const Form& f : {Form{.transposed = true}, {.heads = 2, .transposed = true}}) {
    const auto counts = Counts(SideBySide(f));
    EXPECT_EQ(counts.at("matmul_nt"), 3);
    EXPECT_EQ(counts.at("attention"), 1);
  }
  for (const Bias bias : {Bias::kBefore, Bias::kAfter}) {
    const auto counts = Counts(SideBySide({.bias = bias}));
    EXPECT_EQ(counts.at("add"), 3);
    EXPECT_EQ(counts.at("concat"), 6);
    EXPECT_EQ(counts.at("attention"), 1);
  }
}

TEST(SeparateHeads, KeepTheirRoles) {
  EXPECT_EQ(RolesOf(SideBySide({.modules = 2, .bias = Bias::kAfter})),
            (std::map<std::string, std::string>{{"q0", "QKV"},
                                                {"q0.bias", "QKV"},
                                                {"k0", "QKV"},
                                                {"k0.bias", "QKV"},
                                                {"v0", "QKV"},
                                                {"v0.bias", "QKV"},
                                                {"q1", "QKV"},
                                                {"q1.bias", "QKV"},
                                                {"k1", "QKV"},
                                                {"k1.bias", "QKV"},
                                                {"v1", "QKV"},
                                                {"v1.bias", "QKV"},
                                                {"out", "ATTENTION_OUT"}}));
}

TEST(SeparateHeads, ShareOneOfKeysAndValues) {
  Graph g = SideBySide({.shared = true});
  EXPECT_EQ(Find(g, "attention")->in(0).shape[2], 3);
  EXPECT_EQ(Find(g, "attention")->in(1).shape[2], 1);
}

TEST(SeparateHeads, AreTurnedTogether) {
  Graph g = SideBySide({.rotary = true});
  EXPECT_EQ(Counts(g).at("rotary"), 2);
  EXPECT_EQ(Find(g, "rotary")->in(1).shape, (Shape{kS, 1, kD / 2}));
  EXPECT_EQ(Counts(g).at("attention"), 1);
}

TEST(SeparateHeads, AreTurnedWhereTheirPositionsAre) {
  Graph g = SideBySide({.rotary = true, .windows = true});
  EXPECT_EQ(Counts(g).at("attention"), 1);
  EXPECT_EQ(Counts(g).at("rotary"), 6);
  EXPECT_EQ(Find(g, "rotary")->in(0).shape, (Shape{kB, kS, kD}));
}

TEST(SeparateHeads, WithAMaskForAllOrOneForEach) {
  for (int mask : {1, 2, 3}) {
    for (int64_t heads : {1, 2}) {
      Graph g = SideBySide({.heads = heads, .mask = mask});
      // One mask for both heads of a module is none for all: those are left as they are.
      const bool joined = mask != 2 || heads == 1;
      EXPECT_EQ(Counts(g).at("attention"), joined ? 1 : 3) << mask << " " << heads;
    }
  }
}

// The second is added to what is no product.
TEST(SeparateHeads, WithSumsOfOtherThings) {
  const auto counts = Counts(SideBySide({.bias = Bias::kTwo}));
  EXPECT_EQ(counts.at("attention"), 1);
  EXPECT_EQ(counts.at("matmul"), 10);
}

// A number of each token is added to a vector: that is no bias.
TEST(SeparateHeads, WithSumsThatBroadcast) {
  Graph g = Recover([](TestGraph& b) {
    std::vector<Value*> all;
    for (int module = 0; module < 3; ++module) {
      auto head = [&](const char* what) {
        const std::string name = StrCat(what, module);
        Value* of_token = b.Matmul(b.In(name + ".x", {kB, kS, kH}), b.P(name, {kH, 1}));
        return b.Reshape(b.Add(of_token, b.P(name + ".bias", {kD})), {kB, 1, kS, kD});
      };
      Value* scores = b.Mul(b.Make("matmul_nt", {head("q"), head("k")}), b.C(0.5));
      all.push_back(b.Reshape(b.Matmul(b.Softmax(scores), head("v")), {kB, kS, kD}));
    }
    b.Out(b.Make("concat", all, {{"axis", int64_t{2}}}));
  });
  EXPECT_EQ(Counts(g).at("attention"), 1);
}

TEST(SeparateHeads, OtherwiseStayApart) {
  EXPECT_EQ(Counts(SideBySide({.another = 1})).at("attention"), 3);
  EXPECT_EQ(Counts(SideBySide({.read_apart = true})).at("attention"), 3);
}

}  // namespace
}  // namespace shardc::recover_testing
