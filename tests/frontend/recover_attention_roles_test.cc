// Roles of the weights around an attention.
#include "tests/frontend/recover_testing.h"
#include "tests/ir/cpu_time.h"

namespace shardc::recover_testing {
namespace {

// Two heads of a product of x[2, 3, 8] with the weight of this name: [2, 2, 3, 4].
Value* HeadsOf(TestGraph& b, Value* x, const std::string& name) {
  Value* y = b.Reshape(b.Matmul(x, b.P(name, {8, 8})), {2, 3, 2, 4});
  return b.Transpose(y, {0, 2, 1, 3});
}

// Heads in dims of their own, before or behind the width, with q, k and v apart or in one weight.
TEST(Roles, OfWeightsWithADimForHeads) {
  auto attend = [](TestGraph& b, Value* q, Value* k, Value* v) {  // [2, 5, 3, 4]
    auto heads_first = [&](Value* x) { return b.Transpose(x, {0, 2, 1, 3}); };
    Value* scores = b.Matmul(heads_first(q), b.Transpose(k, {0, 2, 3, 1}));
    Value* y = b.Matmul(b.Softmax(b.Mul(scores, b.C(0.5))), heads_first(v));
    return b.Reshape(heads_first(y), {2, 5, 12});
  };
  Graph apart = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 5, 6});
    auto heads = [&](const std::string& name, bool first) {
      Value* w = first ? b.Transpose(b.P(name, {3, 6, 4}), {1, 0, 2}) : b.P(name, {6, 3, 4});
      Value* y = b.Reshape(b.Matmul(x, b.Reshape(w, {6, 12})), {2, 5, 3, 4});
      return b.Add(y, b.P(name + ".bias", {3, 4}));
    };
    Value* y = attend(b, heads("q", true), heads("k", false), heads("v", false));
    b.Out(b.Matmul(y, b.Reshape(b.P("o", {3, 4, 6}), {12, 6})));
  });
  EXPECT_EQ(RolesOf(apart), (std::map<std::string, std::string>{{"q", "QKV [1] [0,2]"},
                                                                {"q.bias", "QKV [0,1]"},
                                                                {"k", "QKV [0] [1,2]"},
                                                                {"k.bias", "QKV [0,1]"},
                                                                {"v", "QKV [0] [1,2]"},
                                                                {"v.bias", "QKV [0,1]"},
                                                                {"o", "ATTENTION_OUT [0,1] [2]"}}));
  Graph one = Recover([&](TestGraph& b) {
    Value* w = b.Reshape(b.P("qkv", {6, 3, 3, 4}), {6, 36});
    Value* y = b.Reshape(b.Matmul(b.In("x", {2, 5, 6}), w), {2, 5, 3, 3, 4});
    auto part = [&](int64_t i) {
      return b.Reshape(b.Slice(y, {0, 0, i, 0, 0}, {2, 5, i + 1, 3, 4}), {2, 5, 3, 4});
    };
    b.Out(b.Matmul(attend(b, part(0), part(1), part(2)), b.P("o", {12, 6})));
  });
  EXPECT_EQ(RolesOf(one), (std::map<std::string, std::string>{{"qkv", "QKV [0] [1,2,3]"},
                                                              {"o", "ATTENTION_OUT"}}));
}

// Weights that are the transposes of heads' matrices.
TEST(Roles, OfTransposedMatricesOfHeads) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {1, 5, 4});
    auto heads = [&](const char* name) {
      return b.Matmul(x, b.Transpose(b.P(name, {2, 6, 4}), {0, 2, 1}));
    };
    Value* scores = b.Matmul(heads("q"), b.Transpose(heads("k"), {0, 2, 1}));
    Value* y = b.Matmul(b.Softmax(scores), heads("v"));
    Value* o = b.Transpose(b.P("o", {2, 4, 6}), {0, 2, 1});
    b.Out(b.ReduceSum(b.Matmul(y, o), {0}, true));
  });
  EXPECT_EQ(RolesOf(g), (std::map<std::string, std::string>{{"q", "QKV [2] [0,1]"},
                                                            {"k", "QKV [2] [0,1]"},
                                                            {"v", "QKV [2] [0,1]"},
                                                            {"o", "ATTENTION_OUT [0,2] [1]"}}));
}

