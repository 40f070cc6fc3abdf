"""Models as ONNX Runtime leaves them, for tests/exec/strangers_test.cc: ort_bert and ort_bert_multihead (fused by
onnxruntime.transformers), ort_gpt2 (the same), ort_llama (a graph as the model builder of onnxruntime-genai writes it,
with a cache).

    python ort.py OUT_FOLDER

The modules are spelled as transformers' were when the fusions were written. Goldens are PyTorch's, of the module in
float64; logits are compared with ONNX Runtime's. Made with torch 2.9.1, onnx 1.22.0, onnxruntime 1.31.1.
"""
import json
import math
import pathlib
import sys


import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions
from safetensors.numpy import save_file
from torch import nn

H, V, POSITIONS, LAYERS, BATCH, SEQ = 24, 41, 16, 2, 2, 8


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def split(self, x):
        return x.view(x.size()[:-1] + (self.heads, H // self.heads)).permute(0, 2, 1, 3)

    def merge(self, x):
        x = x.permute(0, 2, 1, 3).contiguous()
        return x.view(x.size()[:-2] + (H,))


class BertLayer(Attention):
    def __init__(self):
        super().__init__(6)
        self.query, self.key, self.value = (nn.Linear(H, H) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(H, H), nn.Linear(H, 32), nn.Linear(32, H)
        self.attention_norm, self.output_norm = (nn.LayerNorm(H, eps=1e-12) for _ in range(2))

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(H // self.heads) + mask
        o = self.merge(torch.matmul(nn.functional.softmax(scores, dim=-1), v))
        x = self.attention_norm(self.out(o) + x)
        return self.output_norm(self.down(nn.functional.gelu(self.up(x))) + x)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions, self.segments = (nn.Embedding(n, H) for n in (V, POSITIONS, 2))
        self.register_buffer("position_ids", torch.arange(POSITIONS).expand((1, -1)))
        self.norm, self.layers = nn.LayerNorm(H, eps=1e-12), nn.ModuleList(BertLayer() for _ in range(LAYERS))
        self.dense, self.head_norm, self.decoder = nn.Linear(H, H), nn.LayerNorm(H, eps=1e-12), nn.Linear(H, V)

    def forward(self, input_ids, token_type_ids, attention_mask):
        x = self.words(input_ids) + self.segments(token_type_ids)
        x = self.norm(x + self.positions(self.position_ids[:, : input_ids.size(1)]))
        mask = (1.0 - attention_mask.unsqueeze(1).unsqueeze(2).to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return self.decoder(self.head_norm(nn.functional.gelu(self.dense(x))))


class Conv1D(nn.Module):
    def __init__(self, columns, rows):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(rows, columns)), nn.Parameter(torch.empty(columns))

    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(x.size()[:-1] + (self.bias.size(0),))


class Gpt2Layer(Attention):
    def __init__(self):
        super().__init__(4)
        self.ln_1, self.ln_2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.c_attn, self.c_proj = Conv1D(3 * H, H), Conv1D(H, H)
        self.c_fc, self.mlp_proj = Conv1D(4 * H, H), Conv1D(H, 4 * H)
        self.register_buffer("triangle", torch.tril(torch.ones(POSITIONS, POSITIONS)).view(1, 1, POSITIONS, -1).bool())
        self.register_buffer("masked", torch.tensor(-1e4))

    def forward(self, x):
        q, k, v = (self.split(part) for part in self.c_attn(self.ln_1(x)).split(H, dim=2))
        scores = torch.matmul(q, k.transpose(-1, -2)) / (float(v.size(-1)) ** 0.5)
        queries, keys = scores.size(-2), scores.size(-1)
        scores = torch.where(self.triangle[:, :, keys - queries : keys, :keys], scores, self.masked.to(scores.dtype))
        x = self.c_proj(self.merge(torch.matmul(nn.Softmax(dim=-1)(scores), v))) + x
        y = self.c_fc(self.ln_2(x))
        y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + self.mlp_proj(y)


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, H), nn.Embedding(POSITIONS, H)
        self.h, self.ln_f = nn.ModuleList(Gpt2Layer() for _ in range(LAYERS)), nn.LayerNorm(H)
        self.lm_head = nn.Linear(H, V, bias=False)

    def forward(self, input_ids):
        positions = torch.arange(0, input_ids.size(-1), dtype=torch.long).unsqueeze(0)
        x = self.wte(input_ids) + self.wpe(positions)
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(H))

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaLayer(nn.Module):
    HEADS, KV, D, FFN = 4, 2, 16, 32

    def __init__(self):
        super().__init__()
        self.input_norm, self.post_norm = RmsNorm(), RmsNorm()
        self.qkv = nn.Linear(H, (self.HEADS + 2 * self.KV) * self.D, bias=False)
        self.o = nn.Linear(self.HEADS * self.D, H, bias=False)
        self.gate, self.up = nn.Linear(H, self.FFN, bias=False), nn.Linear(H, self.FFN, bias=False)
        self.down = nn.Linear(self.FFN, H, bias=False)

    def rotate(self, x):
        cos, sin = (torch.from_numpy(t).to(x)[: x.size(-2)] for t in tables())
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, x):
        b, s, _ = x.shape
        parts = self.qkv(self.input_norm(x)).view(b, s, -1, self.D).transpose(1, 2)
        q, k, v = parts.split([self.HEADS, self.KV, self.KV], dim=1)
        k, v = (t.repeat_interleave(self.HEADS // self.KV, dim=1) for t in (self.rotate(k), v))
        o = nn.functional.scaled_dot_product_attention(self.rotate(q), k, v, is_causal=True)
        x = x + self.o(o.transpose(1, 2).reshape(b, s, -1))
        y = self.post_norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(V, H), nn.ModuleList(LlamaLayer() for _ in range(LAYERS))
        self.norm, self.lm_head = RmsNorm(), nn.Linear(H, V, bias=False)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def tables():
    angles = np.outer(np.arange(POSITIONS), 10000.0 ** (-np.arange(LlamaLayer.D // 2) / (LlamaLayer.D // 2)))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def build_llama(model):
    """The nodes that onnxruntime-genai's builder makes: packed projections, GroupQueryAttention, lengths by a mask."""
    nodes, tensors = [], []

    def node(op, inputs, outputs, **attributes):
        name = "/" + outputs[0].removesuffix("/output_0").strip("/")
        nodes.append(helper.make_node(op, inputs, outputs, name=name, **attributes))
        return outputs[0]

    def tensor(name, array):
        tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def matmul(x, linear, name):
        weight = tensor(f"model.{name}.MatMul.weight", linear.weight.detach().numpy().T)
        return node("MatMul", [x, weight], [f"model/{name}/MatMul/output_0"])

    ones = node("ReduceSum", ["attention_mask", tensor("axis", np.array([1], np.int64))], ["mask/sum"], keepdims=0)
    less = node("Sub", [ones, tensor("one", np.array([1], np.int64))], ["mask/less"])
    lengths = node("Cast", [less], ["mask/lengths"], to=TensorProto.INT32)
    shape = node("Shape", ["attention_mask"], ["mask/shape"])
    total = node("Gather", [shape, tensor("dim", np.array(1, np.int64))], ["mask/dim"])
    total = node("Cast", [total], ["mask/total"], to=TensorProto.INT32)
    cos, sin = (tensor(n, t) for n, t in zip(("cos_cache", "sin_cache"), tables()))
    x = node("Gather", [tensor("model.embed_tokens.weight", model.embed.weight.detach().numpy()), "input_ids"],
             ["model/embed_tokens/output_0"])
    branch = None

    def norm(module, name):
        nonlocal x, branch
        weight = tensor(f"model.{name}.weight", module.weight.detach().numpy())
        y = f"model/{name}/output_0"
        if branch is None:
            return node("SimplifiedLayerNormalization", [x, weight], [y], axis=-1, epsilon=1e-5, stash_type=1)
        outputs = [y, "", "", f"model/{name}/output_3"]
        node("SkipSimplifiedLayerNormalization", [x, branch, weight], outputs, domain="com.microsoft", epsilon=1e-5)
        x = outputs[3]
        return y

    inputs, outputs = ["input_ids", "attention_mask"], ["logits"]
    for i, layer in enumerate(model.layers):
        past = [f"past_key_values.{i}.{k}" for k in ("key", "value")]
        present = [f"present.{i}.{k}" for k in ("key", "value")]
        inputs += past
        outputs += present
        qkv = matmul(norm(layer.input_norm, f"layers.{i}.input_layernorm"), layer.qkv, f"layers.{i}.attn.qkv_proj")
        o = node("GroupQueryAttention", [qkv, "", "", *past, lengths, total, cos, sin],
                 [f"model/layers.{i}/attn/GroupQueryAttention/output_0", *present], domain="com.microsoft",
                 num_heads=layer.HEADS, kv_num_heads=layer.KV, do_rotary=1, rotary_interleaved=0,
                 scale=layer.D ** -0.5, local_window_size=-1, softcap=0.0)
        branch = matmul(o, layer.o, f"layers.{i}.attn.o_proj")
        y = norm(layer.post_norm, f"layers.{i}.post_attention_layernorm")
        gate, up = matmul(y, layer.gate, f"layers.{i}.mlp.gate_proj"), matmul(y, layer.up, f"layers.{i}.mlp.up_proj")
        act = node("Mul", [gate, node("Sigmoid", [gate], [f"model/layers.{i}/mlp/Sigmoid/output_0"])],
                   [f"model/layers.{i}/mlp/act/output_0"])
        branch = matmul(node("Mul", [act, up], [f"model/layers.{i}/mlp/Mul/output_0"]), layer.down,
                        f"layers.{i}.mlp.down_proj")
    head = tensor("lm_head.MatMul.weight", model.lm_head.weight.detach().numpy().T)
    node("MatMul", [norm(model.norm, "layers.2.final_norm_layernorm"), head], ["logits"])

    def info(name):
        total = "past_sequence_length + sequence_length"
        shapes = {"input_ids": ["batch", "sequence_length"], "attention_mask": ["batch", total],
                  "logits": ["batch", "sequence_length", V]}
        cache = ["batch", LlamaLayer.KV, total if name.startswith("present") else "past_sequence_length", LlamaLayer.D]
        integers = name in ("input_ids", "attention_mask")
        return helper.make_tensor_value_info(name, TensorProto.INT64 if integers else TensorProto.FLOAT,
                                             shapes.get(name, cache))

    graph = helper.make_graph(nodes, "main_graph", [info(n) for n in inputs], [info(n) for n in outputs], tensors)
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=7)


def export_fused(model, feeds, model_type, multihead, path):
    axes = {name: {0: "batch", 1: "sequence"} for name in [*feeds, "logits"]}
    torch.onnx.export(model, tuple(feeds.values()), path, dynamo=False, opset_version=14, input_names=list(feeds),
                      output_names=["logits"], dynamic_axes=axes)
    options = FusionOptions(model_type)
    options.use_multi_head_attention = multihead
    fused = optimizer.optimize_model(str(path), model_type=model_type, num_heads=4 if model_type == "gpt2" else 6,
                                     hidden_size=H, optimization_options=options, opt_level=0)
    for key, count in fused.get_fused_operator_statistics().items():
        if key == ("MultiHeadAttention" if multihead else "Attention"):
            assert count == LAYERS, (key, count)
    return fused.model


def gradients_of_file(model, file):
    """By tensor of the file: the gradient of the parameter, or of those side by side, whose values it has."""
    known = {n: (p.detach(), p.grad) for n, p in model.named_parameters()}
    for name in list(known):
        if ".query." in name:
            parts = [known[name.replace(".query.", f".{part}.")] for part in ("query", "key", "value")]
            known[name + " and two"] = tuple(torch.cat([p[i] for p in parts], dim=0) for i in (0, 1))
    found = {}
    for tensor in file.graph.initializer:
        value = torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for own, grad in known.values():
            for turn in ((lambda t: t), (lambda t: t.mT)) if own.ndim == 2 else ((lambda t: t),):
                if value.shape == turn(own).shape and torch.equal(value.to(own), turn(own)):
                    found[tensor.name] = turn(grad).contiguous().numpy()
    elements = sum(p.numel() for p in model.parameters())
    assert sum(g.size for g in found.values()) == elements, (sorted(found), elements)
    return found


def write(folder, model, file, feeds, labels, loss, name, **config):
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(file, folder / f"{name}.onnx")
    past = {i.name: np.zeros((BATCH, LlamaLayer.KV, 0, LlamaLayer.D), np.float32)
            for i in file.graph.input if i.name.startswith("past")}
    session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = session.run(["logits"], {k: v.numpy() for k, v in feeds.items()} | past)[0]
    model.double()
    logits = model(**feeds)
    assert np.abs(ours - logits.detach().numpy()).max() < 1e-5
    rows, targets = (logits[:, :-1], labels[:, 1:]) if loss == "lm" else (logits, labels)
    value = nn.functional.cross_entropy(rows.reshape(-1, V), targets.reshape(-1))
    value.backward()
    found = gradients_of_file(model, file)
    golden = {"logits": logits.detach().numpy(), "loss": np.array(value.item())}
    save_file(golden | {f"grad.{k}": v for k, v in found.items()}, folder / f"golden_b{BATCH}_s{SEQ}.safetensors")
    for key, array in {**feeds, "labels": labels}.items():
        np.save(folder / f"{key}_b{BATCH}_s{SEQ}.npy", array.numpy())
    names = {k: {"torch": k, "transposed": False} for k in found}
    for title, content in ((f"names_{name}", names), ("config", config)):
        (folder / f"{title}.json").write_text(json.dumps(content, indent=1) + "\n")


def main():
    out = pathlib.Path(sys.argv[1])
    random = torch.Generator().manual_seed(5)

    def fresh(kind):
        model = kind().eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                scale = "norm" in name or "ln_" in name
                p.copy_(torch.randn(p.shape, generator=random) * 0.15 + (scale and name.endswith("weight")))
        return model

    ids, labels = (torch.randint(0, V, (BATCH, SEQ), generator=random) for _ in range(2))
    segments = torch.randint(0, 2, (BATCH, SEQ), generator=random)
    padded = torch.ones(BATCH, SEQ, dtype=torch.long)
    padded[1, 6:] = 0
    feeds = {"input_ids": ids, "token_type_ids": segments, "attention_mask": padded}
    for folder, multihead in (("ort_bert", False), ("ort_bert_multihead", True)):
        model = fresh(Bert)
        file = export_fused(model, feeds, "bert", multihead, out / "unfused.onnx")
        write(out / folder, model, file, feeds, labels, "ce", "fused_dynamic")
    model = fresh(Gpt2)
    file = export_fused(model, {"input_ids": ids}, "gpt2", False, out / "unfused.onnx")
    write(out / "ort_gpt2", model, file, {"input_ids": ids}, ids, "lm", "fused_dynamic")
    model = fresh(Llama)
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    write(out / "ort_llama", model, build_llama(model), feeds, ids, "lm", "built_dynamic",
          bind={"past_sequence_length": 0}, drop=[f"present.{i}.{k}" for i in range(LAYERS) for k in ("key", "value")])
    (out / "unfused.onnx").unlink()


main()
