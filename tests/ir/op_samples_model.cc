#include <limits>

#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

HostTensor F(Shape shape, uint64_t seed) { return RandomFloats(std::move(shape), seed); }

void AddMatmul(SampleAdder& add) {
  add("matmul", "2d", {F({3, 5}, 80), F({5, 4}, 81)});
  add("matmul", "weight", {F({2, 3, 5}, 82), F({5, 7}, 83)});
  add("matmul", "batched", {F({2, 3, 5}, 84), F({2, 5, 4}, 85)});
  add("matmul", "broadcast batch", {F({2, 1, 3, 5}, 86), F({3, 5, 2}, 87)});
  add("matmul", "matrix with batched", {F({3, 5}, 88), F({2, 5, 4}, 89)});
  add("matmul_nt", "2d", {F({3, 5}, 90), F({4, 5}, 91)});
  add("matmul_nt", "weight", {F({2, 3, 5}, 92), F({7, 5}, 93)});
  add("matmul_nt", "batched", {F({2, 3, 5}, 94), F({2, 4, 5}, 95)});
  add("matmul_nt", "broadcast batch", {F({3, 2, 5}, 96), F({2, 1, 4, 5}, 97)});
  add("matmul_tn", "2d", {F({7, 5}, 98), F({7, 3}, 99)}, {{"batch", int64_t{0}}});
  add("matmul_tn", "weight gradient", {F({2, 3, 5}, 100), F({2, 3, 4}, 101)});
  add("matmul_tn", "batched", {F({3, 5, 2}, 102), F({3, 5, 4}, 103)}, {{"batch", int64_t{1}}});
  add("matmul_tn", "batched, two sums", {F({2, 3, 2, 5}, 104), F({2, 3, 2, 4}, 105)},
      {{"batch", int64_t{1}}});
  add("matmul", "even", {F({4, 6, 8}, 84), F({8, 4}, 85)});
  add("matmul", "even batched", {F({4, 2, 3, 8}, 84), F({4, 2, 8, 4}, 85)});
  add("matmul_nt", "even", {F({4, 6, 8}, 84), F({4, 8}, 85)});
  add("matmul_nt", "even batched", {F({8, 3, 4}, 84), F({8, 4, 4}, 85)});
  add("matmul_tn", "even", {F({4, 8, 6}, 84), F({4, 8, 4}, 85)});
  // Rows that are longer than what counts, of the left operand and of the result.
  add("matmul", "long rows", {F({2, 3, 7}, 82), F({5, 6}, 83)},
      {{"cols", int64_t{5}}, {"length", int64_t{8}}});
  add("matmul_nt", "long rows", {F({3, 5}, 82), F({7, 5}, 83)}, {{"length", int64_t{8}}});
  add("matmul_nt", "long rows, added to", {F({3, 6}, 82), F({7, 5}, 83), F({3, 7}, 106)},
      {{"cols", int64_t{5}}});
  add("matmul_tn", "long rows", {F({2, 3, 8}, 100), F({2, 3, 4}, 101)}, {{"cols", int64_t{7}}});
  add("matmul_tn", "long rows, added to", {F({6, 8}, 100), F({6, 4}, 101), F({7, 4}, 106)},
      {{"cols", int64_t{7}}});
  add("matmul", "added to", {F({2, 3, 5}, 82), F({5, 7}, 83), F({2, 3, 7}, 106)});
  add("matmul", "batched, added to", {F({2, 3, 5}, 84), F({2, 5, 4}, 85), F({2, 3, 4}, 106)});
  add("matmul_nt", "added to", {F({4, 6, 8}, 84), F({4, 8}, 85), F({4, 6, 4}, 106)});
  add("matmul_tn", "added to", {F({2, 3, 5}, 100), F({2, 3, 4}, 101), F({5, 4}, 106)});
  add("matmul_tn", "batched, added to", {F({3, 5, 2}, 102), F({3, 5, 4}, 103), F({3, 2, 4}, 106)},
      {{"batch", int64_t{1}}});
  add("matmul_tn", "even batched", {F({4, 8, 6}, 84), F({4, 8, 4}, 85)}, {{"batch", int64_t{1}}});
  add("linear", "even", {F({4, 8}, 106), F({8, 6}, 107), F({6}, 108)});
  add("linear", "", {F({2, 3, 5}, 106), F({5, 7}, 107), F({7}, 108)}, {{"nt", false}});
  add("linear", "nt", {F({2, 3, 5}, 109), F({7, 5}, 110), F({7}, 111)}, {{"nt", true}});
}