// Attention of two heads; `low_rank`: each projection is a sum of two linears, as with LoRA.
// `gate`: its result is multiplied with a gate, one for each element or one for each head.
Graph AttentionOf(bool low_rank, int64_t gate, bool mask_after = false) {
  return Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    auto linear = [&](const std::string& name, Value* in, int64_t out) {
      const int64_t width = in->type.shape.back();
      Value* y = b.Matmul(in, b.P(name, {width, out}));
      if (!low_rank) return y;
      Value* low = b.Matmul(b.Matmul(in, b.P(name + ".A", {width, 2})), b.P(name + ".B", {2, out}));
      return b.Add(y, b.Mul(low, b.C(0.5)));
    };
    auto heads = [&](const std::string& name) {
      return b.Transpose(b.Reshape(linear(name, x, 8), {2, 3, 2, 4}), {0, 2, 1, 3});
    };
    Value *q = heads("q"), *k = heads("k"), *v = heads("v");
    Value* p = b.Make("softmax", {b.Make("matmul_nt", {q, k})}, {{"axis", int64_t{-1}}});
    if (mask_after) {
      p = b.Mul(p, b.Constant(HostTensor::Of<double>({3, 3}, {1, 0, 0, 1, 1, 0, 1, 1, 1})));
      p = b.Make("div", {p, b.ReduceSum(p, {3}, true)});
    }
    Value* y = b.Transpose(b.Matmul(p, v), {0, 2, 1, 3});
    if (gate > 0) {
      Value* g = b.Add(b.Matmul(x, b.P("gate", {8, gate})), b.P("gate.bias", {gate}));
      y = b.Mul(y, b.Reshape(b.Op1("sigmoid", g), {2, 3, gate > 1 ? 2 : 1, (gate + 1) / 2}));
    }
    b.Out(b.Add(x, linear("out", b.Reshape(y, {2, 3, 8}), 8)));
  });
}

// As jax2onnx writes it; `mask_after` of AttentionOf.
TEST(Roles, OfAttentionThatIsMaskedAfterTheSoftmax) {
  const std::map<std::string, std::string> expected = {
      {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(AttentionOf(false, 0, true)), expected);
}

// Scores of sigmoids, and under a decay; and linear attention, in which k meets v first; its
// features by heads or of the whole width (as MiniMax's), or v with ones beside it (as Sana's).
TEST(Roles, OfAttentionWithoutASoftmax) {
  for (const char* form : {"sigmoid", "decay", "linear", "linear, wide", "linear, ones"}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {2, 3, 8});
      auto heads = [&](const std::string& name) {
        Value* y = b.Matmul(x, b.P(name, {8, 8}));
        if (form == std::string("linear, wide")) y = b.Op1("silu", y);
        y = b.Transpose(b.Reshape(y, {2, 3, 2, 4}), {0, 2, 1, 3});
        return form == std::string("linear") ? b.Op1("relu", y) : y;
      };
      Value *q = heads("q"), *k = heads("k"), *v = heads("v"), *y = nullptr;
      if (form == std::string("linear, ones")) {
        v = b.Make("pad", {v}, {{"low", Ints(4, 0)}, {"high", Ints{0, 0, 0, 1}}, {"value", 1.0}});
      }
      if (std::string(form).starts_with("linear")) {
        y = b.Matmul(q, b.Matmul(b.Transpose(k, {0, 1, 3, 2}), v));
      }
      if (form == std::string("linear, ones")) {
        y = b.Div(b.Slice(y, {0, 0, 0, 0}, {2, 2, 3, 4}), b.Slice(y, {0, 0, 0, 4}, {2, 2, 3, 5}));
      }
      if (!std::string(form).starts_with("linear")) {
        Value* scores = b.Make("matmul_nt", {q, k});
        y = b.Matmul(form == std::string("decay") ? b.Mul(scores, b.In("decay", {2, 3, 3}))
                                                  : b.Op1("sigmoid", scores),
                     v);
      }
      y = b.Reshape(b.Transpose(y, {0, 2, 1, 3}), {2, 3, 8});
      b.Out(b.Add(x, b.Matmul(y, b.P("out", {8, 8}))));
    });
    const std::map<std::string, std::string> expected = {
        {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"out", "ATTENTION_OUT"}};
    EXPECT_EQ(RolesOf(g), expected) << form;
  }
}

