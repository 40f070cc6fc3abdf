// GPT models made from a config: the same graph that an imported HF GPT-2 gives, with weights drawn
// from a counter-based generator.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace shardc {

enum class GptActivation : uint8_t { kGeluTanh, kGelu, kRelu, kSilu, kSwiGlu };
enum class GptNorm : uint8_t { kLayerNorm, kRmsNorm };
enum class GptPositions : uint8_t { kLearned, kRope, kNone };

struct GptConfig {
  std::string name = "gpt";
  int64_t layers = 2, hidden = 64, heads = 4, vocab = 257;
  int64_t kv_heads = 0;         // 0: heads; else a divisor of heads
  int64_t ffn = 0;              // width of the MLP; 0: 4 * hidden
  int64_t max_positions = 128;  // rows of the position table
  int64_t batch = 1, seq = 128;
  GptActivation activation = GptActivation::kGeluTanh;
  GptNorm norm = GptNorm::kLayerNorm;
  GptPositions positions = GptPositions::kLearned;
  bool tied = true;  // the head is the token embedding
  bool bias = true;  // of all Linears but the head, and of the layer norms
  bool fused_qkv = true;
  DType dtype = DType::kF32;
  double init_std = 0.02, eps = 1e-5, rope_theta = 10000;
  uint64_t seed = 0;  // of the weights
  // Ratios of what training drops: of the embeddings' sum and of each branch before it is added to
  // the residual stream; and of attention's probabilities.
  double dropout = 0, attention_dropout = 0;

  int64_t head_dim() const { return hidden / heads; }
  int64_t kv_width() const { return kv_heads * head_dim(); }
};

// "builtin:NAME" (NAME of BuiltinNames()) or "builtin:gpt?key=value,...": keys layers, hidden,
// heads, vocab, kv_heads, ffn, seq, batch, max_positions, activation, norm, positions, tied, bias,
// qkv, dtype, init_std, eps, rope_theta, seed, dropout, attention_dropout. NAME may be followed by
// ?key=value,... too. `seq` is also max_positions unless that is given. `bind` has values for
// "batch" and "seq", which win. The config comes back complete (no zeros). Throws Diagnostic E1501
// (unknown name, key, symbol or value, with suggestions), E1502 (sizes that do not fit).
GptConfig ParseBuiltin(std::string_view text, const std::map<std::string, int64_t>& bind = {});
bool IsBuiltin(std::string_view text);  // begins with "builtin:"
const std::vector<std::string>& BuiltinNames();

// Input "input_ids" i64[batch, seq], output "logits" [batch, seq, vocab]. Parameters are named as
// in HF GPT-2 ("transformer.h.0.attn.c_attn.weight" [in, out]; the head "lm_head.weight" [vocab,
// hidden]), with role and part; separate projections are attn.{q,k,v}_proj, a gate mlp.c_gate.
// `site` of an op is its module. Weights as GPT-2 draws them: N(0, init_std), those that end a
// residual branch divided by sqrt(2 * layers); biases 0, norm weights 1. Sources hold no data: a
// model of any size costs nothing until it is read.
Graph BuildGpt(const GptConfig& config);

}  // namespace shardc
