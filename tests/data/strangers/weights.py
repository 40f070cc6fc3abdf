"""Attention whose weights are no matrices, or are of single heads, for tests/exec/strangers_test.cc: `heads` (a matrix
for each head, by an einsum and by one batched product), `modules` (a module for each head, positions turned in it),
`dense` (a dim for heads, of their own for k and v, and one for q, k and v), `stacks` (q, k and v, or gate and up, one
behind the other in a tensor; convolutions of one position).

    python weights.py OUT_FOLDER

Goldens are PyTorch's, of the module in float64. Made with torch 2.9.1, `modules` with 2.15.0.
"""
import json
import math
import pathlib
import sys

import numpy as np
import onnx
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F

H, V, LAYERS, HEADS, BATCH, SEQ = 24, 41, 2, 6, 2, 8
E = H // HEADS


def param(*shape):
    return nn.Parameter(torch.randn(*shape) * 0.2)


def attend(q, k, v):
    """Of [b, s, heads, e], causal, written out."""
    repeats = q.shape[2] // k.shape[2]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
    scores = torch.einsum("bqnh,bknh->bnqk", q, k) / math.sqrt(E)
    unseen = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
    return torch.einsum("bnqk,bknh->bqnh", scores.masked_fill(unseen, -1e9).softmax(-1), v)


class EachHead(nn.Module):
    """As TransformerLens has them."""

    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = param(HEADS, H, E), param(HEADS, H, E), param(HEADS, H, E)
        self.b_Q, self.b_K, self.b_V = param(HEADS, E), param(HEADS, E), param(HEADS, E)
        self.W_O, self.b_O = param(HEADS, E, H), param(H)

    def forward(self, x):
        def project(w, b):
            return torch.einsum("bsd,nde->bsne", x, w) + b

        z = attend(project(self.W_Q, self.b_Q), project(self.W_K, self.b_K), project(self.W_V, self.b_V))
        return torch.einsum("bsne,ned->bsd", z, self.W_O) + self.b_O


class Batched(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = param(HEADS, H, E), param(HEADS, H, E), param(HEADS, H, E), param(HEADS, E, H)
        self.b = param(HEADS, 1, E)

    def forward(self, x):
        def project(w):
            return (x[:, None] @ w + self.b).transpose(1, 2)

        z = attend(project(self.q), project(self.k), project(self.v))
        return (z.transpose(1, 2) @ self.o).sum(1)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(H, E, bias=bias) for bias in (False, False, True))
        angles = torch.arange(SEQ)[:, None] / 100 ** (torch.arange(0, E, 2) / E)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.register_buffer("tril", torch.tril(torch.ones(SEQ, SEQ)), persistent=False)

    def turned(self, x):
        cos, sin = self.turns.real.to(x.dtype), self.turns.imag.to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

    def forward(self, x):
        q, k = self.turned(self.query(x)), self.turned(self.key(x))
        scores = (q @ k.transpose(-2, -1) * E**-0.5).masked_fill(self.tril == 0, -math.inf)
        return scores.softmax(-1) @ self.value(x)


