"""Mixtures of experts of which each computes the tokens that are its own, which only data knows, for
tests/exec/strangers_test.cc: `experts_assigned` (as Mistral's reference has it), `experts_added` (index_add_, as
transformers' Mixtral before version 5, beside a shared expert), `experts_masked` (boolean masks of examples and tokens).

    python experts.py OUT_FOLDER

Goldens are PyTorch's, of the module in float64. Made with torch 2.15.
"""
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F
from weights import H, Stacked, write

EXPERTS, CHOSEN = 4, 2


class Expert(nn.Module):
    def __init__(self, bias=False):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(H, 40, bias), nn.Linear(40, H, bias), nn.Linear(H, 40, bias)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    bias = False

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(H, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert(self.bias) for _ in range(EXPERTS))


class Assigned(Experts):
    def forward(self, inputs):
        x = inputs.view(-1, H)
        weights, selected = torch.topk(self.gate(x), CHOSEN)
        weights = F.softmax(weights, dim=1)
        results = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(selected == i)
            results[token] += weights[token, nth, None] * expert(x[token])
        return results.view(inputs.shape)


class Added(Experts):
    def __init__(self):
        super().__init__()
        self.shared = Expert()

    def forward(self, inputs):
        x = inputs.view(-1, H)
        weights, selected = torch.topk(F.softmax(self.gate(x), dim=1), CHOSEN, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        results = torch.zeros_like(x)
        mask = F.one_hot(selected, num_classes=EXPERTS).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            nth, token = torch.where(mask[i])
            current = expert(x[None, token].reshape(-1, H)) * weights[token, nth, None]
            results.index_add_(0, token, current)
        return results.view(inputs.shape) + self.shared(inputs)


class Masked(Experts):
    bias = True

    def forward(self, x):
        weights, selected = torch.topk(self.gate(x), CHOSEN)
        weights = F.softmax(weights, -1)
        results = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mask = (selected == i).any(-1)
            share = (weights * (selected == i)).sum(-1)
            results[mask] += expert(x[mask]) * share[mask].unsqueeze(-1)
        return results


MODELS = {
    "experts_assigned": ((Stacked, Assigned), "dynamo"),
    "experts_added": ((Stacked, Added), "torchscript"),
    "experts_masked": ((Stacked, Masked), "dynamo"),
}

if __name__ == "__main__":
    for name, of in MODELS.items():
        write(pathlib.Path(sys.argv[1]), name, *of)