// Streams of each token that a matrix mixes in each layer (hyper-connections), and of which a layer
// reads a sum: no positions meet in these products.
TEST(Roles, OfStreamsOfATokenIsNone) {
  Graph g = Recover([&](TestGraph& b) {
    Value* h = b.In("h", {2, 3, 4, 8});
    for (const std::string layer : {"0.", "1.", "2."}) {
      Value* all = b.Reshape(h, {2, 3, 32});
      Value* read = b.Op1("sigmoid", b.Matmul(all, b.P(layer + "read", {32, 4})));
      Value* x = b.Reshape(b.Matmul(b.Reshape(read, {2, 3, 1, 4}), h), {2, 3, 8});
      Value* y = b.Matmul(b.Op1("relu", b.Matmul(x, b.P(layer + "up", {8, 16}))),
                          b.P(layer + "down", {16, 8}));
      Value* mix = b.Op1("exp", b.Matmul(all, b.P(layer + "mix", {32, 16})));
      Value* write = b.Op1("sigmoid", b.Matmul(all, b.P(layer + "write", {32, 4})));
      h = b.Add(b.Matmul(b.Reshape(mix, {2, 3, 4, 4}), h),
                b.Mul(b.Reshape(write, {2, 3, 4, 1}), b.Reshape(y, {2, 3, 1, 8})));
    }
    b.Out(h);
  });
  std::map<std::string, std::string> expected;
  for (const std::string layer : {"0.", "1.", "2."}) {
    for (const char* name : {"read", "mix", "write"}) expected[layer + name] = "none";
    expected[layer + "up"] = "MLP_UP";
    expected[layer + "down"] = "MLP_DOWN";
  }
  EXPECT_EQ(RolesOf(g), expected);
}

// A state space in the form of its scores, as Mamba-2's: x and a gate by heads, B and C for all of
// them, and a rate for each head. Without a sum over positions it is none.
TEST(Roles, OfAStateSpace) {
  for (const bool mixes : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {2, 3, 8});
      auto scores = [&] {
        Value* s =
            b.Make("matmul_nt", {b.Matmul(x, b.P("c", {8, 5})), b.Matmul(x, b.P("b", {8, 5}))});
        return b.Reshape(s, {2, 1, 3, 3});
      };
      Value* rates = b.Make("cumsum", {b.Mul(b.Matmul(x, b.P("dt", {8, 2})), b.P("a", {2}))},
                            {{"axis", 1}, {"exclusive", false}, {"reverse", false}});
      rates = b.Reshape(b.Transpose(b.Op1("exp", rates), {0, 2, 1}), {2, 2, 1, 3});
      Value* y = b.Reshape(b.Matmul(x, b.P("in", {8, 16})), {2, 3, 2, 8});
      y = b.Transpose(y, {0, 2, 1, 3});
      if (mixes) y = b.Matmul(b.Mul(scores(), rates), y);
      y = b.Reshape(b.Transpose(y, {0, 2, 1, 3}), {2, 3, 16});
      y = b.Mul(y, b.Op1("silu", b.Matmul(x, b.P("gate", {8, 16}))));
      b.Out(b.Add(x, b.Matmul(y, b.P("out", {16, 8}))));
    });
    const std::map<std::string, std::string> mixer = {
        {"in", "QKV"}, {"dt", "QKV"}, {"gate", "QKV"},         {"a", "none"},
        {"b", "none"}, {"c", "none"}, {"out", "ATTENTION_OUT"}};
    const std::map<std::string, std::string> mlp = {
        {"in", "MLP_UP"}, {"gate", "MLP_GATE"}, {"out", "MLP_DOWN"}};
    EXPECT_EQ(RolesOf(g), mixes ? mixer : mlp) << mixes;
  }
}

// weight @ x^T, as a state space with channels before positions has it, has a role, too.
TEST(Roles, OfAWeightOnTheLeft) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    Value* y = b.Transpose(b.Matmul(x, b.P("in", {8, 16})), {0, 2, 1});
    Value* rates = b.Matmul(b.P("dt", {16, 8}), b.Transpose(x, {0, 2, 1}));
    y = b.Make("cumsum", {b.Mul(y, b.Op1("exp", rates))},
               {{"axis", int64_t{2}}, {"exclusive", false}, {"reverse", false}});
    b.Out(b.Add(x, b.Matmul(b.Transpose(y, {0, 2, 1}), b.P("out", {16, 8}))));
  });
  const std::map<std::string, std::string> expected = {
      {"in", "QKV"}, {"dt", "QKV [1] [0]"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(g), expected);
}

