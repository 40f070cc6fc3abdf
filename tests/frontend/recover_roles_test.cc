// Roles of the builder's models, of MLPs and heads, and of weights in other shapes.
#include "frontend/gpt_config.h"
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

// As SqueezeBERT has them.
TEST(Roles, OfKernelsOfSizeOne) {
  Graph g = Recover([&](TestGraph& b) {
    Value* up = b.Reshape(b.P("up", {6, 4, 1}), {6, 4});
    Value* down = b.Reshape(b.P("down", {4, 6, 1}), {4, 6});
    Value* h = b.Op1("tanh", b.Make("matmul_nt", {b.In("x", {5, 4}), up}));
    b.Out(b.Make("matmul_nt", {h, down}));
  });
  EXPECT_EQ(RolesOf(g), (std::map<std::string, std::string>{{"up", "MLP_UP [1] [0]"},
                                                            {"down", "MLP_DOWN [1] [0]"}}));
}

// Channels first: what is transposed for a convolution and back is not.
TEST(Roles, OfAnMlpOfConvolutions) {
  Graph g = Recover([&](TestGraph& b) {
    auto convolve = [&](Value* v, const char* name, int64_t out) {  // [2, in, 5]
      const int64_t in = v->type.shape[1];
      v = b.Transpose(b.Reshape(v, {2, in, 5, 1}), {0, 2, 1, 3});
      Value* w = b.Reshape(b.P(name, {out, in, 1}), {out, in});
      v = b.Add(b.Make("matmul_nt", {b.Reshape(v, {2, 5, in}), w}),
                b.P(StrCat(name, ".bias"), {out}));
      return b.Transpose(v, {0, 2, 1});
    };
    Value* x = b.Transpose(b.In("x", {2, 5, 4}), {0, 2, 1});
    x = convolve(b.Op1("tanh", b.Op1("neg", convolve(x, "up", 6))), "down", 4);
    b.Out(b.Transpose(x, {0, 2, 1}));
  });
  EXPECT_EQ(Counts(g)["transpose"], 0);
  EXPECT_EQ(RolesOf(g), (std::map<std::string, std::string>{{"up", "MLP_UP [1] [0]"},
                                                            {"up.bias", "MLP_UP"},
                                                            {"down", "MLP_DOWN [1] [0]"},
                                                            {"down.bias", "MLP_DOWN"}}));
}

// A function between two transposes that something else reads too stays where it is; so do
// transposes that put nothing back.
TEST(Roles, TransposesThatAreReadStay) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.Transpose(b.In("x", {2, 5, 4}), {0, 2, 1});
    Value* h = b.Op1("tanh", x);
    b.Out(h, "h");
    b.Out(b.Transpose(h, {0, 2, 1}));
    b.Out(b.Transpose(b.Op1("exp", x), {1, 0, 2}), "z");
  });
  EXPECT_EQ(Counts(g)["transpose"], 3);
}

// One matrix behind the other in a tensor: of gate and up, and of layers.
TEST(Roles, OfStackedMatrices) {
  Graph g = Recover([&](TestGraph& b) {
    Value *gate_up = b.P("gate_up", {2, 4, 6}), *down = b.P("down", {2, 6, 4});
    auto part = [&](Value* w, int64_t i) {
      const Shape& s = w->type.shape;
      return b.Reshape(b.Slice(w, {i, 0, 0}, {i + 1, s[1], s[2]}), {s[1], s[2]});
    };
    Value* x = b.In("x", {5, 4});
    for (int64_t layer : {0, 1}) {
      Value* gate = b.Op1("tanh", b.Matmul(x, part(gate_up, 0)));
      x = b.Add(x, b.Matmul(b.Mul(gate, b.Matmul(x, part(gate_up, 1))), part(down, layer)));
    }
    b.Out(x);
  });
  EXPECT_EQ(RolesOf(g),
            (std::map<std::string, std::string>{{"gate_up", "MLP_GATE"}, {"down", "MLP_DOWN"}}));
}