// Of matrices of several experts; an operand may be the same for all.
void AddMatmulRows(SampleAdder& add) {
  const HostTensor rows = RandomBools({3, 4}, 170), even = RandomBools({4, 6}, 171);
  const Attributes density = {{"density", 0.5}};
  add("matmul_rows", "", {F({3, 4, 5}, 172), F({3, 5, 2}, 173), rows}, density);
  add("matmul_rows", "left for all", {F({1, 4, 5}, 174), F({3, 5, 2}, 173), rows});
  add("matmul_rows", "one matrix", {F({3, 4, 5}, 172), F({5, 2}, 175), rows});
  add("matmul_rows", "2d", {F({4, 5}, 174), F({5, 2}, 175), RandomBools({4}, 176)});
  add("matmul_rows", "even", {F({4, 6, 8}, 177), F({4, 8, 4}, 178), even});
  add("matmul_rows_nt", "", {F({3, 4, 5}, 172), F({3, 2, 5}, 179), rows});
  add("matmul_rows_nt", "left for all", {F({4, 5}, 174), F({3, 2, 5}, 179), rows}, density);
  add("matmul_rows_nt", "even", {F({4, 6, 8}, 177), F({4, 4, 8}, 178), even});
  add("matmul_rows_tn", "", {F({3, 4, 5}, 172), F({3, 4, 2}, 180), rows}, density);
  add("matmul_rows_tn", "left for all", {F({1, 4, 5}, 174), F({3, 4, 2}, 180), rows});
  add("matmul_rows_tn", "right for all", {F({3, 4, 5}, 172), F({4, 2}, 181), rows});
  add("matmul_rows_tn", "added to",
      {F({3, 4, 5}, 172), F({3, 4, 2}, 180), rows, F({3, 5, 2}, 183)});
  add("matmul_rows_tn", "even", {F({4, 6, 8}, 177), F({4, 6, 4}, 182), even});
}

