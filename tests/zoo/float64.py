"""PyTorch in float64 as the oracle of models that ask for float32 themselves."""
import contextlib

import torch
from torch.overrides import TorchFunctionMode


class _Widen(TorchFunctionMode):
    """Model code that asks for float32 (norms, rotary tables, softmax) gets float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double

        def wide(value):
            return torch.float64 if value is torch.float32 else value

        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


def to_float64(model):
    """model.double(), and also the tensors that a module keeps as plain attributes (rotary tables)."""
    model.double()
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                setattr(module, name, value.double())
    return model


@contextlib.contextmanager
def float64_throughout():
    torch.set_default_dtype(torch.float64)
    try:
        with _Widen():
            yield
    finally:
        torch.set_default_dtype(torch.float32)