// Of pieces of which some want a cut of columns and some one of rows, or that are stored across, no
// cut serves all: the parameter is as if it were not seen, and so is a bias of it.
TEST(Roles, OfPiecesThatWantOtherCuts) {
  for (const bool across : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value *stack = b.P("stack", {3, 4, 4}), *bias = b.P("bias", {4}), *down = b.P("down", {4, 4});
      auto part = [&](int64_t i) {
        return b.Reshape(b.Slice(stack, {i, 0, 0}, {i + 1, 4, 4}), {4, 4});
      };
      Value* x = b.In("x", {5, 4});
      Value* gate = b.Op1("tanh", b.Add(b.Matmul(x, part(0)), bias));
      Value* up = b.Matmul(x, across ? b.Transpose(part(1), {1, 0}) : part(1));
      b.Out(b.Matmul(b.Mul(gate, up), across ? down : part(2)));
    });
    const auto roles = RolesOf(g);
    EXPECT_EQ(roles.at("stack"), "none");
    EXPECT_EQ(roles.at("bias"), "none");
  }
}

// The builder's graph states the roles; recovery must find the same ones from the structure.
TEST(Roles, AreThoseOfTheBuilder) {
  const char* configs[] = {
      "builtin:gpt?layers=2,hidden=16,heads=4,vocab=19,seq=8",
      "builtin:gpt?layers=2,hidden=16,heads=4,vocab=19,seq=4,max_positions=8,tied=false,qkv="
      "separate",
      "builtin:gpt?layers=2,hidden=16,heads=4,vocab=19,seq=8,kv_heads=2,positions=rope,norm=rms_"
      "norm,"
      "activation=swiglu,bias=false,tied=false",
      "builtin:gpt?layers=1,hidden=16,heads=4,vocab=19,seq=8,activation=relu,positions=none,bias="
      "false",
      "builtin:gpt?layers=2,hidden=16,heads=4,vocab=16,seq=16,ffn=16,tied=false,activation=swiglu"};
  for (const char* config : configs) {
    SCOPED_TRACE(config);
    Graph g = BuildGpt(ParseBuiltin(config));
    std::map<std::string, Attributes> expected;
    for (Op* p : g.Params()) {
      expected[p->attrs.String("name")] = p->attrs;
      for (const char* attr : {"role", "part", "rows", "columns"}) p->attrs.Erase(attr);
    }
    size_t ops = g.num_ops();
    RecoverPatterns(g);
    EXPECT_LE(g.num_ops(), ops);
    for (Op* p : g.Params()) {
      const Attributes& e = expected[p->attrs.String("name")];
      EXPECT_EQ(p->attrs.String("role", ""), e.String("role")) << p->attrs.String("name");
      EXPECT_EQ(p->attrs.String("part", ""), e.String("part")) << p->attrs.String("name");
      EXPECT_EQ(p->attrs.Has("rows"), e.Has("rows")) << p->attrs.String("name");
    }
  }
}

TEST(Roles, OfAnMlpAlone) {
  Graph g = Recover([](TestGraph& b) {
    Value* x =
        b.Add(b.Make("matmul_nt", {b.In("x", {4, 8}), b.P("fc1", {32, 8})}), b.P("b1", {32}));
    x = b.Make("gelu", {x}, {{"approximate", std::string("tanh")}});
    b.Out(b.Add(b.Matmul(x, b.P("fc2", {32, 8})), b.P("b2", {8})));
  });
  std::map<std::string, std::string> expected = {
      {"fc1", "MLP_UP [1] [0]"}, {"b1", "MLP_UP"}, {"fc2", "MLP_DOWN"}, {"b2", "MLP_DOWN"}};
  EXPECT_EQ(RolesOf(g), expected);
}

TEST(Roles, FusedGateAndUpIsUp) {
  Graph g = Recover([](TestGraph& b) {
    Op* halves = b.Create("split", {b.Matmul(b.In("x", {4, 8}), b.P("gate_up", {8, 32}))},
                          {{"axis", int64_t{1}}, {"sizes", Ints{16, 16}}});
    Value* gate = b.Mul(halves->result(0), b.Op1("sigmoid", halves->result(0)));
    b.Out(b.Matmul(b.Mul(gate, halves->result(1)), b.P("down", {16, 8})));
  });
  std::map<std::string, std::string> expected = {{"gate_up", "MLP_UP"}, {"down", "MLP_DOWN"}};
  EXPECT_EQ(RolesOf(g), expected);
}