// Keys and values of fewer positions (Linformer), before or behind the split into heads.
TEST(Roles, OfPositionsThatAreProjected) {
  for (const bool split : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {2, 6, 8});
      auto fewer = [&](const std::string& name) {  // [2, 2, 3, 4]
        Value* y = b.Matmul(x, b.P(name, {8, 8}));
        if (split) y = b.Reshape(y, {2, 6, 2, 4});
        y = b.Matmul(b.Transpose(y, split ? Ints{0, 2, 3, 1} : Ints{0, 2, 1}),
                     b.P(name + ".positions", {6, 3}));
        if (split) return b.Transpose(y, {0, 1, 3, 2});
        return b.Transpose(b.Reshape(b.Transpose(y, {0, 2, 1}), {2, 3, 2, 4}), {0, 2, 1, 3});
      };
      Value* q = b.Reshape(b.Matmul(x, b.P("q", {8, 8})), {2, 6, 2, 4});
      q = b.Transpose(q, {0, 2, 1, 3});
      Value* y = b.Softmax(b.Mul(b.Make("matmul_nt", {q, fewer("k")}), b.C(0.5)));
      y = b.Reshape(b.Transpose(b.Matmul(y, fewer("v")), {0, 2, 1, 3}), {2, 6, 8});
      b.Out(b.Matmul(y, b.P("o", {8, 8})));
    });
    const std::map<std::string, std::string> expected = {{"q", "QKV"},
                                                         {"k", "QKV"},
                                                         {"v", "QKV"},
                                                         {"k.positions", "none"},
                                                         {"v.positions", "none"},
                                                         {"o", "ATTENTION_OUT"}};
    EXPECT_EQ(RolesOf(g), expected) << split;
  }
}

// Gates that a product for each head makes, as RecurrentGemma's: its weights are of no matrix.
TEST(Roles, OfGatesByHead) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    Value* y = b.Matmul(x, b.P("in", {8, 8}));
    Value* heads = b.Transpose(b.Reshape(y, {6, 2, 4}), {1, 0, 2});
    Value* gates = b.Matmul(heads, b.P("gates", {2, 4, 4}));
    gates = b.Op1("sigmoid", b.Reshape(b.Transpose(gates, {1, 0, 2}), {2, 3, 8}));
    y = b.Make("cumsum", {b.Mul(y, gates)},
               {{"axis", int64_t{1}}, {"exclusive", false}, {"reverse", false}});
    b.Out(b.Add(x, b.Matmul(y, b.P("out", {8, 8}))));
  });
  const std::map<std::string, std::string> expected = {
      {"in", "QKV"}, {"gates", "none"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(g), expected);
}

// A scan that is written out for each position, as RWKV's.
TEST(Roles, OfAScanInSteps) {
  for (const bool steps : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {2, 2, 8});
      Value *k = b.Op1("exp", b.Matmul(x, b.P("k", {8, 8}))), *v = b.Matmul(x, b.P("v", {8, 8}));
      Value* y = b.Mul(k, v);
      if (steps) {
        Value* first = b.Slice(y, {0, 0, 0}, {2, 1, 8});
        Value* second = b.Add(b.Mul(first, b.P("decay", {8})), b.Slice(y, {0, 1, 0}, {2, 2, 8}));
        y = b.Make("concat", {first, second}, {{"axis", int64_t{1}}});
      }
      b.Out(b.Add(x, b.Matmul(y, b.P("out", {8, 8}))));
    });
    const std::map<std::string, std::string> scan = {
        {"k", "QKV"}, {"v", "QKV"}, {"decay", "none"}, {"out", "ATTENTION_OUT"}};
    const std::map<std::string, std::string> mlp = {
        {"k", "MLP_GATE"}, {"v", "MLP_UP"}, {"out", "MLP_DOWN"}};
    EXPECT_EQ(RolesOf(g), steps ? scan : mlp);
  }
}

