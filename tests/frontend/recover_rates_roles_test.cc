// Roles of what rates are made of, by which heads decay and inputs are mixed.
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

// Two positions of linear attention with two heads, with a decay that is made of x through two
// matrices of low rank: the heads' decays are cut, and what they are made of is whole. What mixes
// the inputs, of low rank too, is no MLP; what is as wide as the width is one.
TEST(Roles, OfRatesOfLowRank) {
  for (const int64_t rank : {2, 8}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {2, 2, 8});
      auto low = [&](const std::string& name, int64_t inner) {
        Value* y = b.Op1("tanh", b.Matmul(x, b.P(name + ".A", {8, inner})));
        return b.Matmul(y, b.P(name + ".B", {inner, 8}));
      };
      auto heads = [&](Value* v, int64_t position) {
        return b.Reshape(b.Slice(v, {0, position, 0}, {2, position + 1, 8}), {2, 2, 4});
      };
      Value* mixed =
          b.Add(x, b.Mul(b.In("shift", {2, 2, 8}), b.Add(b.P("mix", {8}), low("mix", rank))));
      Value *q = b.Matmul(mixed, b.P("q", {8, 8})), *k = b.Matmul(x, b.P("k", {8, 8}));
      Value* v = b.Matmul(x, b.P("v", {8, 8}));
      Value* decay = b.Op1("exp", b.Add(b.P("decay", {1, 1, 8}), low("decay", 2)));
      Value *state = nullptr, *all = nullptr;
      for (int64_t i = 0; i < 2; ++i) {
        Value* kv =
            b.Matmul(b.Reshape(heads(k, i), {2, 2, 4, 1}), b.Reshape(heads(v, i), {2, 2, 1, 4}));
        state = state ? b.Add(b.Mul(state, b.Reshape(heads(decay, i), {2, 2, 4, 1})), kv) : kv;
        Value* y = b.Reshape(b.Matmul(b.Reshape(heads(q, i), {2, 2, 1, 4}), state), {2, 1, 8});
        all = all ? b.Make("concat", {all, y}, {{"axis", int64_t{1}}}) : y;
      }
      b.Out(b.Add(x, b.Matmul(all, b.P("out", {8, 8}))));
    });
    std::map<std::string, std::string> expected = {
        {"q", "QKV"},      {"k", "QKV"},        {"v", "QKV"},       {"out", "ATTENTION_OUT"},
        {"decay", "QKV"},  {"decay.A", "none"}, {"decay.B", "QKV"}, {"mix", "none"},
        {"mix.A", "none"}, {"mix.B", "none"}};
    if (rank == 8) {
      expected["mix.A"] = "MLP_UP";
      expected["mix.B"] = expected["mix"] = "MLP_DOWN";
    }
    EXPECT_EQ(RolesOf(g), expected) << rank;
  }
}

}  // namespace
}  // namespace shardc::recover_testing
