"""torch_side.py JSON: measures PyTorch on the GPU; prints JSON. Exit code 3 without torch.

{"what": "peaks"} gives what matrix products and copies reach; {"what": "gpt", "mode": "eager" or "compile", "precision": "f32" or
"bf16", "layers": ..., ...} the forward and backward of the GPT that shardc's builtin has: pre-norm, learned positions, tanh gelu,
lm_head tied to the token embedding, SDPA. bf16 is autocast over f32 weights. "once": one step, measured by nobody, so that
what torch.compile makes is on disk when it is needed. "device": "cpu" is for trying it out."""

import json
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError:
    sys.exit(3)


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, h // self.heads).transpose(1, 2)
                   for t in self.qkv(self.ln_1(x)).split(h, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c["vocab"], c["hidden"]), nn.Embedding(c["seq"], c["hidden"])
        self.blocks = nn.ModuleList(Block(c["hidden"], c["heads"]) for _ in range(c["layers"]))
        self.ln_f = nn.LayerNorm(c["hidden"])

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)[:, :-1].float()
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def median_seconds(f, device, warm_up=3, repeats=10):
    times = []
    for i in range(warm_up + repeats):
        if i == warm_up and device == "cuda":
            torch.cuda.reset_peak_memory_stats()  # what compiling tries out is not the step's
        start = time.perf_counter()
        f()
        if device == "cuda":
            torch.cuda.synchronize()
        if i >= warm_up:
            times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def gpt(c):
    device = c.get("device", "cuda")
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.device(device):  # there, to draw 1.5 billion weights takes no time
        model = Gpt(c)
    run = torch.compile(model) if c["mode"] == "compile" else model
    ids = torch.randint(c["vocab"], (c["batch"], c["seq"]), device=device)

    def step():
        model.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=c["precision"] == "bf16"):
            loss = run(ids)
        loss.backward()

    if c.get("once"):
        step()
        return {}
    seconds = median_seconds(step, device)
    return {"median_s": seconds, "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0}


def peaks(c):
    device = c.get("device", "cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    out = {}
    for name, dtype, n in [("bf16", torch.bfloat16, 8192), ("f32", torch.float32, 4096)]:
        n = n if device == "cuda" else 64
        a, b = torch.randn(n, n, device=device, dtype=dtype), torch.randn(n, n, device=device, dtype=dtype)
        out[name] = 2 * n**3 / median_seconds(lambda a=a, b=b: a @ b, device)
    source = torch.randint(255, (2**30 if device == "cuda" else 64,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    out["copy"] = 2 * source.numel() / median_seconds(lambda: target.copy_(source), device)
    return out


request = json.loads(sys.argv[1])
print(json.dumps({"gpt": gpt, "peaks": peaks}[request["what"]](request)))