// A gated convolution of each channel over the positions before, as LFM2's.
TEST(Roles, OfAShortConvolution) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    Value* all = b.Transpose(b.Matmul(x, b.P("in", {8, 24})), {0, 2, 1});
    auto part = [&](int64_t n) { return b.Slice(all, {0, 8 * n, 0}, {2, 8 * n + 8, 3}); };
    Value* gated = b.Mul(part(0), part(2));
    Value* padded =
        b.Make("pad", {gated}, {{"low", Ints{0, 0, 1}}, {"high", Ints{0, 0, 0}}, {"value", 0.0}});
    Value* taps = b.P("taps", {8, 2});
    auto tap = [&](int64_t n) {
      return b.Mul(b.Slice(padded, {0, 0, n}, {2, 8, n + 3}), b.Slice(taps, {0, n}, {8, n + 1}));
    };
    Value* y = b.Transpose(b.Mul(part(1), b.Add(tap(0), tap(1))), {0, 2, 1});
    b.Out(b.Add(x, b.Matmul(y, b.P("out", {8, 8}))));
  });
  const std::map<std::string, std::string> expected = {
      {"in", "QKV"}, {"taps", "none"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(g), expected);
}

// gMLP's: a half that a product over the positions mixes, normed before, gates the other.
TEST(Roles, OfAGateOfPositions) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    Value* both = b.Op1("relu", b.Add(b.Matmul(x, b.P("in", {8, 12})), b.P("in.bias", {12})));
    Value *gated = b.Slice(both, {0, 0, 0}, {2, 3, 6}),
          *gate = b.Slice(both, {0, 0, 6}, {2, 3, 12});
    gate = b.Make("layer_norm", {gate, b.P("norm", {6}), b.P("norm.bias", {6})}, {{"eps", 1e-5}});
    gate = b.Add(b.Matmul(b.Transpose(gate, {0, 2, 1}), b.P("mix", {3, 3})), b.P("mix.bias", {3}));
    gated = b.Mul(gated, b.Transpose(gate, {0, 2, 1}));
    b.Out(b.Add(x, b.Matmul(gated, b.P("out", {6, 8}))));
  });
  const std::map<std::string, std::string> expected = {
      {"in", "QKV"},   {"in.bias", "QKV"},   {"norm", "NORM"},        {"norm.bias", "NORM"},
      {"mix", "none"}, {"mix.bias", "none"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(g), expected);
}

// Of each product's operand the way back is the whole stream before it.
TEST(Roles, OfALongResidualStream) {
  TestGraph b;
  Value *x = b.In("x", {2, 3, 8}), *w = b.P("w", {8, 8});
  for (int i = 0; i < 20000; ++i) x = b.Add(x, b.Matmul(x, w));
  b.Out(x);
  const double start = testing::CpuSeconds();
  RecoverPatterns(b.g);
  EXPECT_LT(testing::CpuSeconds() - start, 10);
}

TEST(Roles, OfOneWeightBeforeAndBehindWhatMixesIsNone) {
  for (const bool one : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {2, 3, 8});
      Value* w = b.P("w", {8, 8});
      Value* y = b.Matmul(b.In("neighbors", {2, 3, 3}), b.Matmul(x, w));
      b.Out(b.Add(x, b.Matmul(y, one ? w : b.P("out", {8, 8}))));
    });
    const std::map<std::string, std::string> none = {{"w", "none"}},
                                             mixer = {{"w", "QKV"}, {"out", "ATTENTION_OUT"}};
    EXPECT_EQ(RolesOf(g), one ? none : mixer);
  }
}

// Transformer-XL's: scores of distances are moved into place by padding.
TEST(Roles, OfScoresThatPaddingShifts) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    auto heads = [&](const std::string& name, Value* from) {
      Value* y = b.Reshape(b.Matmul(from, b.P(name, {8, 8})), {from->type.shape[0], 3, 2, 4});
      return b.Transpose(y, {0, 2, 1, 3});
    };
    Value *q = heads("q", x), *k = heads("k", x), *v = heads("v", x);
    Value* far = b.Make("matmul_nt", {q, heads("r", b.In("distances", {1, 3, 8}))});
    far = b.Make("pad", {far}, {{"low", Ints{0, 0, 0, 1}}, {"high", Ints(4, 0)}, {"value", 0.0}});
    far =
        b.Reshape(b.Slice(b.Reshape(far, {2, 2, 4, 3}), {0, 0, 1, 0}, {2, 2, 4, 3}), {2, 2, 3, 3});
    Value* y = b.Matmul(b.Softmax(b.Add(b.Make("matmul_nt", {q, k}), far)), v);
    y = b.Reshape(b.Transpose(y, {0, 2, 1, 3}), {2, 3, 8});
    b.Out(b.Matmul(y, b.P("out", {8, 8})));
  });
  const std::map<std::string, std::string> expected = {
      {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"r", "QKV"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(g), expected);
}

