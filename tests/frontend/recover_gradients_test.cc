// What is recovered has the gradients of what it was recovered from.
#include "passes/differentiate.h"
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

constexpr int64_t kB = 2, kHeads = 2, kS = 4, kT = 5, kD = 3;

// The gradients of sum(y * cotangent) with respect to the inputs q, k and v, as outputs.
void AddInputGradients(TestGraph& b) {
  Value* y = b.g.FindOutput("y");
  Value* loss = b.ReduceSum(b.Mul(y, b.In("cotangent", y->type.shape)), {0, 1, 2, 3});
  const std::vector<Value*> inputs = {b.g.FindInput("q"), b.g.FindInput("k"), b.g.FindInput("v")};
  const std::vector<Value*> gradients = Differentiate(b.g, loss, inputs);
  for (size_t i = 0; i < gradients.size(); ++i) b.Out(gradients[i], StrCat("d", i));
}

Graph RecoverAndDifferentiate(const std::function<void(TestGraph&)>& build) {
  TestGraph plain, recovered;
  build(plain);
  build(recovered);
  RecoverPatterns(recovered.g);
  AddInputGradients(plain);
  AddInputGradients(recovered);
  ExpectNear(Evaluate(plain.g, plain.inputs), Evaluate(recovered.g, plain.inputs), 1e-10);
  return std::move(recovered.g);
}

// In row 1 no key is seen.
HostTensor Sees(const Shape& shape) {
  HostTensor t(DType::kBool, shape);
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    const int64_t row = i / kT % kS;
    t.SetDouble(i, row != 1 && i % kT <= row + 1);
  }
  return t;
}

enum class Masked { kAdded, kReplaced };

void Attention(TestGraph& b, Masked masked, bool computed, double fill) {
  Value* q = b.In("q", {kB, kHeads, kS, kD});
  Value* k = b.In("k", {kB, kHeads, kT, kD});
  Value* v = b.In("v", {kB, kHeads, kT, kD});
  Value* scores = b.Mul(b.Make("matmul_nt", {q, k}), b.C(0.7));
  HostTensor sees = Sees(computed ? Shape{kB, 1, kS, kT} : Shape{kS, kT});
  Value* keep = computed ? b.In("keep", std::move(sees)) : b.Constant(std::move(sees));
  if (masked == Masked::kAdded) {
    scores = b.Add(scores, b.Where(keep, b.C(0), b.C(fill)));
  } else {
    scores = b.Where(keep, scores, b.C(fill));
  }
  b.Out(b.Matmul(b.Softmax(scores), v));
}

// Such rows are uniform over their keys: numbers this low absorb the scores, and the logarithm of
// the number of keys with them.
TEST(Gradients, OfQueriesThatSeeNoKey) {
  for (Masked masked : {Masked::kAdded, Masked::kReplaced}) {
    for (bool computed : {false, true}) {
      for (double fill : {-3.4028234663852886e38, -1e30, -1e9, -1e5}) {
        // Among scores to which so little is added the largest are still largest.
        if (masked == Masked::kAdded && fill > -1e30) continue;
        SCOPED_TRACE(
            StrCat(masked == Masked::kAdded ? "added " : "replaced ", computed, " ", fill));
        Graph g =
            RecoverAndDifferentiate([&](TestGraph& b) { Attention(b, masked, computed, fill); });
        EXPECT_TRUE(Find(g, "attention_grad"));
      }
    }
  }
}

// The ratio of a policy to itself, one of the two detached, as TorchScript writes it; and the same
// number of no parameter, or of two values.
TEST(Gradients, OfAValueLessItselfIsNoted) {
  auto notes = [](const auto& of) {
    TestGraph b;
    Value* x = b.In("x", {3, 4});
    b.Out(b.Op1("exp", of(b, x, b.Matmul(x, b.P("w", {4, 4})))));
    RecoverPatterns(b.g);
    return b.g.notes;
  };
  for (const char* name : {"sub", "div"}) {
    const auto noted = notes([&](TestGraph& b, Value*, Value* y) { return b.Make(name, {y, y}); });
    ASSERT_EQ(noted.size(), 1);
    EXPECT_EQ(noted[0].find("x - x, or x / x, in 1 place: no gradient"), 0) << noted[0];
    EXPECT_NE(noted[0].find("optimize=False"), std::string::npos) << noted[0];
  }
  EXPECT_TRUE(notes([](TestGraph& b, Value* x, Value*) { return b.Sub(x, x); }).empty());
  EXPECT_TRUE(notes([](TestGraph& b, Value* x, Value* y) { return b.Sub(y, x); }).empty());
}

// x + (y - x) means y, and the gradient of x, where y is rounded or chosen; ONNX has no detach.
TEST(Gradients, OfStraightThroughEstimators) {
  auto rounded = [](TestGraph& b, Value* x) { return b.Mul(b.Op1("round", x), b.C(0.5)); };
  auto chosen = [](TestGraph& b, Value* x) {
    Value* most = b.Make("equal", {x, b.ReduceMax(x, {1}, true)});
    return b.Cast(most, DType::kF64);
  };
  auto smooth = [](TestGraph& b, Value* x) { return b.Op1("tanh", x); };
  // What an expert gives of x where x chose it.
  auto routed = [&](TestGraph& b, Value* x) {
    return b.Mul(chosen(b, x), b.Matmul(x, b.In("w", {4, 4})));
  };
  auto gradient = [](const auto& y_of, bool first) {
    TestGraph b;
    Value* x = b.In("x", {3, 4});
    Value* difference = b.Sub(y_of(b, x), x);
    b.Out(b.Mul(first ? b.Add(x, difference) : b.Add(difference, x), b.In("dy", {3, 4})));
    RecoverPatterns(b.g);
    Value* loss = b.ReduceSum(b.g.FindOutput("y"), {0, 1});
    b.Out(Differentiate(b.g, loss, std::vector{b.g.FindInput("x")})[0], "dx");
    return std::tuple(Evaluate(b.g, b.inputs).at("dx"), b.inputs.at("dy"), b.g.notes.size());
  };
  for (bool first : {true, false}) {
    for (const auto& [dx, dy, notes] : {gradient(rounded, first), gradient(chosen, first)}) {
      EXPECT_EQ(notes, 1);
      for (int64_t i = 0; i < dx.num_elements(); ++i) EXPECT_EQ(dx.AsDouble(i), dy.AsDouble(i));
    }
    EXPECT_EQ(std::get<2>(gradient(routed, first)), 0);
    // A step of a differential equation, of length one.
    const auto [dx, dy, notes] = gradient(smooth, first);
    EXPECT_EQ(notes, 0);
    EXPECT_LT(std::fabs(dx.AsDouble(0)), std::fabs(dy.AsDouble(0)));
  }
}

}  // namespace
}  // namespace shardc::recover_testing
