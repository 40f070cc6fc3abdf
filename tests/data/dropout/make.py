# Attention that drops probabilities, in PyTorch's float64: scaled_dot_product_attention written out, so that the mask can be
# given. It is drawn as ir/dropout.h says, by Philox4x32-10 in numpy. Run here:
#   python make.py attention.safetensors
import sys
import numpy as np, torch
import torch.nn.functional as F
from safetensors.torch import save_file

def philox(counter, key):
    """Salmon et al., SC11: four words for each of the counters, arrays of uint64 that hold 32 bits."""
    c, k, low = list(counter), list(key), np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), b & low, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, -1)

def factors(shape, ratio, seed, stream, step):
    n = int(np.prod(shape))
    block = np.arange((n + 3) // 4, dtype=np.uint64)
    counter = [block & np.uint64(0xFFFFFFFF), block >> np.uint64(32), np.full_like(block, stream), np.full_like(block, step)]
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:n]
    return torch.from_numpy(np.where(words >= round(ratio * 2**32), 1 / (1 - ratio), 0.0)).reshape(shape)

def attention(q, k, v, z, causal):
    """As F.scaled_dot_product_attention(..., is_causal, enable_gqa), the probabilities times z."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(-1) * z) @ v

assert philox([np.zeros(1, np.uint64)] * 4, (0, 0)).tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]  # Random123
torch.manual_seed(0)
tensors = {}
for name, (b, hq, hkv, s, t, d), causal in (("grouped", (4, 6, 2, 7, 7, 8), True), ("plain", (2, 4, 4, 6, 9, 8), False)):
    q, k, v = (torch.randn(b, h, n, d, dtype=torch.float64, requires_grad=True) for h, n in ((hq, s), (hkv, t), (hkv, t)))
    one = torch.ones(b, hq, s, t, dtype=torch.float64)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    assert torch.allclose(attention(q, k, v, one, causal), want, rtol=1e-12, atol=1e-12)
    z = factors((b, hq, s, t), 0.3, 2**40 + 5, 4, 0)
    o = attention(q, k, v, z, causal)
    grad = torch.randn_like(o)
    o.backward(grad)
    for what, x in dict(q=q, k=k, v=v, o=o, do=grad, dq=q.grad, dk=k.grad, dv=v.grad).items():
        tensors[f"{name}.{what}"] = x.detach().contiguous()
save_file(tensors, sys.argv[1])
