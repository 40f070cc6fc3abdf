"""torch_side.py JSON: measures PyTorch on the GPU; prints JSON. Exit code 3 without torch.

{"what": "peaks"} gives what matrix products and copies reach; {"what": "gpt", "modes": [...], "precision": "f32" or "bf16",
"layers": ..., ...} the forward and backward of the GPT that shardc's builtin makes of the same keys, with SDPA; a line for each
mode, as soon as it is measured. One that fails says so on stderr, stops no other, and makes the exit code 1.

  eager     as it stands
  compile   torch.compile of the whole model
  regions   torch.compile of one layer, used by all, and of the head: PyTorch's regional compilation, which takes as long
            for 48 layers as for one

bf16 is autocast over f32 weights. "train": with a step of AdamW, fused, of gradients clipped to 1. "once": one step, measured
by nobody, so that what torch.compile makes is on disk when it is needed; in the share "once" of the GPU's memory. "device":
"cpu" is for trying it out."""

import gc
import json
import resource
import sys
import time
import traceback

try:
    import torch
    import torch._inductor.config
    from torch import nn
    from torch.nn import functional as F
except ImportError:
    sys.exit(3)


FAILED = []  # modes


def rotate(x, cos, sin):
    """As Hugging Face's Llama does: in the type of x."""
    a, b = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-b, a), dim=-1) * sin.to(x.dtype)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, bias = c["hidden"], c.get("bias", "true") == "true"
        ffn = c.get("ffn", 4 * h)
        self.heads, self.kv_heads = c["heads"], c.get("kv_heads", c["heads"])
        self.sizes = [h, h // self.heads * self.kv_heads, h // self.heads * self.kv_heads]
        self.gated = c.get("activation") == "swiglu"
        self.ln_1, self.ln_2 = norm(c), norm(c)
        widths = self.sizes if c.get("qkv") == "separate" else [sum(self.sizes)]
        self.qkv, self.out = nn.ModuleList(nn.Linear(h, width, bias) for width in widths), nn.Linear(h, h, bias)
        self.gate = nn.Linear(h, ffn, bias) if self.gated else None
        self.up, self.down = nn.Linear(h, ffn, bias), nn.Linear(ffn, h, bias)

    def forward(self, x, turn):
        b, s, h = x.shape
        y = self.ln_1(x)
        qkv = [linear(y) for linear in self.qkv] if len(self.qkv) == 3 else self.qkv[0](y).split(self.sizes, dim=2)
        q, k, v = (t.view(b, s, -1, h // self.heads).transpose(1, 2) for t in qkv)
        if turn is not None:
            q, k = rotate(q, *turn), rotate(k, *turn)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        y = self.ln_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y) if self.gated else F.gelu(self.up(y), approximate="tanh"))


def norm(c):
    h = c["hidden"]
    return nn.RMSNorm(h, eps=1e-5) if c.get("norm") == "rms_norm" else nn.LayerNorm(h, bias=c.get("bias", "true") == "true")


class Gpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, s, rope = c["hidden"], c["seq"], c.get("positions") == "rope"
        self.wte, self.wpe = nn.Embedding(c["vocab"], h), None if rope else nn.Embedding(s, h)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.ln_f = norm(c)
        self.head = self.wte if c.get("tied", "true") == "true" else nn.Linear(h, c["vocab"], bias=False)
        d = h // c["heads"]
        angles = torch.outer(torch.arange(s).float(), 10000 ** (-torch.arange(0, d, 2).float() / d)).repeat(1, 2)
        self.turn = (angles.cos(), angles.sin()) if rope else None

    def forward(self, ids):
        x = self.wte(ids)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, self.turn)
        return self.loss(x, ids)

    def loss(self, x, ids):
        logits = F.linear(self.ln_f(x), self.head.weight)[:, :-1].float()
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))

    def compile_regions(self):
        for block in self.blocks:
            block.compile()
        self.loss = torch.compile(self.loss)


def seconds_of(f, device, warm_up=3, repeats=10):
    """In turn; and the median."""
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
    return times, sorted(times)[repeats // 2]


def gpt(c):
    device = c.get("device", "cuda")
    torch.manual_seed(1)
    # What was found fastest while the GPU was busy with something else is not the fastest.
    if hasattr(torch._inductor.config, "autotune_local_cache"):
        torch._inductor.config.autotune_local_cache = False
    if "once" in c and device == "cuda":
        torch.cuda.set_per_process_memory_fraction(c["once"])
    with torch.device(device):  # there, to draw 1.5 billion weights takes no time
        model = Gpt(c)
    ids = torch.randint(c["vocab"], (c["batch"], c["seq"]), device=device)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) if c.get("train") else None

    def step(run):
        model.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=c["precision"] == "bf16"):
            loss = run(ids)
        loss.backward()
        if optimizer:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    def measure(mode):
        run = torch.compile(model) if mode == "compile" else model
        if mode == "regions":  # for good: the last mode
            model.compile_regions()
        if "once" in c:
            step(run)
            return []
        times, median = seconds_of(lambda: step(run), device)
        resident = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return [{"mode": mode, "median_s": median, "times_s": times,
                 "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else resident}]

    for mode in c["modes"]:
        try:
            yield from measure(mode)
        except Exception:  # as for want of memory, of which another mode may need less, or of a compiler
            FAILED.append(mode)
            traceback.print_exc()
        model.zero_grad(set_to_none=True)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def peaks(c):
    device = c.get("device", "cuda")
    out = {"version": f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"}
    for name, dtype, n in [("bf16", torch.bfloat16, 8192), ("f32", torch.float32, 4096)]:
        n = n if device == "cuda" else 64
        a, b = torch.randn(n, n, device=device, dtype=dtype), torch.randn(n, n, device=device, dtype=dtype)
        out[name] = 2 * n**3 / seconds_of(lambda a=a, b=b: a @ b, device)[1]
    source = torch.randint(255, (2**30 if device == "cuda" else 64,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    out["copy"] = 2 * source.numel() / seconds_of(lambda: target.copy_(source), device)[1]
    yield out


request = json.loads(sys.argv[1])
torch.set_float32_matmul_precision("highest")  # no TF32
for result in {"gpt": gpt, "peaks": peaks}[request["what"]](request):
    print(json.dumps(result), flush=True)
sys.exit(1 if FAILED else 0)
