// Attention and RotaryEmbedding, from opset 23 on.
#include <cmath>
#include <string>

#include "frontend/onnx/attention_util.h"

namespace shardc::onnx_import {
namespace {

// A mask over the first keys alone hides the others. One column is every key's, though.
Value* OverAllKeys(NodeContext& c, Value* mask, int64_t keys) {
  if (mask == nullptr || mask->type.rank() == 0) return mask;
  Shape rest = mask->type.shape;
  if (rest.back() <= 1 || rest.back() >= keys) return mask;
  rest.back() = keys - rest.back();
  const bool condition = mask->type.dtype == DType::kBool;
  HostTensor none(mask->type.dtype, {});
  if (!condition) none.SetDouble(0, kNegativeInfinity);
  Value* hidden = c.BroadcastTo(c.Constant(std::move(none)), std::move(rest));
  return Joined(c, {mask, hidden}, mask->type.rank() - 1);
}

// Narrows what the queries see to the node's window, and to the keys before the padding.
void Narrow(NodeContext& c, AttentionOf& a) {
  Band band{c.Int("left_window_size", -1), c.Int("right_window_size", -1)};
  if (band.whole() && !c.has_input(6)) return;
  if (a.causal) band.after = 0;
  a.causal = false;
  const size_t sequence = a.heads_first ? 2 : 1;
  const int64_t s = a.q->type.shape[sequence], t = a.k->type.shape[sequence];
  if (c.has_input(6) &&
      (IsFloat(c.input(6)->type.dtype) || c.input(6)->type.shape != Shape{a.q->type.shape[0]})) {
    c.Fail("E1303", "nonpad_kv_seqlen is not a number of keys for each sequence");
  }
  Value* keep =
      c.has_input(6) ? BandMaskOf(c, c.input(6), s, t, band) : BandMask(c, s, t, band, a.past);
  a.mask = BothMasks(c, keep, a.mask);
}

void Attention(NodeContext& c) {
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
  AttentionOf a{q, k, v, OverAllKeys(c, c.InputOrNull(3), k->type.shape[heads_first ? 2 : 1])};
  a.scale = c.Float("scale", 1 / std::sqrt(static_cast<double>(q->type.shape[3])));
  a.cap = c.Float("softcap", 0);
  a.causal = c.Flag("is_causal", false);
  a.past = PastOf(c, 4);
  a.heads_first = heads_first;
  Narrow(c, a);
  Value* o = MakeAttention(c, a);
  c.SetOutput(0, heads_first ? o : MergeHeads(c, o));
  c.SetOutput(1, heads_first ? k : SwapHeads(c, k));
  c.SetOutput(2, heads_first ? v : SwapHeads(c, v));
}

// Input i, cos or sin, at the positions of input 3.
Value* RowsOf(NodeContext& c, int i) {
  if (!c.has_input(3)) return c.input(i);
  return LookUp(c, c.input(i), c.input(3));
}

void RotaryEmbedding(NodeContext& c) {
  Value* input = c.input(0);
  int rank = input->type.rank();
  if (rank != 3 && rank != 4) c.Fail("E1303", "RotaryEmbedding needs three or four dims");
  Value* x = rank == 3 ? SplitHeads(c, input, c.Int("num_heads", 0), "num_heads") : input;
  int64_t rotated = c.Int("rotary_embedding_dim", 0);
  if (rotated == 0) rotated = x->type.shape[3];
  Rotation r = {RowsOf(c, 1), RowsOf(c, 2), rotated, c.Flag("interleaved", false)};
  c.SetOutput(0, c.Reshape(Rotate(c, x, r, rank == 4), input->type.shape));
}

}  // namespace

void AddAttentionConverters(ConverterTable& table) {
  table.insert({{"Attention", Attention}, {"RotaryEmbedding", RotaryEmbedding}});
}

}  // namespace shardc::onnx_import
