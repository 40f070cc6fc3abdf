"""Writes one export of a model: the file, its inputs, and what PyTorch computes in float64, under the file's names."""
import contextlib
import json
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from safetensors.numpy import save_file

import models
from float64 import float64_throughout, to_float64

# Of which attention: `default` is sdpa where the model has it.
EXPORTS = ["dynamo-default", "torchscript-eager", "dynamo-eager", "torchscript-default"]
OUTPUT = "output"


class NotExported(Exception):
    """PyTorch cannot write the model, or writes another one."""


@contextlib.contextmanager
def traceable_masks(exporter):
    """transformers 4.57 makes masks with torch.vmap, which the exporters cannot follow with symbols as shapes: the same mask
    functions on broadcast indices instead, as transformers 5 has them. Packed sequences are searched by aten::diff, which the
    TorchScript exporter does not know."""
    import transformers.masking_utils as masking

    def broadcast(mask_function, bh_indices=True):
        def mask(b, h, q, k):
            made = mask_function(b.reshape(-1, 1, 1, 1), h.reshape(1, -1, 1, 1), q.reshape(1, 1, -1, 1), k.reshape(1, 1, 1, -1))
            return made.expand(b.shape[0], h.shape[0], q.shape[0], k.shape[0])
        return mask

    changes = {"_vmap_for_bhqkv": broadcast, "TransformGetItemToIndex": contextlib.nullcontext}
    if exporter == "torchscript":
        changes["find_packed_sequence_indices"] = lambda position_ids: None
    changes = {name: value for name, value in changes.items() if hasattr(masking, name)}
    saved = {name: getattr(masking, name) for name in changes}
    try:
        for name, value in changes.items():
            setattr(masking, name, value)
        yield
    finally:
        for name, value in saved.items():
            setattr(masking, name, value)


def symbols(inputs):
    """What is dynamic in each input: the batch, and the sequence of tokens."""
    found = {}
    for name, tensor in inputs.items():
        found[name] = {0: "batch"}
        if tensor.dtype == torch.int64:
            found[name][tensor.ndim - 1] = "decoder_sequence" if name.startswith("decoder") else "sequence"
    return found


def write(model, inputs, exporter, dynamic, path):
    common = dict(input_names=list(inputs), output_names=[OUTPUT])
    args = tuple(inputs.values())
    with traceable_masks(exporter), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "torchscript":
            axes = {"dynamic_axes": symbols(inputs)} if dynamic else {}
            torch.onnx.export(model, args, str(path), dynamo=False, opset_version=17, **common, **axes)
        else:
            dims = {name: torch.export.Dim(name, min=2, max=64) for of in symbols(inputs).values() for name in of.values()}
            shapes = tuple({axis: dims[s] for axis, s in of.items()} for of in symbols(inputs).values())
            axes = {"dynamic_shapes": (shapes,)} if dynamic else {}
            torch.onnx.export(model, args, str(path), dynamo=True, verbose=False, external_data=False, **common, **axes)


def run_by_ort(path, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v.numpy() for k, v in inputs.items() if k in wanted})[0]


def export_right(name, model, exporter, expected, path):
    """Writes the file with dynamic shapes, or else with those of the run; returns whether they are dynamic."""
    inputs, reasons = models.inputs_of(name, model), []
    for dynamic in (True, False):
        example = models.inputs_of(name, model, batch=2, sequence=8) if dynamic else inputs
        try:
            write(model, example, exporter, dynamic, path)
            got = run_by_ort(path, inputs)
        except Exception as error:  # of any kind: an exporter's limits
            while error.__cause__:
                error = error.__cause__
            reasons.append(f"{type(error).__name__}: {error}")
            continue
        if got.shape == expected.shape and np.allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()):
            return dynamic
        reasons.append("by ONNX Runtime the file gives something else than PyTorch")
    raise NotExported(" ".join(reasons[-1].split())[:300])


def gradients(model, inputs, loss, extra):
    """Outputs with the loss, and gradients of the parameters that PyTorch has one for: not of frozen ones, as tables of sines."""
    out = model(*inputs.values())
    value = models.loss_value(loss, out, extra)
    value.backward()
    grads = {n: p.grad.double().numpy() for n, p in model.named_parameters() if p.grad is not None}
    return {OUTPUT: out.detach().double().numpy(), "loss": value.detach().double().numpy()}, grads


def by_names_of_file(path, params, ties, grads):
    """Gradients under the names that the file has: a parameter's own, or of a tensor with its values, transposed, reshaped, or
    with 1 added. Not of one that the exporter folded into 1 - p too: the file has two where the model has one."""
    found, kept, folded = {}, set(), set()
    for tensor in onnx.load(path).graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype != np.float32:
            continue
        own = ties.get(tensor.name, tensor.name)
        for name in [own] if own in params else grads:
            value = params[name]
            if array.size != value.size:
                continue
            same = [np.array_equal(array.ravel(), v.ravel()) for v in (value, value + 1, value.T, 1 - value)]
            if not any(same) or name not in grads:
                continue
            grad = grads[name].T if same == [False, False, True, False] else grads[name]
            found["grad." + tensor.name] = name, grad.reshape(array.shape)
            kept.add(name)
            if same[3]:
                folded.add(name)
            break
    return {key: grad for key, (name, grad) in found.items() if name not in folded}, sorted(grads.keys() - kept | folded)


def tied_names(model):
    first, ties = {}, {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(p), name) != name:
            ties[name] = first[id(p)]
    return ties


def export(name, how, folder):
    """Fills `folder` and returns what the check needs to know. Raises where there is nothing to check."""
    exporter, attention = how.split("-")
    model = models.build(name, attention)
    inputs = models.inputs_of(name, model)
    with torch.no_grad():
        plain = model(*inputs.values())
    loss, extra = models.loss_of(name, plain)
    results, grads = gradients(model, inputs, loss, extra)
    params = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    ties = tied_names(model)
    dynamic = export_right(name, model, exporter, plain.numpy(), folder / "model.onnx")

    wide = to_float64(models.build(name, attention))
    with float64_throughout():
        exact, exact_grads = gradients(wide, {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}, loss, extra)
    if not all(np.isfinite(g).all() for g in [*exact.values(), *exact_grads.values()]):
        raise NotExported("PyTorch computes NaN or infinity")
    error = max(np.abs(a[k] - b[k]).max() for a, b in ((results, exact), (grads, exact_grads)) for k in b)
    golden, lost = by_names_of_file(folder / "model.onnx", params, ties, exact_grads)
    save_file({k: np.array(v, order="C") for k, v in (exact | golden).items()}, folder / "golden.safetensors")
    given = inputs | extra
    for key, value in given.items():
        np.save(folder / f"{key}.npy", value.numpy())
    about = {"loss": loss, "dynamic": dynamic, "shapes": {k: list(v.shape) for k, v in inputs.items()}, "given": list(given),
             "error_of_float32": float(error), "not_in_file": lost}
    (folder / "export.json").write_text(json.dumps(about, indent=1))
    return about