void AddNorms(SampleAdder& add) {
  for (int64_t axis : {-1, 0, 1}) {
    add("softmax", StrCat("axis ", axis), {F({3, 5, 2}, 112)}, {{"axis", axis}});
    add("softmax_grad", StrCat("axis ", axis), {F({3, 5, 2}, 113), F({3, 5, 2}, 114)},
        {{"axis", axis}});
  }
  Attributes eps = {{"eps", 1e-5}};
  HostTensor x = F({2, 3, 5}, 115), w = F({5}, 116), b = F({5}, 117);
  add("layer_norm", "plain", {x}, eps);
  add("layer_norm", "weight", {x, w}, eps);
  add("layer_norm", "weight and bias", {x, w, b}, eps);
  add("layer_norm", "vector", {F({5}, 118), w, b}, eps);
  add("rms_norm", "plain", {x}, eps);
  add("rms_norm", "weight", {x, w}, eps);
  add("add_layer_norm", "plain", {x, F({2, 3, 5}, 119)}, eps);
  add("add_layer_norm", "weight and bias", {x, F({2, 3, 5}, 120), w, b}, eps);
  const Attributes large_eps = {{"eps", 0.3}};
  add("layer_norm", "large eps", {x, w, b}, large_eps);
  add("rms_norm", "large eps", {x, w}, large_eps);
  add("add_layer_norm", "large eps", {x, F({2, 3, 5}, 119), w, b}, large_eps);
  HostTensor even = F({4, 8}, 125), even_w = F({8}, 126), even_b = F({8}, 127);
  add("softmax", "even", {even}, {{"axis", int64_t{-1}}});
  add("softmax", "default axis", {F({5}, 112)});
  add("softmax_grad", "even", {even, F({4, 8}, 128)}, {{"axis", int64_t{-1}}});
  add("layer_norm", "even", {even, even_w, even_b}, eps);
  add("rms_norm", "even", {even, even_w}, eps);
  add("add_layer_norm", "weight", {x, F({2, 3, 5}, 120), w}, eps);
  add("add_layer_norm", "even", {even, F({4, 8}, 120), even_w, even_b}, eps);
  HostTensor even_mean = F({4}, 129), even_rstd = RandomFloats({4}, 123, 0.5, 2);
  add("layer_norm_grad", "even", {F({4, 8}, 128), even, even_mean, even_rstd, even_w},
      {{"bias", true}});
  add("layer_norm_grad", "vector",
      {F({5}, 121), F({5}, 122), F({}, 123), HostTensor::Scalar(0.7), w}, {{"bias", true}});
  add("rms_norm_grad", "even", {F({4, 8}, 128), even, even_rstd, even_w});
  HostTensor dy = F({2, 3, 5}, 121), mean = F({2, 3}, 122);
  HostTensor rstd = RandomFloats({2, 3}, 123, 0.5, 2);
  add("layer_norm_grad", "plain", {dy, x, mean, rstd});
  add("layer_norm_grad", "weight", {dy, x, mean, rstd, w});
  add("layer_norm_grad", "weight and bias", {dy, x, mean, rstd, w}, {{"bias", true}});
  HostTensor residual = F({2, 3, 5}, 124);
  Attributes summed = {{"sums", true}}, all = {{"sums", true}, {"bias", true}};
  add("layer_norm_grad_add", "plain", {residual, dy, x, mean, rstd});
  add("layer_norm_grad_add", "weight", {residual, dy, x, mean, rstd, w}, summed);
  add("layer_norm_grad_add", "weight and bias", {residual, dy, x, mean, rstd, w}, all);
  add("rms_norm_grad_add", "plain", {residual, dy, x, rstd}, summed);
  add("rms_norm_grad_add", "weight", {residual, dy, x, rstd, w});
  add("layer_norm_grad_add", "even",
      {F({4, 8}, 124), F({4, 8}, 128), even, even_mean, even_rstd, even_w}, all);
  add("rms_norm_grad_add", "even", {F({4, 8}, 124), F({4, 8}, 128), even, even_rstd, even_w},
      summed);
  add("rms_norm_grad", "plain", {dy, x, rstd});
  add("rms_norm_grad", "weight", {dy, x, rstd, w});
  const Attributes y = {{"y", ""}}, all_and_y = {{"sums", true}, {"bias", true}, {"y", ""}};
  add("layer_norm_grad", "plain, y", {dy, x, mean, rstd}, y);
  add("layer_norm_grad", "weight and bias, y", {dy, x, mean, rstd, w, b},
      {{"bias", true}, {"y", ""}});
  add("layer_norm_grad", "even, y", {F({4, 8}, 128), even, even_mean, even_rstd, even_w, even_b},
      {{"bias", true}, {"y", ""}});
  add("layer_norm_grad_add", "weight and bias, y", {residual, dy, x, mean, rstd, w, b}, all_and_y);
  add("layer_norm_grad_add", "weight, y", {residual, dy, x, mean, rstd, w}, {{"y", ""}});
  add("rms_norm_grad", "weight, y", {dy, x, rstd, w}, y);
  add("rms_norm_grad_add", "plain, y", {residual, dy, x, rstd}, {{"sums", true}, {"y", ""}});
}

// The attributes of one that drops, and its last operand.
Attributes Dropping(Attributes attrs, Attributes more) {
  attrs.Set("ratio", 0.4);
  attrs.Set("stream", int64_t{2});
  for (const auto& [name, value] : more.entries()) attrs.Set(name, value);
  return attrs;
}
HostTensor Step() { return HostTensor::Scalar(int64_t{6}); }

void AddPackedAttention(SampleAdder& add, std::string what, Shape o, bool causal,
                        bool drops = false) {
  Shape all = o;
  all[2] *= 3;
  Attributes attrs = {{"scale", 0.7}, {"causal", causal}};
  HostTensor x = F(all, 130);
  std::vector<HostTensor> forward = {x}, backward = {F(o, 133), x, F(o, 134),
                                                     RandomFloats({o[0], o[2], o[1]}, 135, 0.5, 2)};
  if (drops) {
    attrs = Dropping(attrs, {});
    forward.push_back(Step());
    backward.push_back(Step());
  }
  add("packed_attention", what, std::move(forward), attrs);
  add("packed_attention_grad", what, std::move(backward), attrs);
}

