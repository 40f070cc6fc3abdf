"""Layers with a state of a fixed size, for tests/exec/strangers_test.cc: `delta`, gated delta rules (as Qwen3-Next has
them) with a decay for each head or each feature, behind short convolutions, by ONNX Runtime's operators.

    python states.py OUT_FOLDER

Goldens are PyTorch's, of the module in float64, token by token. Made with torch 2.15.
"""
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F
from weights import BATCH, E, H, HEADS, SEQ, Mlp, write


def operator(name, inputs, attributes, like, state):
    outputs = torch.onnx.ops.symbolic_multi_out(
        f"com.microsoft::{name}", inputs, attributes, dtypes=[like.dtype] * 2, shapes=[like.shape, state], version=1)
    return outputs[0]


class Convolution(nn.Module):
    def __init__(self, channels, width=3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, width) * 0.5)

    def forward(self, x):
        x = x.transpose(1, 2)
        reach = self.weight.shape[2] - 1
        if torch.onnx.is_in_onnx_export():
            inputs = (x, self.weight)
            x = operator("CausalConvWithState", inputs, {"activation": "silu"}, x, (BATCH, x.shape[1], reach))
        else:
            x = F.silu(F.conv1d(F.pad(x, (reach, 0)), self.weight, groups=x.shape[1]))
        return x.transpose(1, 2)


def recurrence(q, k, v, decay, beta):
    """Of [b, s, heads, e]; decay [b, s, heads, e or 1], beta [b, s, heads]."""
    state, outputs = q.new_zeros(BATCH, HEADS, E, E), []
    for t in range(SEQ):
        state = state * decay[:, t].exp()[..., None]
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhdm,bhd->bhm", state, k[:, t]))
        state = state + k[:, t, :, :, None] * u[:, :, None, :]
        outputs.append(torch.einsum("bhdm,bhd->bhm", state, q[:, t]) / E**0.5)
    return torch.stack(outputs, 1)


class Delta(nn.Module):
    decays = 1

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(H, H, bias=False) for _ in range(4))
        self.convolutions = nn.ModuleList(Convolution(H) for _ in range(3))
        self.beta, self.decay = nn.Linear(H, HEADS), nn.Linear(H, HEADS * self.decays)

    def forward(self, x):
        q, k, v = (conv(w(x)) for conv, w in zip(self.convolutions, (self.q, self.k, self.v)))
        k = F.normalize(k.view(BATCH, SEQ, HEADS, E), dim=-1).view(BATCH, SEQ, H)
        decay, beta = -F.softplus(self.decay(x)), torch.sigmoid(self.beta(x))
        if torch.onnx.is_in_onnx_export():
            attributes = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "update_rule": "gated_delta", "chunk_size": 3}
            inputs = (q, k, v, None, decay, beta)
            return self.o(operator("LinearAttention", inputs, attributes, q, (BATCH, HEADS, E, E)))
        q, k, v, decay = (t.view(BATCH, SEQ, HEADS, -1) for t in (q, k, v, decay))
        return self.o(recurrence(q, k, v, decay, beta).reshape(BATCH, SEQ, H))


class OfFeatures(Delta):
    decays = E


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), "delta", (Delta, OfFeatures, Mlp), "dynamo")
