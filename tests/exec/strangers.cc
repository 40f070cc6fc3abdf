#include "tests/exec/strangers.h"

namespace shardc::testing {
namespace {

constexpr char kBatch[] = "b2_s8";

Export ExportOf(const Stranger& s) { return StrangerExport(s.model, s.file, s.loss); }

// What each one brings: LLaMA (GQA, RoPE, SwiGLU), NeoX (parallel residual, qkv by heads), BERT (no
// causality, a folded mask of zeros, folded segment rows, a loss without shift), OPT (folded
// positions with the batch in them), Falcon (multi-query, positions picked by GatherND), BLOOM
// (a slope per head, added to flattened heads), ALBERT (one layer run twice), T5 (learned biases of
// the scores), GPT-J in f16 (scores in f32, one norm for two branches that are added), Gemma-2
// (scores under a soft cap: the attention stays written out), XGLM (a floor under the scores, a
// mask of the batch), a loss inside of the model, neighbours rotated and kv heads repeated before
// they are transposed, ViT (a convolution, a token in front of every image, one label for a
// sequence), Megatron-LM's own ([s, b, h], batch and heads as one dim; megatron-core's modules,
// with groups of heads: megatron_core.py), one head of k and v in an einsum, PaLM (one projection
// to q, k, v and the MLP), sinks beside soft-capped scores of grouped heads, DeepSeek's latent
// attention, nn.TransformerEncoder; attention whose weights are no matrices, or whose heads are
// modules (weights.py); mixtures of experts: all of them in one weight (Llama 4, scores into the
// experts; GPT-OSS, gate and up in turns, weights behind a bias, sinks) or each by itself
// (Qwen2-MoE, beside a gated shared one; DeepSeek-V3, chosen by groups of them), or the rows of
// each chosen by data (experts.py); a layer of Mamba-2, cut by heads, before one of attention
// (Bamba); gated delta rules (states.py); and what ONNX Runtime makes of models: attention and
// embeddings fused, one of its qkv weight or of three, the lengths of a padded batch, a graph for
// generation with an empty cache; weights of 4 bits, and what a model rounds while it is trained
// (quantized.py).
const Stranger kStrangers[] = {
    {"llama", "torchscript_dynamic", "lm", 10, true},
    {"neox", "dynamo_static", "lm", 6, true},  // its branches are reduced once
    {"bert", "dynamo_static", "ce", 10, true},
    {"opt", "dynamo_static", "lm", 10, true},
    {"falcon", "dynamo_static", "lm", 6, false},
    {"bloom", "dynamo_dynamic", "lm", 10, true},
    {"albert", "dynamo_static", "ce", 8, false},
    {"t5enc", "torchscript_dynamic", "dot", 9, false, 0},
    {"gptj_half", "dynamo_static", "lm", 6, true, 2, 1e-2},
    {"gemma2", "dynamo_static", "lm", 10, true, 0},
    {"xglm", "torchscript_dynamic", "lm", 10, true},
    {"gpt2_loss", "dynamo_static", "output:loss", 10, true},
    {"interleaved", "dynamo_static", "lm", 10, true},
    {"vit", "dynamo_static", "ce", 8, true},
    {"megatron", "torchscript_static", "lm", 10, true},
    {"megatron_core", "dynamo_static", "lm", 10, true},
    {"multiquery", "torchscript_static", "lm", 10, false},
    {"palm", "dynamo_static", "lm", 6, false},
    {"sinks", "torchscript_static", "lm", 10, false, 0},
    {"latent", "torchscript_static", "lm", 8, false},
    {"encoder", "torchscript_static", "lm", 10, true},
    {"heads", "dynamo_static", "lm", 14, true, 4},
    {"modules", "torchscript_static", "lm", 10, false},
    {"dense", "torchscript_static", "lm", 14, true, 4},
    {"stacks", "torchscript_static", "lm", 18, true, 4},
    {"llama4", "dynamo_static", "lm", 10, false},
    {"gpt_oss", "torchscript_dynamic", "lm", 10, false},
    {"qwen2_moe", "torchscript_dynamic", "lm", 10, false},
    {"deepseek_v3", "dynamo_static", "lm", 8, false},
    {"experts_assigned", "dynamo_static", "lm", 10, false},
    {"experts_added", "torchscript_static", "lm", 10, false},
    {"experts_masked", "dynamo_static", "lm", 10, false},
    {"bamba", "dynamo_static", "lm", 10, false, 1},
    {"delta", "dynamo_static", "lm", 14, true, 0},
    {"ort_bert", "fused_dynamic", "ce", 10, true},
    {"ort_bert_multihead", "fused_dynamic", "ce", 10, true},
    {"ort_gpt2", "fused_dynamic", "lm", 10, true},
    {"ort_llama", "built_dynamic", "lm", 10, true},
    {"quantized_llama", "int4_dynamic", "lm", 10, true, 2, 1e-4, 32},
    {"quantized_aware", "torchscript_static", "lm", 10, true, 2, 1e-4, 32},
};

}  // namespace

std::span<const Stranger> AllStrangers() { return kStrangers; }

RunResult RunStranger(const Stranger& s, RunSetup setup) {
  const Export e = ExportOf(s);
  setup.pipeline.loss = e.loss;
  setup.pipeline.drop = e.drop;
  Tensors inputs = InputsFor(e, kBatch);
  if (e.loss == "dot") inputs.erase("labels");
  return CompileAndRun(ImportFor(e, kBatch), setup, inputs);
}

std::string CompareWithGolden(const Stranger& s, const RunResult& result) {
  return CompareWithGolden(ExportOf(s), kBatch, result, s.tolerance);
}

}  // namespace shardc::testing