// What makes it more than one matrix is a product: of two linears, or a square.
// Weights that are scaled, normalised, or have an update of low rank, each time they are used.
TEST(Roles, OfWeightsThatAreComputed) {
  auto scaled = [](TestGraph& b, Value* w) { return b.Mul(b.C(0.25), w); };
  auto normalised = [](TestGraph& b, Value* w) {
    Value* norm = b.Op1("sqrt", b.ReduceSum(b.Mul(w, w), {0}, true));
    return b.Mul(b.Div(w, b.Make("max", {norm, b.C(1e-12)})), b.P("length", {1, 32}));
  };
  auto updated = [](TestGraph& b, Value* w) {
    return b.Add(w, b.Mul(b.Matmul(b.P("A", {8, 2}), b.P("B", {2, 32})), b.C(2)));
  };
  const std::function<Value*(TestGraph&, Value*)> forms[] = {scaled, normalised, updated};
  for (const auto& form : forms) {
    Graph g = Recover([&](TestGraph& b) {
      Value* y = b.Op1("relu", b.Matmul(b.In("x", {4, 8}), form(b, b.P("up", {8, 32}))));
      b.Out(b.Make("matmul_nt", {y, b.Mul(b.P("down", {8, 32}), b.In("mask", {8, 32}))}), "other");
      b.Out(b.Make("matmul_nt", {y, b.Mul(b.P("down2", {8, 32}), b.C(3))}));
    });
    auto roles = RolesOf(g);
    EXPECT_EQ(roles["up"], "MLP_UP");
    EXPECT_EQ(roles["down2"], "MLP_DOWN [1] [0]");
    EXPECT_EQ(roles["down"], "none");  // what it is multiplied with is not the model's
  }
}

// DoRA: what a linear gives is multiplied by lengths over those of its weight's columns.
TEST(Roles, BehindScalesThatAreMadeOfWeights) {
  Graph g = Recover([](TestGraph& b) {
    auto scaled = [&](Value* x, const std::string& name, int64_t in, int64_t out) {
      Value *w = b.P(name, {in, out}), *squares = b.ReduceSum(b.Mul(w, w), {0}, true);
      return b.Mul(b.Matmul(x, w), b.Div(b.P(name + "_length", {out}), b.Op1("sqrt", squares)));
    };
    Value* y = b.Op1("relu", scaled(b.In("x", {4, 8}), "up", 8, 32));
    b.Out(scaled(y, "down", 32, 8));
  });
  EXPECT_EQ(RolesOf(g)["up"], "MLP_UP");
  EXPECT_EQ(RolesOf(g)["down"], "MLP_DOWN");
}

// A part of one parameter times another: rows and columns are of one and the same.
TEST(Roles, OfAWeightTimesAPartOfAnother) {
  Graph g = Recover([](TestGraph& b) {
    Value* part = b.Slice(b.Reshape(b.P("other", {1, 1, 16, 32}), {16, 32}), {0, 0}, {8, 32});
    Value* up = b.Mul(part, b.P("up", {8, 32}));
    Value* y = b.Op1("relu", b.Matmul(b.In("x", {4, 8}), up));
    b.Out(b.Make("matmul_nt", {y, b.P("down", {8, 32})}));
  });
  EXPECT_EQ(RolesOf(g)["down"], "MLP_DOWN [1] [0]");
  for (const char* name : {"up", "other"}) {
    const Op* param = g.FindState(name);
    if (!param->attrs.Has("columns")) continue;
    EXPECT_NE(param->attrs.IntList("rows"), param->attrs.IntList("columns")) << name;
    EXPECT_EQ(name, std::string("up"));
  }
}

// As einsum makes them of one weight [in, 2, width]: gate and up are moved to the front.
TEST(Roles, FusedGateAndUpMayBeMoved) {
  Graph g = Recover([](TestGraph& b) {
    Value* w = b.Reshape(b.P("gating", {4, 2, 6}), {4, 12});
    Value* y = b.Reshape(b.Matmul(b.In("x", {2, 3, 4}), w), {2, 3, 2, 6});
    Op* split = b.Create("split", {b.Transpose(y, {2, 0, 1, 3})},
                         {{"axis", int64_t{0}}, {"sizes", Ints{1, 1}}});
    y = b.Mul(b.Op1("silu", split->result(0)), split->result(1));
    b.Out(b.Matmul(b.Reshape(y, {2, 3, 6}), b.P("down", {6, 4})));
  });
  EXPECT_EQ(RolesOf(g), (std::map<std::string, std::string>{{"gating", "MLP_UP [0] [1,2]"},
                                                            {"down", "MLP_DOWN"}}));
}