struct AttentionSizes {
  int64_t b, hq, hkv, s, t, d, dv;
};

void AddAttention(SampleAdder& add, std::string what, AttentionSizes z, bool causal,
                  bool heads_first, std::vector<HostTensor> mask = {},
                  const Attributes* dropping = nullptr, const Attributes& part = {}) {
  auto shape = [&](int64_t heads, int64_t rows, int64_t width) {
    return heads_first ? Shape{z.b, heads, rows, width} : Shape{z.b, rows, heads, width};
  };
  Attributes attrs = {
      {"scale", 0.7}, {"causal", causal}, {"layout", std::string(heads_first ? "bhsd" : "bshd")}};
  for (const auto& [name, value] : part.entries()) attrs.Set(name, value);
  std::vector<HostTensor> forward = {F(shape(z.hq, z.s, z.d), 130), F(shape(z.hkv, z.t, z.d), 131),
                                     F(shape(z.hkv, z.t, z.dv), 132)};
  Shape out = shape(z.hq, z.s, z.dv);
  std::vector<HostTensor> backward = {F(out, 133)};
  backward.insert(backward.end(), forward.begin(), forward.end());
  backward.push_back(F(out, 134));
  backward.push_back(RandomFloats({z.b, z.hq, z.s}, 135, 0.5, 2));
  for (const HostTensor& m : mask) {
    forward.push_back(m);
    backward.push_back(m);
  }
  std::vector<int> fixed;
  if (!mask.empty()) fixed = {3};
  if (dropping) {
    attrs = Dropping(attrs, *dropping);
    forward.push_back(Step());
    backward.push_back(Step());
  }
  // The log-sum-exp of no key is minus infinity.
  const bool hides = !mask.empty() && mask[0].dtype() == DType::kBool;
  const bool sees = !hides && what != "causal, more queries" && what != "causal, even part";
  const auto results = sees ? std::vector<int>() : std::vector<int>{0};
  add("attention", what, std::move(forward), attrs, results, fixed);
  add("attention_grad", what, std::move(backward), attrs);
}

void AddAttentions(SampleAdder& add) {
  AddPackedAttention(add, "plain", {2, 4, 3, 2}, false);
  AddPackedAttention(add, "causal", {2, 5, 8, 3}, true);
  AddPackedAttention(add, "one head", {4, 3, 1, 2}, true);
  AddAttention(add, "plain", {2, 3, 3, 4, 5, 2, 2}, false, true);
  AddAttention(add, "bshd, dv", {2, 3, 3, 4, 5, 2, 3}, false, false);
  AddAttention(add, "causal", {2, 2, 2, 5, 5, 3, 3}, true, true);
  AddAttention(add, "causal with past", {1, 3, 3, 3, 7, 2, 2}, true, false);
  // The first two queries see no key.
  AddAttention(add, "causal, more queries", {2, 2, 2, 5, 3, 2, 2}, true, true);
  const Attributes later = {{"origin", Ints{0, 0, 2, 0}}, {"whole", Ints{2, 3, 7, 9}}};
  AddAttention(add, "causal, part", {2, 3, 3, 4, 9, 2, 2}, true, true, {}, nullptr, later);
  const Attributes first = {{"origin", Ints{1, 0, 0, 0}}, {"whole", Ints{3, 4, 16, 10}}};
  AddAttention(add, "causal, even part", {2, 4, 2, 8, 10, 2, 2}, true, false, {}, nullptr, first);
  AddAttention(add, "groups", {2, 6, 2, 3, 4, 2, 2}, false, true);
  AddAttention(add, "groups bshd", {1, 10, 5, 3, 4, 2, 3}, true, false);
  AddAttention(add, "one kv head", {2, 5, 1, 3, 4, 2, 2}, false, false);
  AddAttention(add, "even", {4, 8, 4, 4, 6, 2, 2}, false, true);
  AddAttention(add, "even bshd", {2, 8, 2, 8, 8, 4, 4}, true, false);
  add("attention", "defaults", {F({1, 2, 3, 2}, 130), F({1, 2, 3, 2}, 131), F({1, 2, 3, 2}, 132)},
      {{"scale", 0.5}});
  AttentionSizes z = {2, 6, 2, 3, 4, 2, 2};
  AddAttention(add, "float mask", z, false, true, {F({2, 6, 3, 4}, 136)});
  AddAttention(add, "mask of heads", z, true, false, {F({1, 6, 1, 4}, 137)});
  AddAttention(add, "mask of keys", z, false, true, {F({2, 1, 1, 4}, 138)});
  AddAttention(add, "bool mask", z, false, true, {RandomBools({3, 4}, 139)});
  HostTensor hidden(DType::kBool, {1, 1, 3, 4});
  for (int64_t i = 4; i < 12; ++i) hidden.SetDouble(i, i % 3 != 0);
  AddAttention(add, "a row without keys", z, false, false, {hidden});
  const Attributes whole, seed = {{"seed", int64_t{1} << 40}, {"ratio", 0.5}};
  AddAttention(add, "dropout", {2, 6, 2, 3, 4, 2, 2}, false, true, {}, &whole);
  AddAttention(add, "dropout, even", {4, 8, 4, 4, 6, 2, 2}, false, true, {}, &seed);
  AddAttention(add, "dropout, even bshd", {2, 8, 2, 8, 8, 4, 4}, true, false, {}, &whole);
  AddAttention(add, "dropout, dv", {1, 10, 5, 3, 5, 2, 3}, true, false, {}, &seed);
  AddAttention(add, "dropout and mask", z, false, false, {F({2, 1, 3, 4}, 136)}, &whole);
  const Attributes part = {{"origin", Ints{1, 2, 3, 0}}, {"whole", Ints{4, 9, 7, 6}}};
  AddAttention(add, "dropout, part", {2, 3, 3, 4, 6, 2, 2}, false, true, {}, &part);
  AddPackedAttention(add, "dropout", {2, 5, 8, 3}, true, true);
  AddPackedAttention(add, "dropout, even", {4, 4, 4, 2}, false, true);
}

