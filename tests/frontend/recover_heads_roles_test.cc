// Roles of the matrices that heads are multiplied with, each with its own.
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using Roles = std::map<std::string, std::string>;

// Latent attention with the keys' and values' projection absorbed, as DeepSeek's inference has it:
// one weight with both for each head, also as a tensor with a dim for heads.
TEST(Roles, OfAbsorbedProjections) {
  for (const bool apart : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {2, 3, 8});
      Value* latent = b.Matmul(x, b.P("kv_a", {8, 6}));
      Value* each = apart ? b.P("kv_b", {2, 9, 6}) : b.Reshape(b.P("kv_b", {18, 6}), {2, 9, 6});
      Value* q = b.Reshape(b.Matmul(x, b.P("q", {8, 8})), {2, 3, 2, 4});
      q = b.Reshape(b.Transpose(q, {2, 0, 1, 3}), {2, 6, 4});
      q = b.Matmul(q, b.Slice(each, {0, 0, 0}, {2, 4, 6}));
      q = b.Reshape(b.Transpose(q, {1, 0, 2}), {2, 6, 6});
      Value* scores = b.Reshape(b.Make("matmul_nt", {q, latent}, {}), {2, 3, 2, 3});
      Value* o = b.Matmul(b.Reshape(b.Softmax(scores), {2, 6, 3}), latent);
      o = b.Reshape(b.Transpose(b.Reshape(o, {2, 3, 2, 6}), {2, 0, 1, 3}), {2, 6, 6});
      o = b.Make("matmul_nt", {o, b.Slice(each, {0, 4, 0}, {2, 9, 6})}, {});
      o = b.Reshape(b.Transpose(o, {1, 0, 2}), {2, 3, 10});
      b.Out(b.Add(x, b.Matmul(o, b.P("out", {10, 8}))));
    });
    const Roles expected = {{"q", "QKV"},
                            {"kv_a", "QKV"},
                            {"kv_b", apart ? "QKV [1,2] [0]" : "QKV [1] [0]"},
                            {"out", "ATTENTION_OUT"}};
    EXPECT_EQ(RolesOf(g), expected);
  }
}

// Experts that look alike are not heads: all of them read the same rows.
TEST(Roles, OfExpertsBehindAnAttentionAreNoHeads) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    auto heads = [&](const std::string& name) {
      return b.Transpose(b.Reshape(b.Matmul(x, b.P(name, {8, 8})), {2, 3, 2, 4}), {0, 2, 1, 3});
    };
    Value *q = heads("q"), *k = heads("k"), *v = heads("v");
    Value* o = b.Matmul(b.Softmax(b.Make("matmul_nt", {q, k}, {})), v);
    o = b.Reshape(b.Transpose(o, {0, 2, 1, 3}), {1, 6, 8});
    Value* h = b.Op1("tanh", b.Matmul(b.BroadcastTo(o, {3, 6, 8}), b.P("up", {3, 8, 5})));
    b.Out(b.ReduceSum(b.Matmul(h, b.P("down", {3, 5, 8})), {0}, false));
  });
  const Roles expected = {
      {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"up", "MLP_UP"}, {"down", "MLP_DOWN"}};
  EXPECT_EQ(RolesOf(g), expected);
}

}  // namespace
}  // namespace shardc::recover_testing