TEST(Roles, OfAnMlpWithoutAnActivation) {
  for (bool square : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {4, 8});
      Value* up = b.Matmul(x, b.P("up", {8, 16}));
      Value* by = square ? up : b.Matmul(x, b.P("by", {8, 16}));
      b.Out(b.Matmul(b.Mul(up, by), b.P("down", {16, 8})));
    });
    std::map<std::string, std::string> expected = {{"up", "MLP_UP"}, {"down", "MLP_DOWN"}};
    if (!square) expected["by"] = "MLP_UP";
    EXPECT_EQ(RolesOf(g), expected);
  }
  // A scale is no product.
  Graph g = Recover([&](TestGraph& b) {
    Value* up = b.Mul(b.Matmul(b.In("x", {4, 8}), b.P("up", {8, 16})), b.P("scale", {16}));
    b.Out(b.Matmul(up, b.P("down", {16, 8})));
  });
  EXPECT_EQ(RolesOf(g).at("down"), "none");
}

// BitNet's: a norm before the projections that go back to the residual stream. BERT's head has one
// before the projection to the vocabulary, and is no MLP.
TEST(Roles, ThroughANormInsideOfAnMlp) {
  for (int width : {8, 11}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* up = b.Op1("relu", b.Matmul(b.In("x", {4, 8}), b.P("up", {8, 16})));
      Value* norm = b.Create("rms_norm", {up, b.P("norm", {16})}, {{"eps", 1e-5}})->result();
      b.Out(b.Matmul(norm, b.P("down", {16, width})));
    });
    const bool mlp = width == 8;
    std::map<std::string, std::string> expected = {
        {"up", mlp ? "MLP_UP" : "none"}, {"norm", "NORM"}, {"down", mlp ? "MLP_DOWN" : "none"}};
    EXPECT_EQ(RolesOf(g), expected);
  }
}

// Of several tokens to come, whose logits are one output.
TEST(Roles, OfHeadsSideBySide) {
  Graph g = Recover([&](TestGraph& b) {
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({1, 4}, {0, 3, 6, 1}));
    Value* x = b.Make("gather", {b.P("wte", {7, 4}), ids}, {{"axis", int64_t{0}}});
    std::vector<Value*> logits;
    for (const char* head : {"next", "second"}) {
      logits.push_back(b.Reshape(b.Matmul(x, b.P(head, {4, 7})), {1, 1, 4, 7}));
    }
    b.Out(b.Make("concat", logits, {{"axis", int64_t{1}}}));
  });
  EXPECT_EQ(RolesOf(g).at("next"), "LM_HEAD");
  EXPECT_EQ(RolesOf(g).at("second"), "LM_HEAD");
}

// A head under a cap of any form, as modded-nanogpt's sigmoid.
TEST(Roles, AHeadMayBeCapped) {
  for (const char* cap : {"tanh", "sigmoid"}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({1, 4}, {0, 3, 6, 1}));
      Value* x = b.Make("gather", {b.P("wte", {7, 4}), ids}, {{"axis", int64_t{0}}});
      b.Out(b.Mul(b.Op1(cap, b.Matmul(x, b.P("head", {4, 7}))), b.C(30)));
    });
    EXPECT_EQ(RolesOf(g).at("head"), "LM_HEAD") << cap;
  }
}

// Logits are not summed over ranks because an activation is before the head. Where the vocabulary
// has the size of the width, that is an MLP, whose result is added to what it is of.
TEST(Roles, AHeadBehindAnActivation) {
  for (const int64_t vocabulary : {7, 4}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({1, 4}, {0, 3, 2, 1}));
      Value* x = b.Make("gather", {b.P("wte", {vocabulary, 4}), ids}, {{"axis", int64_t{0}}});
      Value* h = b.Op1("silu", b.Matmul(x, b.P("up", {4, 8})));
      Value* y = b.Matmul(h, b.P("head", {8, vocabulary}));
      b.Out(vocabulary == 4 ? b.Add(x, y) : y);
    });
    EXPECT_EQ(RolesOf(g).at("head"), vocabulary == 4 ? "MLP_DOWN" : "LM_HEAD");
    EXPECT_EQ(RolesOf(g).at("up"), vocabulary == 4 ? "MLP_UP" : "none");
  }
}

