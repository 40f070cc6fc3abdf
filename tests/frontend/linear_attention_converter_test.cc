// LinearAttention and CausalConvWithState: what the node tests of tests/conformance, of a few
// tokens each, do not reach.
#include <cmath>
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

struct Sizes {
  int64_t b, tokens, heads, group, d_k, d_v;
  int64_t decays = 0;  // features of each head that have a decay, 0: none do
  int64_t betas = 0;   // 0: no delta rule
  int64_t chunk = 64;
  bool past = false;
};

class LinearAttentionConverter : public ConverterTest {
 protected:
  NodeProto& Make(const Sizes& s) {
    Restart(27);
    Input("q", {s.b, s.tokens, s.heads * s.group * s.d_k}, 1);
    Input("k", {s.b, s.tokens, s.heads * s.d_k}, 100);
    Input("v", {s.b, s.tokens, s.heads * s.d_v}, 200);
    if (s.past) Input("past", {s.b, s.heads, s.d_k, s.d_v}, 300);
    if (s.decays > 0) Input("decay", {s.b, s.tokens, s.heads * s.decays}, 400);
    if (s.betas > 0) Input("beta", {s.b, s.tokens, s.betas}, 500);
    NodeProto& node = Node("LinearAttention",
                           {"q", "k", "v", s.past ? "past" : "", s.decays > 0 ? "decay" : "",
                            s.betas > 0 ? "beta" : ""},
                           {"y", "state"});
    const std::string rule = s.betas > 0 ? "delta" : "linear";
    SetString(node, "update_rule", s.decays == 0 ? rule : (s.betas > 0 ? "gated_delta" : "gated"));
    SetInt(node, "q_num_heads", s.heads * s.group);
    SetInt(node, "kv_num_heads", s.heads);
    SetInt(node, "chunk_size", s.chunk);
    return node;
  }

  double At(const std::string& name, int64_t row, int64_t column) const {
    const HostTensor& t = inputs_.at(name);
    return t.AsDouble(row * t.shape().back() + column);
  }

  // As the specification says it, token by token.
  void ExpectRecurrence(const Sizes& s) {
    const std::vector<HostTensor> got = Evaluate({"y", "state"});
    ASSERT_EQ(got[0].shape(), (Shape{s.b, s.tokens, s.heads * s.group * s.d_v}));
    ASSERT_EQ(got[1].shape(), (Shape{s.b, s.heads, s.d_k, s.d_v}));
    for (int64_t bh = 0; bh < s.b * s.heads; ++bh) {
      const int64_t b = bh / s.heads, h = bh % s.heads;
      std::vector<double> state(s.d_k * s.d_v, 0.0);
      for (int64_t i = 0; s.past && i < s.d_k * s.d_v; ++i) {
        state[i] = inputs_.at("past").AsDouble(bh * s.d_k * s.d_v + i);
      }
      for (int64_t t = 0; t < s.tokens; ++t) Step(s, b, h, b * s.tokens + t, state, got[0]);
      for (int64_t i = 0; i < s.d_k * s.d_v; ++i) {
        ASSERT_NEAR(got[1].AsDouble(bh * s.d_k * s.d_v + i), state[i], 1e-9);
      }
    }
  }

  void Step(const Sizes& s, int64_t b, int64_t h, int64_t row, std::vector<double>& state,
            const HostTensor& got) {
    auto k = [&](int64_t d) { return At("k", row, h * s.d_k + d); };
    for (int64_t d = 0; s.decays > 0 && d < s.d_k; ++d) {
      const double g = At("decay", row, h * s.decays + (s.decays > 1 ? d : 0));
      for (int64_t e = 0; e < s.d_v; ++e) state[d * s.d_v + e] *= std::exp(g);
    }
    for (int64_t e = 0; e < s.d_v; ++e) {
      double u = At("v", row, h * s.d_v + e);
      if (s.betas > 0) {
        for (int64_t d = 0; d < s.d_k; ++d) u -= state[d * s.d_v + e] * k(d);
        u *= At("beta", row, s.betas > 1 ? h : 0);
      }
      for (int64_t d = 0; d < s.d_k; ++d) state[d * s.d_v + e] += k(d) * u;
      for (int64_t g = h * s.group; g < (h + 1) * s.group; ++g) {
        double o = 0;
        for (int64_t d = 0; d < s.d_k; ++d) {
          o += At("q", row, g * s.d_k + d) * state[d * s.d_v + e];
        }
        const int64_t place = row * s.heads * s.group * s.d_v + g * s.d_v + e;
        ASSERT_NEAR(got.AsDouble(place), o / std::sqrt(s.d_k), 1e-9) << b << " " << h << " " << row;
      }
    }
  }
};

TEST_F(LinearAttentionConverter, ChunksAreTheRecurrence) {
  for (const int64_t decays : {0, 1, 3}) {
    for (const int64_t betas : {0, 1, 2}) {
      for (const bool past : {false, true}) {
        // Of one chunk, of equal ones, of a last one that lacks tokens.
        for (const auto& [tokens, chunk] : {std::pair{9, 64}, {8, 4}, {13, 4}, {5, 1}}) {
          const Sizes s{2, tokens, 2, 2, 3, 5, decays, betas, chunk, past};
          SCOPED_TRACE(StrCat(decays, " ", betas, " ", past, " ", tokens, " ", chunk));
          Make(s);
          // Keys of a delta rule are no longer than 1, so that the state does not grow.
          HostTensor& k = inputs_["k"];
          for (int64_t i = 0; i < k.num_elements(); ++i) k.SetDouble(i, k.AsDouble(i) / 2);
          ExpectRecurrence(s);
        }
      }
    }
  }
}