// Tables that broadcast, in front or in between; a part of the row; rows that no two elements fit.
void AddRotaries(SampleAdder& add) {
  const Attributes neighbours = {{"interleaved", true}}, back = {{"inverse", true}};
  add("rotary", "", {F({2, 3, 4, 6}, 170), F({3, 1, 3}, 171), F({3, 1, 3}, 172)});
  add("rotary", "heads first", {F({2, 4, 3, 6}, 170), F({3, 3}, 171), F({3, 3}, 172)});
  add("rotary", "of each example", {F({2, 4, 3, 8}, 170), F({2, 1, 3, 4}, 171), F({1, 3, 4}, 172)});
  add("rotary", "of each head", {F({2, 3, 4, 4}, 170), F({2, 3, 4, 2}, 171), F({2, 3, 4, 2}, 172)});
  add("rotary", "part", {F({2, 3, 2, 7}, 170), F({2, 3, 1, 2}, 171), F({2, 3, 1, 2}, 172)});
  add("rotary", "vector", {F({4}, 170), F({2}, 171), F({2}, 172)}, back);
  add("rotary", "no pairs", {F({2, 3}, 170), F({2, 0}, 171), F({2, 0}, 172)});
  add("rotary", "neighbours", {F({2, 3, 4, 6}, 170), F({3, 1, 3}, 171), F({3, 1, 3}, 172)},
      neighbours);
  Attributes both = neighbours;
  both.Set("inverse", true);
  add("rotary", "neighbours, part", {F({2, 3, 2, 7}, 170), F({2, 1, 1, 2}, 171), F({3, 1, 2}, 172)},
      both);
  add("rotary", "even", {F({4, 8, 4, 16}, 170), F({8, 1, 8}, 171), F({8, 1, 8}, 172)}, back);
  add("rotary", "even part", {F({4, 8, 4, 16}, 170), F({4, 8, 1, 4}, 171), F({4, 8, 1, 4}, 172)},
      neighbours);
}