// As onnxsim merges products of one operand: gate and up beside each other, their biases behind the
// split.
TEST(Roles, OfBiasesBehindASplit) {
  Graph g = Recover([](TestGraph& b) {
    Value* both = b.Matmul(b.In("x", {3, 4}), b.P("gate_up", {4, 12}));
    Op* split = b.Create("split", {both}, {{"axis", int64_t{1}}, {"sizes", Ints{6, 6}}});
    Value* gate = b.Add(split->result(0), b.P("gate.bias", {6}));
    Value* up = b.Add(split->result(1), b.P("up.bias", {6}));
    b.Out(b.Matmul(b.Mul(b.Op1("silu", gate), up), b.P("down", {6, 4})));
  });
  const auto roles = RolesOf(g);
  EXPECT_EQ(roles.at("gate.bias"), roles.at("gate_up"));
  EXPECT_EQ(roles.at("up.bias"), roles.at("gate_up"));
  EXPECT_EQ(roles.at("gate_up"), "MLP_UP");
}

// q and v have a bias, k has none: of two vectors (as EVA's), or of one with zeros written into it
// (as Swin v2's).
TEST(Roles, OfABiasThatIsPutTogether) {
  for (const bool one : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value *of_q = nullptr, *of_v = nullptr;
      if (one) {
        Value* bias = b.P("bias", {24});
        of_q = b.Slice(bias, {0}, {8}), of_v = b.Slice(bias, {16}, {24});
      } else {
        of_q = b.P("q.bias", {8}), of_v = b.P("v.bias", {8});
      }
      Value* bias = b.Make("concat", {of_q, b.C(0, {8}), of_v}, {{"axis", int64_t{0}}});
      Value* all = b.Add(b.Matmul(b.In("x", {2, 3, 8}), b.P("qkv", {8, 24})), bias);
      all = b.Transpose(b.Reshape(all, {2, 3, 3, 2, 4}), {2, 0, 3, 1, 4});
      auto part = [&](int64_t i) {
        return b.Reshape(b.Slice(all, {i, 0, 0, 0, 0}, {i + 1, 2, 2, 3, 4}), {2, 2, 3, 4});
      };
      // Scores to which a parameter is added stay written out.
      Value* scores = b.Add(b.Make("matmul_nt", {part(0), part(1)}), b.P("positions", {2, 3, 3}));
      Value* y = b.Transpose(b.Matmul(b.Softmax(scores), part(2)), {0, 2, 1, 3});
      b.Out(b.Matmul(b.Reshape(y, {2, 3, 8}), b.P("out", {8, 8})));
    });
    const std::string qkv = "QKV";
    auto roles = RolesOf(g);
    roles.erase("positions");
    std::map<std::string, std::string> expected = {{"qkv", qkv}, {"out", "ATTENTION_OUT"}};
    for (const char* bias : {"q.bias", "v.bias"}) expected[one ? "bias" : bias] = qkv;
    EXPECT_EQ(roles, expected);
    const bool splits_bias = Find(g, "split")->in(0).rank() == 1;
    EXPECT_EQ(splits_bias, one);
  }
}

// With a vocabulary that is padded, in weights that are one or two.
TEST(Roles, AHeadMayBePadded) {
  for (bool tied : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({1, 4}, {0, 3, 6, 1}));
      Value* table = b.P("wte", {8, 4});
      Value* x = b.Make("gather", {table, ids}, {{"axis", int64_t{0}}});
      Value* head = tied ? b.Transpose(table, {1, 0}) : b.P("head", {4, 8});
      b.Out(b.Slice(b.Matmul(x, head), {0, 0, 0}, {1, 4, 5}));
    });
    EXPECT_EQ(RolesOf(g).at(tied ? "wte" : "head"), tied ? "TOKEN_EMBEDDING" : "LM_HEAD");
    EXPECT_THAT(Ops(g), ::testing::Contains("split"));
  }
}

TEST(Roles, WhatIsNotRecognisedHasNone) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {4, 8});
    Value* y = b.Matmul(x, b.P("a", {8, 8}));
    b.Out(b.Matmul(b.Add(x, y), b.P("c", {8, 8})));
  });
  std::map<std::string, std::string> expected = {{"a", "none"}, {"c", "none"}};
  EXPECT_EQ(RolesOf(g), expected);
}

}  // namespace
}  // namespace shardc::recover_testing