// Where all keys of a chunk are the same, the powers of L are large, and their series cancels.
TEST_F(LinearAttentionConverter, EqualKeys) {
  const Sizes s{1, 64, 1, 1, 2, 2, 0, 1};
  Make(s);
  for (int64_t t = 0; t < s.tokens; ++t) {
    inputs_["k"].SetDouble(2 * t, 0.6);
    inputs_["k"].SetDouble(2 * t + 1, 0.8);
    inputs_["beta"].SetDouble(t, 1);
  }
  ExpectRecurrence(s);
}

// exp(-G) overflows, exp(G_i - G_j) does not.
TEST_F(LinearAttentionConverter, StrongDecays) {
  for (const int64_t decays : {1, 2}) {
    const Sizes s{1, 40, 1, 1, 2, 2, decays, 1};
    Make(s);
    HostTensor& g = inputs_["decay"];
    for (int64_t i = 0; i < g.num_elements(); ++i) g.SetDouble(i, -60 * std::abs(g.AsDouble(i)));
    ExpectRecurrence(s);
  }
}

TEST_F(LinearAttentionConverter, WhatDoesNotFitIsRefused) {
  const Sizes s{.b = 2, .tokens = 3, .heads = 2, .group = 2, .d_k = 3, .d_v = 5};
  Make(s).mutable_attribute(0)->set_s("fast");
  ExpectRefused("E1303", "LinearAttention has no update_rule \"fast\"");
  Make({2, 3, 2, 2, 3, 5, 1}).mutable_input()->DeleteSubrange(4, 2);
  ExpectRefused("E1303", "update_rule \"gated\" of LinearAttention needs input decay");
  Make(s).set_input(5, "v");
  ExpectRefused("E1303", "update_rule \"linear\" of LinearAttention has no input beta");
  Make(s).mutable_attribute(1)->set_i(0);
  ExpectRefused("E1303", "LinearAttention has 0 heads (q_num_heads)");
  Make(s).mutable_attribute(1)->set_i(3);
  ExpectRefused("E1303", "3 heads of queries are no multiple of the 2 of keys and values");
  Make(s).set_input(1, "v");
  ExpectRefused("E1303", "the keys of LinearAttention have 10 features; 2 heads of as many as");
  Make({2, 3, 2, 2, 3, 5, 2});
  ExpectRefused("E1303",
                "input decay of LinearAttention has 4 features for 2 heads; it has to "
                "have 2 or 6");
  Make({2, 3, 2, 2, 3, 5, 0, 3});
  ExpectRefused("E1303", "input beta of LinearAttention has 3 features for 2 heads");
  Make(s);
  Input("short", {2, 2, 6});
  model_.graph.mutable_node(0)->set_input(1, "short");
  ExpectRefused("E1303",
                "input 1 of LinearAttention has shape [2, 2, 6]; it has to be [2, 3, "
                "features]");
  Make(s);
  Input("past", {2, 2, 5, 3});
  model_.graph.mutable_node(0)->set_input(3, "past");
  ExpectRefused("E1303",
                "past_state of LinearAttention has shape [2, 2, 5, 3]; it has to be [2, "
                "2, 3, 5]");
  Make({.b = 1, .tokens = 1025, .heads = 1, .group = 1, .d_k = 1, .d_v = 1, .chunk = 1});
  ExpectRefused("E1301", "LinearAttention over 1025 tokens in chunks of 1 is not supported");
}

class CausalConvConverter : public ConverterTest {
 protected:
  NodeProto& Make(const Shape& x, const Shape& weight) {
    Restart(27);
    Input("x", x);
    Input("w", weight);
    return Node("CausalConvWithState", {"x", "w"}, {"y", "state"});
  }
};

// It is computed in f32, with the bias, of which there is no node test in halves.
TEST_F(CausalConvConverter, BiasOfHalves) {
  Restart(27);
  auto half = [&](const std::string& name, const Shape& shape) {
    model_.Input(name, Dims(shape), TensorProto::FLOAT16);
    inputs_[name] = Numbers(shape, DType::kF16);
  };
  half("x", {1, 2, 3});
  half("w", {2, 1, 2});
  half("b", {2});
  Node("CausalConvWithState", {"x", "w", "b"}, {"y", "state"});
  const std::vector<HostTensor> got = Evaluate({"y", "state"});
  ASSERT_EQ(got[0].dtype(), DType::kF16);
  for (int64_t channel = 0; channel < 2; ++channel) {
    auto at = [&](const char* name, int64_t i) { return inputs_.at(name).AsDouble(i); };
    for (int64_t i = 0; i < 3; ++i) {
      const double before = i == 0 ? 0 : at("x", channel * 3 + i - 1);
      const double y = at("w", 2 * channel) * before +
                       at("w", 2 * channel + 1) * at("x", channel * 3 + i) + at("b", channel);
      EXPECT_NEAR(got[0].AsDouble(channel * 3 + i), y, std::abs(y) / 2048 + 1e-6);  // rounded once
    }
    EXPECT_EQ(got[1].AsDouble(channel), at("x", channel * 3 + 2));
  }
}

TEST_F(CausalConvConverter, WhatDoesNotFitIsRefused) {
  Make({1, 2, 3}, {2, 2, 2});
  ExpectRefused("E1303",
                "the weight of CausalConvWithState has shape [2, 2, 2]; it has to be [2, 1, k]");
  SetString(Make({1, 2, 3}, {2, 1, 2}), "activation", "relu");
  ExpectRefused("E1303", "CausalConvWithState has no activation \"relu\"");
  NodeProto& node = Make({1, 2, 3}, {2, 1, 2});
  node.add_input("");
  node.add_input("x");
  ExpectRefused("E1303", "past_state of CausalConvWithState holds [1, 2, 3]");
}

}  // namespace
}  // namespace shardc::import_testing