TEST(Roles, OfGatesOfHeads) {
  for (int64_t gate : {2, 8}) {
    const std::map<std::string, std::string> expected = {
        {"q", "QKV"},    {"k", "QKV"},         {"v", "QKV"},
        {"gate", "QKV"}, {"gate.bias", "QKV"}, {"out", "ATTENTION_OUT"}};
    EXPECT_EQ(RolesOf(AttentionOf(false, gate)), expected) << gate;
  }
  // One number for all heads cannot be cut.
  EXPECT_EQ(RolesOf(AttentionOf(false, 1)).at("gate"), "none");
}

// A norm of each head, as RetNet's, with a weight and a bias for each element of all of them.
TEST(Roles, OfHeadsThatAreNormed) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    auto heads = [&](const std::string& name) { return HeadsOf(b, x, name); };
    Value* scores = b.Make("matmul_nt", {heads("q"), heads("k")});
    Value* y = b.Matmul(b.Mul(scores, b.In("decay", {2, 3, 3})), heads("v"));
    y = b.Create("layer_norm", {b.Transpose(y, {0, 2, 1, 3})}, {{"eps", 1e-5}})->result();
    y = b.Mul(b.Reshape(y, {2, 3, 8}), b.P("norm", {8}));
    y = b.Add(b.P("norm.bias", {8}), y);
    y = b.Mul(b.Op1("silu", b.Matmul(x, b.P("gate", {8, 8}))), y);
    b.Out(b.Add(x, b.Matmul(y, b.P("out", {8, 8}))));
  });
  std::map<std::string, std::string> expected;
  for (const char* name : {"q", "k", "v", "gate"}) expected[name] = "QKV";
  expected["out"] = "ATTENTION_OUT";
  expected["norm"] = expected["norm.bias"] = "none";
  EXPECT_EQ(RolesOf(g), expected);
}

// LASER: log(attention(exp(v))).
TEST(Roles, OfHeadsOfWhichAFunctionIsTaken) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    auto heads = [&](const std::string& name) { return HeadsOf(b, x, name); };
    Value* scores = b.Make("matmul_nt", {heads("q"), heads("k")});
    Value* y = b.Op1("log", b.Matmul(b.Softmax(scores), b.Op1("exp", heads("v"))));
    y = b.Reshape(b.Transpose(y, {0, 2, 1, 3}), {2, 3, 8});
    b.Out(b.Add(x, b.Matmul(y, b.P("out", {8, 8}))));
  });
  EXPECT_EQ(RolesOf(g)["out"], "ATTENTION_OUT");
}

// Values turned by their positions are turned back behind the attention.
TEST(Roles, OfValuesThatAreTurnedAndTurnedBack) {
  Graph g = Recover([](TestGraph& b) {
    Value *x = b.In("x", {2, 3, 8}), *cos = b.In("cos", {3, 2}), *sin = b.In("sin", {3, 2});
    auto turned = [&](Value* y, bool inverse = false) {
      return b.Make("rotary", {y, cos, sin}, {{"inverse", inverse}});
    };
    auto heads = [&](const std::string& name) {
      Value* y = b.Reshape(b.Matmul(x, b.P(name, {8, 8})), {2, 3, 2, 4});
      return turned(b.Transpose(y, {0, 2, 1, 3}));
    };
    Value *q = heads("q"), *k = heads("k"), *v = heads("v");
    Value* y = turned(b.Matmul(b.Softmax(b.Make("matmul_nt", {q, k})), v), true);
    b.Out(b.Matmul(b.Reshape(b.Transpose(y, {0, 2, 1, 3}), {2, 3, 8}), b.P("out", {8, 8})));
  });
  const std::map<std::string, std::string> expected = {
      {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(g), expected);
}

// One projection of attention and MLP side by side.
TEST(Roles, OfAttentionBesideAnMlp) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    Value *q = HeadsOf(b, x, "q"), *k = HeadsOf(b, x, "k"), *v = HeadsOf(b, x, "v");
    Value* y = b.Matmul(b.Softmax(b.Make("matmul_nt", {q, k})), v);
    y = b.Reshape(b.Transpose(y, {0, 2, 1, 3}), {2, 3, 8});
    Value* up = b.Op1("tanh", b.Matmul(x, b.P("up", {8, 12})));
    y = b.Make("concat", {y, up}, {{"axis", int64_t{2}}});
    b.Out(b.Matmul(y, b.P("out", {20, 8})));
  });
  const std::map<std::string, std::string> expected = {
      {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"up", "MLP_UP"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(g), expected);
}