class SeparateHeads(nn.Module):
    """As those have them who explain attention."""

    def __init__(self):
        super().__init__()
        self.heads, self.proj = nn.ModuleList(Head() for _ in range(HEADS)), nn.Linear(H, H)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class DenseGeneral(nn.Module):
    """As Keras and Flax have them, with two heads of k and v."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = param(H, HEADS, E), param(H, 2, E), param(H, 2, E)
        self.bq, self.bk, self.bv = param(HEADS, E), param(2, E), param(2, E)
        self.o, self.bo = param(HEADS, E, H), param(H)

    def forward(self, x):
        def project(w, b):
            return torch.einsum("abc,cde->abde", x, w) + b

        z = attend(project(self.q, self.bq), project(self.k, self.bk), project(self.v, self.bv))
        return torch.einsum("abcd,cde->abe", z, self.o) + self.bo


class Together(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = param(H, 3, HEADS, E), param(HEADS, E, H)

    def forward(self, x):
        y = torch.einsum("bsd,dcne->cbsne", x, self.qkv)
        return torch.einsum("bsne,ned->bsd", attend(y[0], y[1], y[2]), self.o)


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b, self.o = param(3, H, H), param(3, H), param(H, H)

    def forward(self, x):
        q, k, v = ((x @ self.w[i] + self.b[i]).view(BATCH, SEQ, HEADS, E) for i in range(3))
        return attend(q, k, v).reshape(BATCH, SEQ, H) @ self.o


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Conv1d(H, 3 * H, 1), nn.Conv1d(H, H, 1)

    def forward(self, x):
        qkv = self.qkv(x.transpose(1, 2)).transpose(1, 2).split(H, -1)
        z = attend(*(t.reshape(BATCH, SEQ, HEADS, E) for t in qkv))
        return self.o(z.reshape(BATCH, SEQ, H).transpose(1, 2)).transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(H, 2 * H), nn.Linear(2 * H, H)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class StackedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.down = param(2, H, 2 * H), param(2 * H, H)

    def forward(self, x):
        return (F.silu(x @ self.w[0]) * (x @ self.w[1])) @ self.down


class ConvolvedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Conv1d(H, 2 * H, 1), nn.Conv1d(2 * H, H, 1)

    def forward(self, x):
        return self.down(F.gelu(self.up(x.transpose(1, 2)))).transpose(1, 2)


class Model(nn.Module):
    """Each layer has one of each."""

    def __init__(self, parts):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, H), param(SEQ, H)
        self.layers = nn.ModuleList(nn.ModuleList(part() for part in parts) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(H) for _ in range(LAYERS * len(parts) + 1))
        self.head = nn.Linear(H, V, bias=False)
        for norm in self.norms:
            nn.init.normal_(norm.weight, 1, 0.1)
            nn.init.normal_(norm.bias, 0, 0.1)

    def forward(self, input_ids):
        x = self.wte(input_ids) + self.wpe
        parts = (part for layer in self.layers for part in layer)
        for norm, part in zip(self.norms, parts):
            x = x + part(norm(x))
        return self.head(self.norms[-1](x))


MODELS = {
    "heads": ((EachHead, Batched, Mlp), "dynamo"),
    "modules": ((SeparateHeads, Mlp), "torchscript"),
    "dense": ((DenseGeneral, Together, Mlp), "torchscript"),
    "stacks": ((Stacked, StackedMlp, Convolved, ConvolvedMlp), "torchscript"),
}


def names_of(file, model):
    """The file's names of the parameters, which it may have transposed."""
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(file).graph.initializer}
    names = {}
    for name, p in model.named_parameters():
        own = {name: {"torch": name, "transposed": False}}
        turned = {n: {"torch": name, "transposed": True} for n, t in tensors.items()
                  if p.ndim == 2 and np.array_equal(t.T, p.detach().numpy())}
        names |= own if name in tensors else turned
    return names


def write(out, name, of, exporter, optimize=False):
    """`of`: parts of Model, or what makes a module."""
    torch.manual_seed(7)
    model = (of() if callable(of) else Model(of)).eval()
    ids = torch.randint(0, V, (BATCH, SEQ))
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{exporter}_static.onnx"
    names = {"input_names": ["input_ids"], "output_names": ["logits"]}
    if exporter == "dynamo":
        torch.onnx.export(model, (ids,), file, dynamo=True, external_data=False, optimize=optimize, verbose=False,
                          **names)
    else:
        torch.onnx.export(model, (ids,), file, dynamo=False, opset_version=17, do_constant_folding=False, **names)

    model = model.double()
    logits = model(ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    golden = {"grad." + n: p.grad.numpy() for n, p in model.named_parameters()}
    golden |= {"logits": logits.detach().numpy(), "loss": loss.detach().numpy()}
    save_file({k: np.ascontiguousarray(v) for k, v in golden.items()}, folder / "golden_b2_s8.safetensors")
    np.save(folder / "input_ids_b2_s8.npy", ids.numpy())

    def write_json(file, content):
        (folder / file).write_text(json.dumps(content, indent=1))

    write_json(f"names_{exporter}_static.json", names_of(file, model))
    batch = {"b2_s8": {"input_ids": f"int64 [{BATCH}, {SEQ}]"}}
    write_json("config.json", {"model": f"own: {name}, see {pathlib.Path(sys.argv[0]).name}", "batches": batch, "loss": "causal_lm",
                               "output": "logits", "goldens_stored_as": {"b2_s8": "float64"}})
    write_json("exports.json", {file.name: {"exporter": exporter, "dynamic": False, "float64": False,
                                            "producer": "pytorch " + torch.__version__.split("+")[0],
                                            "inputs": {"input_ids": f"INT64 [{BATCH}, {SEQ}]"},
                                            "outputs": {"logits": f"FLOAT [{BATCH}, {SEQ}, {V}]"}}})


if __name__ == "__main__":
    for name, of in MODELS.items():
        write(pathlib.Path(sys.argv[1]), name, *of)
