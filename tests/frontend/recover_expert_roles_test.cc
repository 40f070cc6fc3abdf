// Roles of the weights of experts, and of what only looks like them.
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

// All experts one behind the other in a matrix, as DBRX has them: taken by view and index, batched,
// or by an einsum that flattens them again.
TEST(Roles, OfStackedExperts) {
  for (const char* form : {"loop", "batched", "einsum", "batched, added", "flat, added"}) {
    for (bool transposed : {false, true}) {
      SCOPED_TRACE(StrCat(form, transposed ? ", transposed" : ""));
      Graph g = Recover([&](TestGraph& b) {
        const std::string how = form;
        Value* x = b.In("x", {5, 4});
        Value* up = transposed ? b.Transpose(b.Reshape(b.P("up", {4, 18}), {4, 3, 6}), {1, 2, 0})
                               : b.Reshape(b.P("up", {18, 4}), {3, 6, 4});
        Value* down = b.P("down", {18, 4});
        Value* apart = b.Reshape(down, {3, 6, 4});
        Value* bias = b.Reshape(b.P("up.bias", {18}), {3, 1, 6});
        if (how == "loop") {
          Value* sum = nullptr;
          for (int64_t e = 0; e < 3; ++e) {
            auto own = [&](Value* all, const Shape& shape) {
              return b.Reshape(b.Builder::Slice(all, 0, e, e + 1), shape);
            };
            Value* h = b.Make("matmul_nt", {x, own(up, {6, 4})});
            h = b.Op1("tanh", b.Add(h, own(bias, {6})));
            Value* y = b.Matmul(h, own(apart, {6, 4}));
            sum = sum ? b.Add(sum, y) : y;
          }
          return b.Out(sum);
        }
        Value* h = nullptr;
        if (how.starts_with("batched")) {
          h = b.Make("matmul_nt", {b.BroadcastTo(b.Reshape(x, {1, 5, 4}), {3, 5, 4}), up});
        } else {
          h = b.Make("matmul_nt", {x, b.Reshape(up, {18, 4})});
          h = b.Transpose(b.Reshape(h, {5, 3, 6}), {1, 0, 2});
        }
        h = b.Op1("tanh", b.Add(h, bias));
        if (how.ends_with("added"))
          return b.Out(b.Matmul(b.Reshape(b.Transpose(h, {1, 0, 2}), {5, 18}), down));
        b.Out(b.ReduceSum(b.Op1("tanh", b.Matmul(h, apart)), {0}, false));
      });
      std::map<std::string, std::string> roles;
      const std::map<std::string, std::string> expected = {
          {"up", "MLP_UP"}, {"up.bias", "MLP_UP"}, {"down", "MLP_DOWN"}};
      const bool plain = form == std::string("flat, added");
      for (const Op* p : g.Params()) {
        const std::string name = p->attrs.String("name");
        roles[name] = p->attrs.String("role", "-");
        const bool columns = name == "up" && transposed;
        EXPECT_EQ(p->attrs.IntList("stacked", {}), plain ? Ints() : Ints({columns ? 1 : 0, 3}));
        if (name != "up.bias") {
          const std::string by_columns = plain ? "" : "[0] [1]";
          EXPECT_EQ(RowsAndColumns(*p), name == "down" || transposed ? by_columns : "[1] [0]");
        }
      }
      EXPECT_EQ(roles, expected);
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

// Heads that also go through a matrix of each of them, as the fast weights of TTT are at first.
TEST(Roles, HeadsWithMatricesOfTheirOwnAreNoExperts) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 3, 8});
    auto heads = [&](const char* name) {
      Value* y = b.Make("matmul_nt", {x, b.P(name, {8, 8})});
      return b.Transpose(b.Reshape(y, {2, 3, 2, 4}), {0, 2, 1, 3});
    };
    Value *q = heads("q"), *k = heads("k"), *v = heads("v");
    Value* y = b.Matmul(b.Make("matmul_nt", {q, k}), v);
    y = b.Add(y, b.Matmul(q, b.P("fast", {2, 4, 4})));
    y = b.Reshape(b.Transpose(y, {0, 2, 1, 3}), {2, 3, 8});
    b.Out(b.Add(x, b.Make("matmul_nt", {y, b.P("out", {8, 8})})));
  });
  std::map<std::string, std::string> roles;
  for (const Op* p : g.Params()) roles[p->attrs.String("name")] = p->attrs.String("role", "-");
  roles.erase("fast");
  EXPECT_EQ(roles, (std::map<std::string, std::string>{
                       {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"out", "ATTENTION_OUT"}}));
}

