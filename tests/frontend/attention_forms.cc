#include "tests/frontend/attention_forms.h"

#include <cmath>

#include "frontend/dropout.h"

namespace shardc::recover_testing {
namespace {

void Attention(TestGraph& b, const Form& f) {
  auto heads = [&](const std::string& name, int64_t n) {
    return b.Reshape(b.In(name, {kB, kS, n * kD}), {kB, kS, n, kD});
  };
  auto expand = [&](Value* x) {  // [b, kv, s, d] -> [b, heads, s, d]
    int64_t kv = x->type.shape[1];
    if (kv == kHeads) return x;
    if (f.k == KForm::kOneHead) return b.BroadcastTo(x, {kB, kHeads, kS, kD});
    x = b.BroadcastTo(b.Reshape(x, {kB, kv, 1, kS, kD}), {kB, kv, kHeads / kv, kS, kD});
    return b.Reshape(x, {kB, kHeads, kS, kD});
  };
  auto expand_last = [&](Value* x) {  // [b, s, kv, d] -> [b, s, heads, d]
    int64_t kv = x->type.shape[2], times = kHeads / kv;
    if (f.repeat == Form::kHeadsFirst) return x;
    if (f.repeat == Form::kTile) {
      x = b.Reshape(x, {1, kB, 1, kS, 1, kv, 1, 1, 1, kD});
      x = b.BroadcastTo(x, {1, kB, 1, kS, 1, kv, times, 1, 1, kD});
    } else if (f.repeat == Form::kStack) {
      x = b.Reshape(x, {kB, kS, kv, 1, kD});
      x = b.Make("concat", std::vector<Value*>(static_cast<size_t>(times), x),
                 {{"axis", int64_t{-2}}});
    } else {
      x = b.BroadcastTo(b.Reshape(x, {kB, kS, kv, 1, kD}), {kB, kS, kv, times, kD});
    }
    return b.Reshape(x, {kB, kS, kHeads, kD});
  };
  Value* q = b.Transpose(heads("q", kHeads), {0, 2, 1, 3});
  Value* k = expand_last(heads("k", f.heads_kv));
  Value* v = expand(b.Transpose(expand_last(heads("v", f.heads_kv)), {0, 2, 1, 3}));
  if (f.rotate) {  // rotary positions, the halves by slice and by split
    Value* table = b.Constant(Random("cos", {kS, kD}));
    Value* low = b.Slice(q, {0, 0, 0, 0}, {kB, kHeads, kS, kD / 2});
    Op* halves = b.Create("split", {q}, {{"axis", int64_t{3}}, {"sizes", Ints{kD / 2, kD / 2}}});
    Value* turned = b.Make("concat", {b.Neg(halves->result(1)), low}, {{"axis", int64_t{3}}});
    Value* sin = b.Constant(Random("sin", {1, 1, kS, kD}));
    q = b.Add(b.Mul(q, table), b.Mul(sin, turned));
    q = b.Create("rms_norm", {q, b.P("q_norm", {kD})}, {{"eps", 1e-5}})->result();
  }
  Value* scores = nullptr;
  double root = std::sqrt(std::sqrt(1.0 / kD));
  auto scaled = [&](Value* x) { return f.scale == 2 ? b.Mul(b.C(root, {1}), x) : x; };
  if (f.scale == 3) q = b.Div(q, b.C(std::sqrt(1.0 * kD)));
  if (f.k == KForm::kPerm && f.heads_kv == kHeads) {
    scores = b.Matmul(scaled(q), scaled(b.Transpose(k, {0, 2, 3, 1})));
  } else if (f.k == KForm::kOneHead) {
    k = b.BroadcastTo(scaled(b.Transpose(k, {0, 2, 3, 1})), {kB, kHeads, kD, kS});
    scores = b.Matmul(scaled(q), k);
  } else {
    k = expand(b.Transpose(k, {0, 2, 1, 3}));
    if (f.k == KForm::kNt) {
      scores = b.Make("matmul_nt", {scaled(q), scaled(k)});
    } else if (f.k == KForm::kFlat) {
      Value* flat = b.Transpose(b.Reshape(k, {kB * kHeads, kS, kD}), {0, 2, 1});
      scores = b.Matmul(scaled(q), scaled(b.Reshape(flat, {kB, kHeads, kD, kS})));
    } else {
      scores = b.Matmul(scaled(q), b.Transpose(scaled(k), {0, 1, 3, 2}));
    }
  }
  if (f.scale == 0) scores = b.Div(scores, b.C(std::sqrt(1.0 * kD)));
  if (f.scale == 1) scores = b.Mul(b.C(1 / std::sqrt(1.0 * kD), {1}), scores);
  scores = f.mask(b, scores);
  Value* p = b.Softmax(scores);
  if (f.guard == 1) p = b.Where(b.Op1("is_nan", p), b.C(0), p);
  if (f.guard > 1) {
    Value* hidden = b.Make("equal", {scores, b.C(-kInf)});
    Value* number = b.Cast(f.guard == 2 ? b.Op1("not", hidden) : hidden, DType::kI64);
    Value* found = b.Make(f.guard == 2 ? "reduce_max" : "reduce_min", {number},
                          {{"axes", Ints{3}}, {"keepdims", true}});
    found = b.Cast(found, DType::kBool);
    p = f.guard == 2 ? b.Where(found, p, b.C(0, p->type.shape)) : b.Where(found, b.C(0), p);
  }
  if (f.dropout > 0) p = AddDropout(b, p, f.dropout, 7);
  Value* o = b.Transpose(b.Matmul(p, v), {0, 2, 1, 3});
  b.Out(b.Reshape(o, {kB, kS, kHeads * kD}));
}

}  // namespace

HostTensor Mask(const Shape& shape, DType dtype, double on, double off,
                const std::function<bool(int64_t i, int64_t j)>& keep) {
  HostTensor t(dtype, shape);
  int64_t columns = shape.back(), rows = shape[shape.size() - 2];
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, keep(i / columns % rows, i % columns) ? on : off);
  }
  return t;
}

MaskFn AddConst(HostTensor t) {
  return [t](TestGraph& b, Value* s) { return b.Add(b.Constant(t), s); };
}

MaskFn WhereConst(HostTensor keep, double fill) {
  return [=](TestGraph& b, Value* s) { return b.Where(b.Constant(keep), s, b.C(fill)); };
}

Graph RecoverForm(const Form& f) {
  return Recover([&](TestGraph& b) { Attention(b, f); });
}

}  // namespace shardc::recover_testing