void AddLosses(SampleAdder& add) {
  HostTensor logits = F({2, 3, 7}, 140), labels = RandomInts({2, 3}, 141, 0, 7);
  HostTensor ignored = labels;
  ignored.SetDouble(1, -100);
  ignored.SetDouble(4, -100);
  HostTensor even = F({4, 8}, 147), even_labels = As(RandomInts({4}, 148, 0, 8), DType::kI32);
  HostTensor even_rows = F({4}, 149);
  add("cross_entropy", "even", {even, even_labels}, {{"label_smoothing", 0.1}});
  add("cross_entropy_grad", "even",
      {even_rows, even, even_labels, RandomFloats({4}, 143, 1.5, 2.5)}, {{"label_smoothing", 0.1}});
  add("softmax_stats", "even", {even, even_labels, even_rows}, {{"sum_logits", true}});
  add("cross_entropy", "i32 labels", {even, even_labels});
  add("cross_entropy_grad", "i32 labels",
      {even_rows, even, even_labels, RandomFloats({4}, 143, 1.5, 2.5)});
  add("cross_entropy_with_grad", "i32 labels", {even_rows, even, even_labels});
  add("softmax_stats", "i32 labels", {even, even_labels, even_rows});
  HostTensor rows = F({2, 3}, 142), lse = RandomFloats({2, 3}, 143, 1.5, 2.5);
  HostTensor sum_exp = RandomFloats({2, 3}, 144, 0.5, 4);
  Attributes plain = {{"ignore_index", int64_t{-100}}, {"label_smoothing", 0.0}};
  Attributes smooth = {{"ignore_index", int64_t{-100}}, {"label_smoothing", 0.15}};
  Attributes combine = plain, smooth_combine = smooth;
  combine.Set("classes", int64_t{7});
  smooth_combine.Set("classes", int64_t{7});
  add("cross_entropy", "", {logits, labels});
  add("cross_entropy", "ignored", {logits, ignored}, plain);
  add("cross_entropy", "smooth", {logits, ignored}, smooth);
  const Attributes first_class = {{"ignore_index", int64_t{0}}};  // one of the classes is ignored
  const HostTensor some = RandomInts({2, 3}, 147, 0, 2);
  add("cross_entropy", "a class ignored", {logits, some}, first_class);
  add("cross_entropy_grad", "a class ignored", {rows, logits, some, lse}, first_class);
  add("cross_entropy_with_grad", "a class ignored", {rows, logits, some}, first_class);
  add("cross_entropy", "vector", {F({7}, 145), RandomInts({}, 146, 0, 7)}, plain);
  add("cross_entropy_grad", "", {rows, logits, labels, lse});
  add("cross_entropy_grad", "ignored", {rows, logits, ignored, lse}, plain);
  add("cross_entropy_grad", "smooth", {rows, logits, ignored, lse}, smooth);
  add("softmax_stats", "", {logits, labels, rows});
  add("softmax_stats", "ignored", {logits, ignored, rows}, {{"ignore_index", int64_t{-100}}});
  add("softmax_stats", "sum", {logits, ignored, rows}, {{"sum_logits", true}});
  add("cross_entropy_with_grad", "", {rows, logits, labels});
  add("cross_entropy_with_grad", "ignored", {rows, logits, ignored}, plain);
  add("cross_entropy_with_grad", "smooth", {rows, logits, ignored}, smooth);
  smooth.Set("classes", int64_t{7});
  plain.Set("classes", int64_t{7});
  add("cross_entropy_with_grad", "long rows", {rows, F({2, 3, 10}, 140), ignored}, plain);
  add("cross_entropy_with_grad", "long rows, smooth", {rows, F({2, 3, 8}, 140), ignored}, smooth);
  add("cross_entropy_combine", "ignored", {rows, sum_exp, lse, ignored}, combine);
  add("cross_entropy_combine", "smooth", {rows, sum_exp, lse, rows, ignored}, smooth_combine);
}

}  // namespace

void AddModelSamples(std::vector<OpSample>& samples) {
  SampleAdder add(samples);
  AddMatmul(add);
  AddMatmulRows(add);
  AddNorms(add);
  AddAttentions(add);
  AddRotaries(add);
  AddLosses(add);
}