// There are 2^35 ways from the attention back to q, each of which would be gone.
TEST(Roles, BehindVeryManyWays) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    Value *q = HeadsOf(b, x, "q"), *k = HeadsOf(b, x, "k"), *v = HeadsOf(b, x, "v");
    for (int i = 0; i < 35; ++i) q = b.Make("max", {q, q});
    Value* y = b.Matmul(b.Softmax(b.Make("matmul_nt", {q, k})), v);
    b.Out(b.Matmul(b.Reshape(b.Transpose(y, {0, 2, 1, 3}), {2, 3, 8}), b.P("out", {8, 8})));
  });
  const std::map<std::string, std::string> expected = {
      {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"out", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(g), expected);
}

// Keys and values that are written into a cache at places that are data, by a lookup or a scatter.
TEST(Roles, OfKeysThatAreWrittenIntoACache) {
  for (bool scatter : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      constexpr int64_t kPlaces = 5;
      Value* x = b.In("x", {2, 3, 4});
      Value* at = b.In("at", HostTensor::Of<int64_t>(
                                 {2, scatter ? 3 : kPlaces, 1},
                                 scatter ? std::vector<int64_t>{1, 2, 3, 0, 1, 2}
                                         : std::vector<int64_t>{0, 0, 1, 2, 2, 0, 1, 2, 2, 2}));
      Value* keep = b.In("keep", HostTensor(DType::kBool, {2, 1, kPlaces, 1}));
      auto heads = [&](const std::string& name) {
        return b.Reshape(b.Matmul(x, b.P(name, {4, 4})), {2, 3, 2, 2});
      };
      auto cached = [&](const std::string& name) {
        Value* rows = scatter
                          ? b.Make("gather_nd_grad", {heads(name), at},
                                   {{"batch_dims", int64_t{1}}, {"sizes", Ints{kPlaces}}})
                          : b.Make("gather_nd", {heads(name), at}, {{"batch_dims", int64_t{1}}});
        return b.Where(keep, b.In("past_" + name, {2, 2, kPlaces, 2}),
                       b.Transpose(rows, {0, 2, 1, 3}));
      };
      Value* q = b.Transpose(heads("q"), {0, 2, 1, 3});
      Value* p = b.Softmax(b.Matmul(q, b.Transpose(cached("k"), {0, 1, 3, 2})));
      Value* o = b.Reshape(b.Transpose(b.Matmul(p, cached("v")), {0, 2, 1, 3}), {2, 3, 4});
      b.Out(b.Matmul(o, b.P("o", {4, 4})));
    });
    std::map<std::string, std::string> want = {
        {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"o", "ATTENTION_OUT"}};
    EXPECT_EQ(RolesOf(g), want) << scatter;
  }
}

// The narrow result between the two is whole beside q, k and v, and summed before the projection.
TEST(Roles, OfLinearsOfLowRank) {
  const std::map<std::string, std::string> expected = {
      {"q", "QKV"},      {"q.A", "none"},          {"q.B", "QKV"},
      {"k", "QKV"},      {"k.A", "none"},          {"k.B", "QKV"},
      {"v", "QKV"},      {"v.A", "none"},          {"v.B", "QKV"},
      {"out.B", "none"}, {"out", "ATTENTION_OUT"}, {"out.A", "ATTENTION_OUT"}};
  EXPECT_EQ(RolesOf(AttentionOf(true, 0)), expected);
}

}  // namespace
}  // namespace shardc::recover_testing
