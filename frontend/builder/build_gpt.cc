// A GptConfig to a graph, in the form that pattern recovery gives an imported HF GPT-2.
#include <cctype>
#include <cmath>

#include "frontend/builder/random_source.h"
#include "frontend/dropout.h"
#include "frontend/gpt_config.h"
#include "ir/builder.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

// A name that the text form of graphs can print: "gpt3-6.7b" has a dash and a dot.
std::string Identifier(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

class GptBuilder {
 public:
  explicit GptBuilder(const GptConfig& config)
      : c_(config), graph_(Identifier(config.name)), params_(graph_), b_(graph_) {}

  Graph Build() {
    Value* ids = graph_.AddInput("input_ids", TensorType(DType::kI64, {c_.batch, c_.seq}));
    Value* table = Weight("transformer.wte", {c_.vocab, c_.hidden}, c_.init_std, "TOKEN_EMBEDDING");
    b_.site = "transformer.wte";
    Value* x = b_.Make("embedding", {table, ids});
    // All parameters stand before the first op.
    params_.SetInsertionPoint(x->producer);
    if (c_.positions == GptPositions::kLearned) x = AddPositions(x);
    if (c_.positions == GptPositions::kRope) MakeRotations();
    x = Dropped(x, c_.dropout);
    for (int64_t i = 0; i < c_.layers; ++i) x = Layer(x, StrCat("transformer.h.", i));
    x = Norm(x, "transformer.ln_f");
    Value* head = table;
    if (!c_.tied) {
      head = Weight("lm_head", {c_.vocab, c_.hidden}, c_.init_std, "LM_HEAD",
                    {{"rows", Ints{1}}, {"columns", Ints{0}}});
    }
    b_.site = "lm_head";
    Value* logits = b_.Make("matmul_nt", {x, head});
    logits->name = "logits";
    graph_.outputs.push_back({"logits", logits});
    return std::move(graph_);
  }

 private:
  Value* Param(const std::string& module, const std::string& part, Shape shape,
               const std::string& role, Attributes more) {
    std::string name = module + "." + part;
    more.Set("role", role);
    more.Set("part", part);
    params_.site = module;
    Value* value = params_.Param(name, c_.dtype, std::move(shape), std::move(more));
    value->name = name;
    return value;
  }
  Value* Weight(const std::string& module, Shape shape, double std, const std::string& role,
                Attributes more = {}) {
    Value* value = Param(module, "weight", shape, role, std::move(more));
    std::string name = module + ".weight";
    graph_.sources[name] = NormalSource(name, c_.dtype, std::move(shape), c_.seed, std);
    return value;
  }
  Value* Filled(const std::string& module, const std::string& part, double fill,
                const std::string& role, int64_t size) {
    Value* value = Param(module, part, {size}, role, {});
    std::shared_ptr<const TensorSource>& source = fill == 0 ? zeros_ : ones_;
    if (!source) source = FilledSource(c_.dtype, fill);
    graph_.sources[module + "." + part] = source;
    return value;
  }

  Value* Linear(Value* x, const std::string& module, int64_t out, const std::string& role,
                bool ends_residual = false) {
    b_.site = module;
    double std = ends_residual ? c_.init_std / std::sqrt(2.0 * c_.layers) : c_.init_std;
    Value* y = b_.Matmul(x, Weight(module, {x->type.shape.back(), out}, std, role));
    return c_.bias ? b_.Add(y, Filled(module, "bias", 0, role, out)) : y;
  }

  Value* Norm(Value* x, const std::string& module) {
    b_.site = module;
    bool rms = c_.norm == GptNorm::kRmsNorm;
    std::vector<Value*> operands = {x, Filled(module, "weight", 1, "NORM", c_.hidden)};
    if (c_.bias && !rms) operands.push_back(Filled(module, "bias", 0, "NORM", c_.hidden));
    return b_.Create(rms ? "rms_norm" : "layer_norm", std::move(operands), {{"eps", c_.eps}})
        ->result();
  }

  Value* AddPositions(Value* x) {
    Value* table =
        Weight("transformer.wpe", {c_.max_positions, c_.hidden}, c_.init_std, "POSITION_EMBEDDING");
    b_.site = "transformer.wpe";
    Value* rows = b_.Slice(table, 0, 0, c_.seq);
    b_.site = "transformer";
    return b_.Add(x, rows);
  }

  // cos and sin [seq, 1, head_dim / 2] of position * theta^(-2i / head_dim) (Su et al. 2021; the
  // halves of a head are the pairs, as in Llama).
  void MakeRotations() {
    const int64_t half = c_.head_dim() / 2;
    HostTensor cos(c_.dtype, {c_.seq, 1, half}), sin(c_.dtype, {c_.seq, 1, half});
    for (int64_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(c_.rope_theta, -static_cast<double>(i) / static_cast<double>(half));
      for (int64_t s = 0; s < c_.seq; ++s) {
        cos.SetDouble(s * half + i, std::cos(static_cast<double>(s) * frequency));
        sin.SetDouble(s * half + i, std::sin(static_cast<double>(s) * frequency));
      }
    }
    b_.site = "transformer.rope";
    cos_ = b_.Constant(std::move(cos));
    sin_ = b_.Constant(std::move(sin));
  }
  Value* Rotate(Value* x) {  // [b, s, heads, d]
    return b_.Make("rotary", {x, cos_, sin_});
  }

  Value* Attention(Value* x, const std::string& module) {
    Value *q, *k, *v;
    if (c_.fused_qkv) {
      Value* qkv = Linear(x, module + ".c_attn", c_.hidden + 2 * c_.kv_width(), "QKV");
      Ints sizes = {c_.hidden, c_.kv_width(), c_.kv_width()};
      Op* split = b_.Create("split", {qkv}, {{"axis", int64_t{2}}, {"sizes", std::move(sizes)}});
      q = split->result(0), k = split->result(1), v = split->result(2);
    } else {
      q = Linear(x, module + ".q_proj", c_.hidden, "QKV");
      k = Linear(x, module + ".k_proj", c_.kv_width(), "QKV");
      v = Linear(x, module + ".v_proj", c_.kv_width(), "QKV");
    }
    b_.site = module;
    q = b_.Reshape(q, {c_.batch, c_.seq, c_.heads, c_.head_dim()});
    k = b_.Reshape(k, {c_.batch, c_.seq, c_.kv_heads, c_.head_dim()});
    v = b_.Reshape(v, {c_.batch, c_.seq, c_.kv_heads, c_.head_dim()});
    if (c_.positions == GptPositions::kRope) q = Rotate(q), k = Rotate(k);
    const double scale = 1 / std::sqrt(static_cast<double>(c_.head_dim()));
    const Attributes attrs = {{"scale", scale}, {"causal", true}, {"layout", std::string("bshd")}};
    Op* attention = c_.attention_dropout > 0
                        ? CreateDropping(b_, "attention", {q, k, v}, c_.attention_dropout, 0, attrs)
                        : b_.Create("attention", {q, k, v}, attrs);
    Value* o = attention->result();
    o = b_.Reshape(o, {c_.batch, c_.seq, c_.hidden});
    return Linear(o, module + ".c_proj", c_.hidden, "ATTENTION_OUT", true);
  }

  Value* Mlp(Value* x, const std::string& module) {
    bool gated = c_.activation == GptActivation::kSwiGlu;
    Value* gate = gated ? Linear(x, module + ".c_gate", c_.ffn, "MLP_GATE") : nullptr;
    if (gated) {
      b_.site = module;
      gate = b_.Make("silu", {gate});
    }
    Value* up = Linear(x, module + ".c_fc", c_.ffn, "MLP_UP");
    b_.site = module;
    return Linear(gated ? b_.Mul(gate, up) : Activate(up), module + ".c_proj", c_.hidden,
                  "MLP_DOWN", true);
  }
  Value* Activate(Value* x) {
    switch (c_.activation) {
      case GptActivation::kRelu:
        return b_.Make("relu", {x});
      case GptActivation::kSilu:
        return b_.Make("silu", {x});
      default:
        bool tanh = c_.activation == GptActivation::kGeluTanh;
        return b_.Make("gelu", {x}, {{"approximate", std::string(tanh ? "tanh" : "none")}});
    }
  }

  Value* Dropped(Value* x, double ratio) { return ratio > 0 ? AddDropout(b_, x, ratio) : x; }

  Value* Layer(Value* x, const std::string& module) {
    Value* attention = Attention(Norm(x, module + ".ln_1"), module + ".attn");
    b_.site = module;
    x = b_.Add(x, Dropped(attention, c_.dropout));
    Value* mlp = Mlp(Norm(x, module + ".ln_2"), module + ".mlp");
    b_.site = module;
    return b_.Add(x, Dropped(mlp, c_.dropout));
  }

  GptConfig c_;
  Graph graph_;
  Builder params_, b_;
  std::shared_ptr<const TensorSource> zeros_, ones_;
  Value *cos_ = nullptr, *sin_ = nullptr;
};

}  // namespace

Graph BuildGpt(const GptConfig& config) {
  GptConfig complete = config;
  if (complete.kv_heads == 0) complete.kv_heads = complete.heads;
  if (complete.ffn == 0) complete.ffn = 4 * complete.hidden;
  return GptBuilder(complete).Build();
}

}  // namespace shardc
