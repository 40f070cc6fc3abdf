// Attention and RotaryEmbedding, from opset 23 on.
#include <cmath>
#include <string>

#include "frontend/onnx/attention_util.h"

namespace shardc::onnx_import {
namespace {

void Attention(NodeContext& c) {
  if (c.has_input(6)) {
    c.Fail("E1301", "Attention with nonpad_kv_seqlen, a padded cache, is not supported",
           "export the model without a cache (use_cache=False)");
  }
  if (c.num_outputs() > 3 && c.OutputWanted(3))
    c.Fail("E1301", "Attention's output qk_matmul_output is not supported");
  Value *q = c.input(0), *k = c.input(1), *v = c.input(2);
  int rank = q->type.rank();
  if ((rank != 3 && rank != 4) || k->type.rank() != rank || v->type.rank() != rank) {
    c.Fail("E1303", "Attention needs q, k and v of three or of four dims");
  }
  if (rank == 3) {
    q = SplitHeads(c, q, c.Int("q_num_heads", 0), "q_num_heads");
    k = SplitHeads(c, k, c.Int("kv_num_heads", 0), "kv_num_heads");
    v = SplitHeads(c, v, c.Int("kv_num_heads", 0), "kv_num_heads");
  }
  const bool heads_first = rank == 4;
  k = AfterPast(c, 4, k, heads_first);
  v = AfterPast(c, 5, v, heads_first);
  AttentionOf a{q, k, v, c.InputOrNull(3)};
  a.scale = c.Float("scale", 1 / std::sqrt(static_cast<double>(q->type.shape[3])));
  a.cap = c.Float("softcap", 0);
  a.causal = c.Int("is_causal", 0) != 0;
  a.past = PastOf(c, 4);
  a.heads_first = heads_first;
  Value* o = MakeAttention(c, a);
  c.SetOutput(0, heads_first ? o : MergeHeads(c, o));
  c.SetOutput(1, heads_first ? k : SwapHeads(c, k));
  c.SetOutput(2, heads_first ? v : SwapHeads(c, v));
}

// Input i, cos or sin, at the positions of input 3.
Value* RowsOf(NodeContext& c, int i) {
  if (!c.has_input(3)) return c.input(i);
  return c.Make("gather", {c.input(i), c.input(3)}, {{"axis", int64_t{0}}});
}

void RotaryEmbedding(NodeContext& c) {
  Value* input = c.input(0);
  int rank = input->type.rank();
  if (rank != 3 && rank != 4) c.Fail("E1303", "RotaryEmbedding needs three or four dims");
  Value* x = rank == 3 ? SplitHeads(c, input, c.Int("num_heads", 0), "num_heads") : input;
  int64_t rotated = c.Int("rotary_embedding_dim", 0);
  if (rotated == 0) rotated = x->type.shape[3];
  Rotation r = {RowsOf(c, 1), RowsOf(c, 2), rotated, c.Int("interleaved", 0) != 0};
  c.SetOutput(0, c.Reshape(Rotate(c, x, r, rank == 4), input->type.shape));
}

}  // namespace

void AddAttentionConverters(ConverterTable& table) {
  table.insert({{"Attention", Attention}, {"RotaryEmbedding", RotaryEmbedding}});
}

}  // namespace shardc::onnx_import
