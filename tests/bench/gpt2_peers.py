"""PyTorch and ONNX Runtime on GPT-2 with random weights; runs in the benchmark's venv. One job per process:

    gpt2_peers.py ids DIR BATCH SEQ           DIR/ids.npy
    gpt2_peers.py export DIR BATCH SEQ        DIR/model.onnx, DIR/ids.npy
    gpt2_peers.py golden DIR                  DIR/golden.safetensors: logits by ONNX Runtime, loss by PyTorch
    gpt2_peers.py ort DIR ITERATIONS          seconds of each forward pass
    gpt2_peers.py torch DIR ITERATIONS        seconds of each forward and backward pass; also torch_compile,
                                              torch_bf16 and torch_compile_bf16 (autocast)
    gpt2_peers.py torch_bf16 DIR ITERATIONS LAYERS HIDDEN HEADS        the same of another size than 124M

Jobs with ITERATIONS print JSON.
"""
import json
import pathlib
import sys
import time

import numpy as np

THREADS = 2


def model(layers=12, hidden=768, heads=12):
    import torch
    import transformers
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads, use_cache=False, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa")
    net = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() == 1:  # fresh ones are all 0 or 1: the exporter would merge them, and drop the zeros
                parameter.add_(0.02 * torch.randn_like(parameter))
    return net


def make_ids(folder, batch, seq):
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.random.default_rng(0).integers(0, 50257, (batch, seq), dtype=np.int64)
    np.save(folder / "ids.npy", ids)
    return ids


def export(folder, batch, seq):
    import torch

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt2 = model()

        def forward(self, input_ids):
            return self.gpt2(input_ids=input_ids).logits

    ids = make_ids(folder, batch, seq)
    with torch.no_grad():
        torch.onnx.export(Logits(), (torch.from_numpy(ids),), str(folder / "model.onnx"), dynamo=True, opset_version=20,
                          input_names=["input_ids"], output_names=["logits"], external_data=True)


def ort_session(folder):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])


def lm_loss(net, ids):
    return net(input_ids=ids, labels=ids).loss


def golden(folder):
    import torch
    from safetensors.numpy import save_file
    ids = np.load(folder / "ids.npy")
    with torch.no_grad():
        loss = lm_loss(model(), torch.from_numpy(ids)).numpy()
    logits = ort_session(folder).run(["logits"], {"input_ids": ids})[0]
    save_file({"logits": logits, "loss": np.asarray(loss)}, str(folder / "golden.safetensors"))


def timed(step, iterations):
    step()  # the first one allocates and chooses kernels
    times = []
    for _ in range(iterations):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def time_ort(folder, iterations):
    session, feed = ort_session(folder), {"input_ids": np.load(folder / "ids.npy")}
    return timed(lambda: session.run(["logits"], feed), iterations)


def time_torch(folder, iterations, *size, compiled=False, bf16=False):
    import torch
    net, ids = model(*size), torch.from_numpy(np.load(folder / "ids.npy"))
    net.train()  # no dropout: all its probabilities are 0
    run = torch.compile(net) if compiled else net

    def step():
        net.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = lm_loss(run, ids)
        loss.backward()

    return timed(step, iterations)


def versions():
    import onnx
    import onnxruntime
    import torch
    import transformers
    return {m.__name__: m.__version__ for m in (torch, transformers, onnx, onnxruntime)}


def main():
    job, arguments = sys.argv[1], sys.argv[2:]
    if job == "versions":
        print(json.dumps(versions()))
        return
    folder, numbers = pathlib.Path(arguments[0]), [int(a) for a in arguments[1:]]
    if job == "ids":
        make_ids(folder, *numbers)
    elif job == "export":
        export(folder, *numbers)
    elif job == "golden":
        golden(folder)
    else:
        if job == "ort":
            times = time_ort(folder, *numbers)
        else:
            times = time_torch(folder, *numbers, compiled="compile" in job, bf16="bf16" in job)
        print(json.dumps({"times_s": times}))


main()
