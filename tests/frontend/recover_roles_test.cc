// Roles.
#include "frontend/gpt_config.h"
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

// All experts in one weight each, plain or stored [out, in], gate and up side by side, in turns or
// apart; a router and a bias that is added whole have none.
TEST(Roles, OfExperts) {
  for (bool transposed : {false, true}) {
    for (const char* form : {"halves", "turns", "apart"}) {
      SCOPED_TRACE(StrCat(form, transposed ? ", transposed" : ""));
      const bool apart = form == std::string("apart");
      Graph g = Recover([&](TestGraph& b) {
        Value* x = b.In("x", {5, 4});
        auto experts = [&](Value* v, const std::string& name, int64_t in, int64_t out) {
          Value* w = transposed ? b.Transpose(b.P(name, {3, out, in}), {0, 2, 1})
                                : b.P(name, {3, in, out});
          Value* bias = b.Reshape(b.P(name + ".bias", {3, out}), {3, 1, out});
          return b.Add(b.Matmul(v, w), bias);
        };
        Value* all = b.BroadcastTo(x, {3, 5, 4});
        Value* gate = experts(all, "gate_up", 4, apart ? 6 : 12);
        Value* up = gate;
        auto slice = [&](Value* v, int64_t from, int64_t to, int64_t step) {
          return b.Make("slice", {v},
                        {{"starts", Ints{0, 0, from}},
                         {"limits", Ints{3, 5, to}},
                         {"steps", Ints{1, 1, step}}});
        };
        if (apart) {
          up = experts(all, "up", 4, 6);
        } else if (form == std::string("halves")) {
          gate = slice(up, 0, 6, 1);
          up = slice(up, 6, 12, 1);
        } else {
          gate = slice(up, 0, 12, 2);
          up = slice(up, 1, 12, 2);
        }
        Value* y = experts(b.Mul(b.Op1("tanh", gate), up), "down", 6, 4);
        Value* scores = b.Op1("sigmoid", b.Matmul(x, b.P("router", {4, 3})));
        y = b.Mul(y, b.Reshape(b.Transpose(scores, {1, 0}), {3, 5, 1}));
        b.Out(b.ReduceSum(y, {0}, false));
      });
      std::map<std::string, std::string> roles;
      for (const Op* p : g.Params()) {
        roles[p->attrs.String("name")] = p->attrs.String("role", "-");
        if (p->out().rank() == 3) {
          EXPECT_EQ(RowsAndColumns(*p), transposed ? "[2] [1]" : "");
        }
      }
      const char* first = apart ? "MLP_GATE" : "MLP_UP";
      std::map<std::string, std::string> expected = {{"gate_up", first},
                                                     {"gate_up.bias", first},
                                                     {"down", "MLP_DOWN"},
                                                     {"down.bias", "MLP_DOWN"},
                                                     {"router", "-"}};
      if (apart) expected["up"] = expected["up.bias"] = "MLP_UP";
      EXPECT_EQ(roles, expected);
    }
  }
}

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

// A loop over the parts of the weights, and an einsum, whose copy of the weights goes away.
TEST(Roles, OfExpertsByThemselvesOrInAnEinsum) {
  for (bool loop : {true, false}) {
    for (bool transposed : {true, false}) {
      Graph g = Recover([&](TestGraph& b) {
        Value* x = b.In("x", {2, 5, 4});
        Value* up = b.P("up", transposed ? Shape{3, 6, 4} : Shape{3, 4, 6});
        Value* down = b.P("down", {3, 6, 4});
        Value *up_bias = b.P("up.bias", {3, 6}), *down_bias = b.P("down.bias", {3, 4});
        if (loop) {
          Value* sum = nullptr;
          for (int64_t e = 0; e < 3; ++e) {
            auto own = [&](Value* all) {
              Ints starts(all->type.shape.size(), 0), limits = all->type.shape;
              starts[0] = e, limits[0] = e + 1;
              return b.Reshape(b.Slice(all, starts, limits),
                               Shape(limits.begin() + 1, limits.end()));
            };
            Value* h = b.Make(transposed ? "matmul_nt" : "matmul", {x, own(up)});
            h = b.Op1("tanh", b.Add(h, own(up_bias)));
            Value* y = b.Add(b.Matmul(h, own(down)), own(down_bias));
            sum = sum ? b.Add(sum, y) : y;
          }
          return b.Out(sum);
        }
        Value* flat = b.Reshape(x, {10, 4});
        Value* all =
            transposed ? b.Reshape(up, {18, 4}) : b.Reshape(b.Transpose(up, {1, 0, 2}), {4, 18});
        Value* h = b.Make(transposed ? "matmul_nt" : "matmul", {flat, all});
        h = b.Op1("tanh", b.Add(b.Reshape(h, {10, 3, 6}), up_bias));
        Value* y = b.Matmul(b.Transpose(h, {1, 0, 2}), down);
        b.Out(b.ReduceSum(b.Add(b.Transpose(y, {1, 0, 2}), down_bias), {1}, false));
      });
      std::map<std::string, std::string> roles;
      for (const Op* p : g.Params()) {
        const std::string name = p->attrs.String("name");
        roles[name] = p->attrs.String("role", "-");
        if (name == "up") {
          EXPECT_EQ(RowsAndColumns(*p), transposed ? "[2] [1]" : "");
        }
      }
      const std::map<std::string, std::string> expected = {
          {"up", "MLP_UP"}, {"up.bias", "MLP_UP"}, {"down", "MLP_DOWN"}, {"down.bias", "MLP_DOWN"}};
      EXPECT_EQ(roles, expected) << loop << transposed;
      if (!loop) {
        for (const auto& op : g.ops()) {
          EXPECT_TRUE(op->operands.empty() || op->name() == "matmul" || op->name() == "matmul_nt" ||
                      op->operands[0] != g.Params()[0]->result());
        }
      }
    }
  }
}