// The weights of its experts looked up for each token, with one or several of them, as
// transformers' "batched_mm" does: each expert on its tokens, in products that have roles.
TEST(Roles, OfExpertsThatTokensLookUp) {
  for (const int64_t k : {1, 2}) {
    SCOPED_TRACE(k);
    constexpr int64_t kTokens = 6, kExperts = 3;
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {kTokens, 4});
      Value* scores = b.Softmax(b.Matmul(x, b.P("router", {4, kExperts})));
      Value* chosen =
          b.Make("top_k", {scores}, {{"axis", int64_t{1}}, {"k", k}, {"largest", true}});
      Value* ids = b.Reshape(chosen, {kTokens * k});
      Value* shares = b.Make("gather_nd", {scores, b.Reshape(chosen, {kTokens, k, 1})},
                             {{"batch_dims", int64_t{1}}});
      Value* rows = b.BroadcastTo(b.Reshape(x, {kTokens, 1, 4}), {kTokens, k, 4});
      auto looked_up = [&](const std::string& name, const Shape& shape) {
        return b.Make("gather", {b.P(name, shape), ids}, {{"axis", int64_t{0}}});
      };
      Value* up = looked_up("gate_up", {kExperts, 10, 4});  // [out, in], on the left of a column
      Value* y = b.Reshape(b.Matmul(up, b.Reshape(rows, {kTokens * k, 4, 1})), {kTokens * k, 10});
      y = b.Add(y, looked_up("gate_up.bias", {kExperts, 10}));
      Value* gate = b.Slice(y, {0, 0}, {kTokens * k, 5});
      Value* rest = b.Slice(y, {0, 5}, {kTokens * k, 10});
      y = b.Reshape(b.Mul(b.Op1("tanh", gate), rest), {kTokens * k, 1, 5});
      y = b.Reshape(b.Matmul(y, looked_up("down", {kExperts, 5, 4})), {kTokens * k, 4});
      y = b.Mul(y, b.Reshape(shares, {kTokens * k, 1}));
      b.Out(b.ReduceSum(b.Reshape(y, {kTokens, k, 4}), {1}));
    });
    for (const auto& op : g.ops()) {
      if (op->name() == "embedding" || op->name() == "gather") ADD_FAILURE() << "a lookup is left";
    }
    EXPECT_EQ(Counts(g)["matmul_rows"] + Counts(g)["matmul_rows_nt"], 2);  // of chosen rows
    std::map<std::string, std::string> roles;
    for (const Op* p : g.Params()) roles[p->attrs.String("name")] = p->attrs.String("role", "-");
    EXPECT_EQ(roles, (std::map<std::string, std::string>{{"gate_up", "MLP_UP"},
                                                         {"gate_up.bias", "MLP_UP"},
                                                         {"down", "MLP_DOWN"},
                                                         {"router", "-"}}));
  }
}

// The same in einsums, as gpt-fast has them: the weights of a token's experts side by side.
TEST(Roles, OfExpertsThatTokensLookUpSideBySide) {
  for (const bool turned : {false, true}) {
    SCOPED_TRACE(turned);
    constexpr int64_t kTokens = 6, kExperts = 4, kEach = 2;
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {kTokens, 3});
      Value* scores = b.Softmax(b.Matmul(x, b.P("router", {3, kExperts})));
      Value* ids =
          b.Make("top_k", {scores}, {{"axis", int64_t{1}}, {"k", kEach}, {"largest", true}});
      Value* shares = b.Make("gather_nd", {scores, b.Reshape(ids, {kTokens, kEach, 1})},
                             {{"batch_dims", int64_t{1}}});
      auto looked_up = [&](const std::string& name, const Shape& shape) {
        return b.Make("gather", {b.P(name, shape), ids}, {{"axis", int64_t{0}}});
      };
      Value* up = turned ? b.Transpose(looked_up("up", {kExperts, 3, 5}), {0, 2, 1, 3})
                         : b.Transpose(looked_up("up", {kExperts, 5, 3}), {0, 3, 1, 2});
      Value* y = b.Matmul(b.Reshape(x, {kTokens, 1, 3}), b.Reshape(up, {kTokens, 3, kEach * 5}));
      y = b.Add(b.Reshape(y, {kTokens, kEach, 5}), looked_up("up.bias", {kExperts, 5}));
      y = b.Reshape(b.Op1("tanh", y), {kTokens, kEach, 1, 5});
      y = b.Reshape(b.Matmul(y, looked_up("down", {kExperts, 5, 3})), {kTokens, kEach, 3});
      y = turned ? b.Matmul(b.Reshape(shares, {kTokens, 1, kEach}), y)
                 : b.Matmul(b.Transpose(y, {0, 2, 1}), b.Reshape(shares, {kTokens, kEach, 1}));
      b.Out(b.Reshape(y, {kTokens, 3}));
    });
    EXPECT_EQ(Counts(g)["embedding"], 0);
    EXPECT_EQ(Counts(g)["matmul_rows"] + Counts(g)["matmul_rows_nt"], 2);
    std::map<std::string, std::string> roles;
    for (const Op* p : g.Params()) roles[p->attrs.String("name")] = p->attrs.String("role", "-");
    EXPECT_EQ(roles,
              (std::map<std::string, std::string>{
                  {"up", "MLP_UP"}, {"up.bias", "MLP_UP"}, {"down", "MLP_DOWN"}, {"router", "-"}}));
  }
}