void AddStepSamples(std::vector<OpSample>& samples) {
  SampleAdder add(samples);
  HostTensor w = F({3, 5}, 150), g = F({3, 5}, 151), m = F({3, 5}, 152);
  HostTensor v = RandomFloats({3, 5}, 153, 0.1, 1), scale = HostTensor::Scalar(0.4);
  HostTensor lr = HostTensor::Scalar(0.01);
  HostTensor first = HostTensor::Scalar(int64_t{1}), third = HostTensor::Scalar(3.0);
  Attributes adamw = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  add("adamw", "first step", {w, g, m, v, first, scale, lr}, adamw);
  add("adamw", "third step", {w, g, m, v, third, scale, lr}, adamw);
  Attributes large_eps = adamw;
  large_eps.Set("eps", 0.2);
  add("adamw", "large eps", {w, g, m, v, third, scale, lr}, large_eps);
  const HostTensor none = HostTensor::Scalar(std::numeric_limits<double>::quiet_NaN());
  add("adamw", "no step", {w, g, m, v, first, none, lr}, adamw);
  HostTensor large = F({8, 6}, 150), third_int = HostTensor::Scalar(int64_t{3});
  add("adamw", "even",
      {large, F({8, 6}, 151), F({8, 6}, 152), RandomFloats({8, 6}, 153, 0.1, 1), third_int, scale,
       lr},
      adamw);
  auto sgd = [](double momentum, bool nesterov) {
    return Attributes{{"momentum", momentum},
                      {"dampening", nesterov ? 0.0 : 0.2},
                      {"nesterov", nesterov},
                      {"weight_decay", 0.1}};
  };
  add("sgd", "plain", {w, g, scale, lr}, sgd(0, false));
  add("sgd", "even", {large, F({8, 6}, 151), scale, lr}, sgd(0, false));
  add("sgd", "no step", {w, g, none, lr, m, third}, sgd(0.9, false));
  add("sgd", "first step", {w, g, scale, lr, m, first}, sgd(0.9, false));
  add("sgd", "momentum", {w, g, scale, lr, m, third}, sgd(0.9, false));
  add("sgd", "nesterov", {w, g, scale, lr, m, third}, sgd(0.9, true));
  add("sgd", "counted", {w, g, scale, lr, m, third_int}, sgd(0.9, true));

  const HostTensor steps = HostTensor::Scalar(int64_t{5});
  add("dropout", "", {F({3, 7, 5}, 160), steps}, {{"ratio", 0.3}});
  add("dropout", "even", {F({4, 8}, 161), As(steps, DType::kI32)},
      {{"ratio", 0.5}, {"seed", int64_t{1} << 40}, {"stream", int64_t{3}}});
  add("dropout", "part", {F({2, 3, 4}, 162), steps},
      {{"ratio", 0.5}, {"origin", Ints{1, 0, 2}}, {"whole", Ints{5, 3, 9}}});
  add("dropout", "nothing", {F({3, 4}, 163), steps}, {{"ratio", 1.0}});
  add("dropout", "scalar", {F({}, 164), steps}, {{"ratio", 0.1}});
  add("random_uniform", "", {F({3, 7, 5}, 165), steps}, {});
  add("random_uniform", "even", {F({4, 8}, 166), As(steps, DType::kI32)},
      {{"seed", int64_t{1} << 40}, {"stream", int64_t{3}}});
  add("random_uniform", "part", {F({2, 3, 4}, 167), steps},
      {{"origin", Ints{1, 0, 2}}, {"whole", Ints{5, 3, 9}}});
  add("random_uniform", "scalar", {F({}, 168), steps}, {});

  Strings axes = {"x"};
  add("reshard", "", {w});
  add("sharding_constraint", "", {w}, {{"axes", axes}});
  add("all_reduce", "two", {w, m}, {{"axes", axes}, {"reduce", std::string("max")}});
  add("all_gather", "", {w}, {{"axes", axes}, {"dim", int64_t{1}}});
  add("reduce_scatter", "", {w}, {{"axes", axes}, {"dim", int64_t{0}}});
  add("send_recv", "", {w}, {{"axes", axes}, {"from", int64_t{0}}, {"to", int64_t{1}}});
  add("all_to_all", "", {w},
      {{"axes", axes}, {"split_dim", int64_t{0}}, {"concat_dim", int64_t{1}}});
  add("local_slice", "", {w}, {{"axes", axes}, {"dim", int64_t{0}}});
  add("zero_padding", "", {w});
}

}  // namespace shardc::testing