// Each token looks up its experts' weights and stands right of them, a column.
TEST(Roles, OfExpertsLeftOfTheirTokens) {
  for (bool nt : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      HostTensor chosen(DType::kI64, {5});
      for (int64_t i = 0; i < 5; ++i) chosen.SetDouble(i, static_cast<double>(i * 2 % 3));
      Value* ids = b.In("ids", chosen);
      auto experts = [&](Value* v, const std::string& name, int64_t in, int64_t out) {
        Value* w = b.Make("gather", {b.P(name, {3, out, in}), ids}, {{"axis", int64_t{0}}});
        if (nt) return b.Make("matmul_nt", {w, b.Reshape(v, {5, 1, in})});
        return b.Matmul(w, b.Reshape(v, {5, in, 1}));
      };
      Value* h = b.Op1("tanh", b.Reshape(experts(b.In("x", {5, 4}), "up", 4, 6), {5, 6}));
      b.Out(b.Reshape(experts(h, "down", 6, 4), {5, 4}));
    });
    for (const Op* p : g.Params()) {
      const bool up = p->attrs.String("name") == "up";
      EXPECT_EQ(p->attrs.String("role", "-"), up ? "MLP_UP" : "MLP_DOWN") << nt;
      EXPECT_EQ(RowsAndColumns(*p), "[2] [1]");
    }
  }
}

// As einsum("bseh,ehd,bse->bsd"): one product adds up what all experts give, weighted before it.
// Both ways to store their matrices.
TEST(Roles, OfExpertsThatOneProductSums) {
  for (bool transposed : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {5, 4});
      Value* h = b.Op1("tanh", b.Matmul(b.Reshape(x, {1, 5, 4}), b.P("up", {3, 4, 6})));
      Value* scores = b.Softmax(b.Matmul(x, b.P("router", {4, 3})));
      h = b.Mul(b.Transpose(h, {1, 0, 2}), b.Reshape(scores, {5, 3, 1}));
      Value* down =
          transposed ? b.Transpose(b.P("down", {3, 4, 6}), {0, 2, 1}) : b.P("down", {3, 6, 4});
      b.Out(b.Matmul(b.Reshape(h, {5, 18}), b.Reshape(down, {18, 4})));
    });
    EXPECT_EQ(RolesOf(g), (std::map<std::string, std::string>{
                              {"up", "MLP_UP"},
                              {"down", transposed ? "MLP_DOWN [2] [1]" : "MLP_DOWN"},
                              {"router", "none"}}));
  }
}

// Heads that are matrices of their own, in an einsum or in one product of all of them: they meet
// each other, and one product makes them, and adds up what comes of them.
TEST(Roles, HeadsAreNoExperts) {
  for (bool einsum : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {5, 4});
      auto heads = [&](const char* name) {
        Value* w = b.P(name, {2, 4, 6});
        if (!einsum) return b.Matmul(b.Reshape(x, {1, 5, 4}), w);
        Value* all = b.Reshape(b.Transpose(w, {1, 0, 2}), {4, 12});
        return b.Transpose(b.Reshape(b.Matmul(x, all), {5, 2, 6}), {1, 0, 2});
      };
      Value* scores = b.Matmul(heads("q"), b.Transpose(heads("k"), {0, 2, 1}));
      Value* y = b.Matmul(b.Softmax(scores), heads("v"));
      b.Out(b.ReduceSum(b.Matmul(y, b.P("o", {2, 6, 4})), {0}, false));
    });
    EXPECT_EQ(RolesOf(g), (std::map<std::string, std::string>{{"q", "QKV [1] [0,2]"},
                                                              {"k", "QKV [1] [0,2]"},
                                                              {"v", "QKV [1] [0,2]"},
                                                              {"o", "ATTENTION_OUT [0,1] [2]"}}));
    EXPECT_EQ(Counts(g)["reduce_sum"], 0);
  }
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
// features by heads or of the whole width (as MiniMax's).
TEST(Roles, OfAttentionWithoutASoftmax) {
  for (const char* form : {"sigmoid", "decay", "linear", "linear, wide"}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {2, 3, 8});
      auto heads = [&](const std::string& name) {
        Value* y = b.Matmul(x, b.P(name, {8, 8}));
        if (form == std::string("linear, wide")) y = b.Op1("silu", y);
        y = b.Transpose(b.Reshape(y, {2, 3, 2, 4}), {0, 2, 1, 3});
        return form == std::string("linear") ? b.Op1("relu", y) : y;
      };
      Value *q = heads("q"), *k = heads("k"), *v = heads("v"), *y = nullptr;
      if (std::string(form).starts_with("linear")) {
        y = b.Matmul(q, b.Matmul(b.Transpose(k, {0, 1, 3, 2}), v));
      } else {
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

// There are 2^35 ways from the attention back to q, each of which would be gone.
TEST(Roles, BehindVeryManyWays) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    auto heads = [&](const std::string& name) {
      Value* y = b.Reshape(b.Matmul(x, b.P(name, {8, 8})), {2, 3, 2, 4});
      return b.Transpose(y, {0, 2, 1, 3});
    };
    Value *q = heads("q"), *k = heads("k"), *v = heads("v");
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