// Fewer rows than experts: what is looked up is less than the weights.
TEST(Roles, OfExpertsThatFewTokensLookUp) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {2, 4});
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({2}, {3, 1}));
    Value* y = b.Make("gather", {b.P("w", {5, 4, 6}), ids}, {{"axis", int64_t{0}}});
    y = b.Op1("tanh", b.Matmul(b.Reshape(x, {2, 1, 4}), y));
    y = b.Matmul(y, b.Make("gather", {b.P("down", {5, 6, 4}), ids}, {{"axis", int64_t{0}}}));
    y = b.Mul(y, b.In("shares", {2, 1, 1}));
    b.Out(b.ReduceSum(y, {1}));
  });
  EXPECT_EQ(Counts(g)["embedding"], 2);
}

// Rows that are moved, and what stands beside a dim of theirs that only has as many elements: the
// experts of the tokens are looked up, or taken in their place with the same numbers.
TEST(Experts, ThatTokensLookUpInOtherRows) {
  constexpr int64_t kExperts = 3, kWidth = 4;
  struct Rows {
    TestGraph& b;
    int64_t tokens, k;
    Value* ids;
    Value* Reversed(Value* v, int64_t dim) {
      Ints starts(v->type.rank(), 0), limits = v->type.shape, steps(v->type.rank(), 1);
      starts[dim] = limits[dim] - 1, limits[dim] = -1, steps[dim] = -1;
      return b.Make("slice", {v}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
    }
    Value* Shares() { return b.In("shares", {tokens, k, 1}); }
  };
  using Sum = std::function<Value*(Rows, Value*)>;  // of made, [tokens, k, width]
  const std::map<std::string, Sum> sums = {
      {"shares of rows", [](Rows r, Value* y) { return r.b.Mul(y, r.Shares()); }},
      {"shares of the width", [](Rows r, Value* y) { return r.b.Mul(y, r.b.P("s", {kWidth})); }},
      {"shares of k and the width",
       [](Rows r, Value* y) {
         return r.b.Mul(y, r.b.P("s", {r.k, kWidth}));
       }},
      {"shares of tokens and the width",
       [](Rows r, Value* y) {
         return r.b.Mul(y, r.b.P("s", {r.tokens, 1, kWidth}));
       }},
      {"a number for each of k",
       [](Rows r, Value* y) {
         return r.b.Mul(r.b.Add(y, r.b.P("s", {r.k, 1})), r.Shares());
       }},
      {"other rows of k", [](Rows r, Value* y) { return r.b.Mul(r.Reversed(y, 1), r.Shares()); }},
      {"other tokens", [](Rows r, Value* y) { return r.b.Mul(r.Reversed(y, 0), r.Shares()); }},
      {"tokens and k exchanged",
       [](Rows r, Value* y) {
         if (r.tokens == r.k) y = r.b.Transpose(y, {1, 0, 2});
         return r.b.Mul(y, r.Shares());
       }},
      {"a norm over k of numbers of experts", [](Rows r, Value* y) {
         Value* n = r.b.Make("gather", {r.b.P("s", {kExperts}), r.ids}, {{"axis", int64_t{0}}});
         n = r.b.Make("rms_norm", {r.b.Reshape(n, {r.tokens, r.k})}, {{"eps", 0.1}});
         return r.b.Mul(r.b.Add(y, r.b.Reshape(n, {r.tokens, r.k, 1})), r.Shares());
       }}};
  for (const auto& [name, sum] : sums) {
    for (const auto& [tokens, k] : {std::pair<int64_t, int64_t>{6, 2}, {4, 1}, {2, 2}, {4, 4}}) {
      SCOPED_TRACE(StrCat(name, ", ", tokens, " x ", k));
      Graph g = Recover([&](TestGraph& b) {
        HostTensor chosen(DType::kI64, {tokens * k});
        for (int64_t i = 0; i < tokens * k; ++i) {
          chosen.SetDouble(i, static_cast<double>(i * i % kExperts));
        }
        Value* ids = b.In("ids", std::move(chosen));
        Value* x = b.Reshape(b.In("x", {tokens, kWidth}), {tokens, 1, kWidth});
        x = b.BroadcastTo(x, {tokens, k, kWidth});
        Value* w =
            b.Make("gather", {b.P("w", {kExperts, kWidth, kWidth}), ids}, {{"axis", int64_t{0}}});
        Value* y = b.Matmul(b.Reshape(x, {tokens * k, 1, kWidth}), w);
        y = sum(Rows{b, tokens, k, ids}, b.Reshape(y, {tokens, k, kWidth}));
        b.Out(b.ReduceSum(y, {1}));
      });
      if (name == "shares of rows" && tokens * k >= kExperts) {
        EXPECT_EQ(Counts(g)["matmul_rows"], 1);
      }
    }
  }
}

}  // namespace
}  // namespace shardc::recover_testing
