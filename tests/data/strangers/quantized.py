"""Models of small integers, for tests/exec/strangers_test.cc: quantized_llama (as the model builder of onnxruntime-genai
writes it in int4, with one table for the embedding and the head) and quantized_aware (a GPT that rounds its weights and
activations in training, exported by PyTorch).

    python quantized.py OUT_FOLDER

Goldens are PyTorch's, in float64: of the first with the weights that the file's integers stand for, which numpy decodes
here. Logits are compared with ONNX Runtime's. Made with torch 2.15, transformers 5.24, onnx 1.23.2, onnxruntime 1.32.0,
onnxruntime-genai 0.18.0.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from safetensors.numpy import save_file
from torch import nn

H, V, LAYERS, BATCH, SEQ, HEADS, KV, FFN, BLOCK = 32, 41, 2, 2, 8, 4, 2, 64, 32


def golden(folder, session, feeds, logits, grads, ids, name, tolerance, **config):
    """grads: by tensor of the file, with what PyTorch calls it."""
    ours = session.run(["logits"], feeds)[0]
    assert np.abs(ours - logits.detach().numpy()).max() < tolerance, np.abs(ours - logits.detach().numpy()).max()
    loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1))
    loss.backward()
    tensors = {"logits": logits.detach().numpy(), "loss": np.array(loss.item())}
    for key, (torch_name, grad) in grads().items():
        tensors[f"grad.{torch_name}"] = np.ascontiguousarray(grad.numpy())
    save_file(tensors, folder / f"golden_b{BATCH}_s{SEQ}.safetensors")
    for key in ("input_ids", "labels", *(k for k in feeds if k == "attention_mask")):
        np.save(folder / f"{key}_b{BATCH}_s{SEQ}.npy", feeds.get(key, ids.numpy()))
    names = {key: {"torch": torch_name, "transposed": False} for key, (torch_name, _) in grads().items()}
    for title, content in ((f"names_{name}", names), ("config", config)):
        (folder / f"{title}.json").write_text(json.dumps(content, indent=1) + "\n")


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def decoded(tensors, name, n, k):
    """[n, k]: the numbers of `name`, 4 bits each in blocks along k, the first in the low bits; 8 stands for 0."""
    codes = tensors[f"{name}_Q4"].reshape(n, -1, BLOCK // 2)  # the last block is filled up
    codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(n, -1, BLOCK).astype(np.float64)
    return ((codes - 8) * tensors[f"{name}_scales"].reshape(n, -1, 1)).reshape(n, -1)[:, :k]


def build_llama(out, random):
    import transformers
    from tokenizers import Tokenizer, models
    config = transformers.LlamaConfig(vocab_size=V, hidden_size=H, intermediate_size=FFN, num_hidden_layers=LAYERS,
                                      num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=16,
                                      head_dim=16, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, generator=random) * 0.2 + ("norm" in name))
    folder = out / "quantized_llama"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as hub:
        model.save_pretrained(hub)
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(V)}, unk_token="w0"))
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2").save_pretrained(hub)
        transformers.GenerationConfig(bos_token_id=1, eos_token_id=2).save_pretrained(hub)
        subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", hub, "-o", f"{hub}/built", "-p",
                        "int4", "-e", "cpu", "-c", f"{hub}/cache", "--extra_options", "shared_embeddings=true",
                        f"int4_block_size={BLOCK}"], check=True)
        file = onnx.load(f"{hub}/built/model.onnx")
    for node in file.graph.node:  # of which ONNX Runtime would round activations, too
        for attribute in [a for a in node.attribute if a.name == "accuracy_level"]:
            node.attribute.remove(attribute)
    onnx.save(file, folder / "int4_dynamic.onnx")
    tensors = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    model.double()
    parts = {}  # by tensor of floats: the parameters of which it is the transpose, side by side
    for i, layer in enumerate(model.model.layers):
        attention, mlp, at = layer.self_attn, layer.mlp, f"model.layers.{i}"
        parts[f"{at}.attn.qkv_proj"] = [attention.q_proj, attention.k_proj, attention.v_proj]
        parts[f"{at}.attn.o_proj"] = [attention.o_proj]
        for name in ("gate_proj", "up_proj", "down_proj"):
            parts[f"{at}.mlp.{name}"] = [getattr(mlp, name)]
    parts["lm_head"] = [model.lm_head]
    with torch.no_grad():
        for name, linears in parts.items():
            rows = [linear.weight.shape[0] for linear in linears]
            weight = torch.from_numpy(decoded(tensors, f"{name}.MatMul.weight", sum(rows), linears[0].weight.shape[1]))
            for linear, part in zip(linears, weight.split(rows)):
                assert (linear.weight - part).abs().max() < 0.1  # it is what was quantized
                linear.weight.copy_(part)
    ids = torch.randint(0, V, (BATCH, SEQ), generator=random)
    feeds = {"input_ids": ids.numpy(), "attention_mask": np.ones((BATCH, SEQ), np.int64)}
    feeds |= {i.name: np.zeros((BATCH, KV, 0, 16), np.float32) for i in file.graph.input if i.name.startswith("past")}

    def grads():
        found = {}
        for name, linears in parts.items():
            grad = torch.cat([linear.weight.grad for linear in linears])
            own = f"{name}.MatMul.weight"
            found[own] = (own, grad if name == "lm_head" else grad.T)
        for name, norm in [(f"model.layers.{i}.{n}", getattr(layer, n)) for i, layer in enumerate(model.model.layers)
                           for n in ("input_layernorm", "post_attention_layernorm")]:
            found[f"{name}.weight"] = (f"{name}.weight", norm.weight.grad)
        last = next(name for name in tensors if "final_norm" in name or name == "model.norm.weight")
        found[last] = (last, model.model.norm.weight.grad)
        return found

    symbols = {d.dim_param for i in file.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    bind = {"past_sequence_length": 0, "kv_cache_dim": 16, "batch_size": BATCH, "sequence_length": SEQ,
            "total_sequence_length": SEQ}
    logits = model(input_ids=ids).logits
    golden(folder, session_of(folder / "int4_dynamic.onnx"), feeds, logits, grads, ids, "int4_dynamic", 1e-4,
           bind={k: v for k, v in bind.items() if k in symbols},
           drop=[o.name for o in file.graph.output if o.name != "logits"])


def margin(x):
    """How far the numbers are, at least, from ones that would be rounded the other way."""
    x = x.detach().double()
    return ((x - x.floor()) - 0.5).abs().min().item()


class Rounded(nn.Linear):
    """Rounds its weights, each row by a scale of its own, and what it is given."""

    def __init__(self, rows, columns):
        super().__init__(columns, rows)
        self.register_buffer("scales", torch.empty(rows))
        self.register_buffer("zeros", torch.zeros(rows, dtype=torch.int32))

    def forward(self, x):
        # Weights are rounded before there are any differences.
        Rounded.margin = min(Rounded.margin, margin(x * 32), 8 * margin(self.weight / self.scales[:, None]))
        x = torch.fake_quantize_per_tensor_affine(x, 1 / 32, 5, -128, 127)
        weight = torch.fake_quantize_per_channel_affine(self.weight, self.scales, self.zeros, 0, -128, 127)
        return nn.functional.linear(x, weight, self.bias)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.qkv, self.out, self.up, self.down = Rounded(3 * H, H), Rounded(H, H), Rounded(FFN, H), Rounded(H, FFN)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, HEADS, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(H, dim=-1))
        o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(b, s, H))
        return x + self.down(nn.functional.gelu(self.up(self.ln_2(x))))


class Aware(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, H), nn.Parameter(torch.empty(SEQ, H))
        self.h, self.ln_f = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(H)
        self.lm_head = Rounded(V, H)

    def forward(self, input_ids):
        x = self.wte(input_ids) + self.wpe
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


def export_aware(out):
    """Of a seed with which no machine's float32 rounds another way than float64."""
    for seed in range(1000):
        random = torch.Generator().manual_seed(seed)
        model, ids = aware(random)
        Rounded.margin = 1
        in_float64(model)(ids)
        if Rounded.margin > 3e-4:
            return export(out, *aware(torch.Generator().manual_seed(seed)))
    raise SystemExit("no seed")


def aware(random):
    model = Aware().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, generator=random) * 0.3 + ("ln_" in name and name.endswith("weight")))
        for module in model.modules():
            if isinstance(module, Rounded):  # whose largest are cut off
                module.scales.copy_(module.weight.abs().amax(1) / 100 - 0.0001)
    return model, torch.randint(0, V, (BATCH, SEQ), generator=random)


def in_float64(model):
    """But for the scales, which PyTorch wants in float32."""
    model.double()
    for module in model.modules():
        if isinstance(module, Rounded):
            module.scales = module.scales.float()
    return model


def export(out, model, ids):
    folder = out / "quantized_aware"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "torchscript_static.onnx"
    torch.onnx.export(model, (ids,), path, dynamo=False, opset_version=17, input_names=["input_ids"],
                      output_names=["logits"])
    in_float64(model)
    grads = lambda: {name: (name, p.grad) for name, p in model.named_parameters()}
    golden(folder, session_of(path), {"input_ids": ids.numpy()}, model(ids), grads, ids, "torchscript_static", 1e-4)


def main():
    out = pathlib.Path(sys.argv[1])
    random = torch.Generator().manual_seed(7)
    build_llama(out, random)
    export_aware(out)


main()
