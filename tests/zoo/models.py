"""The models of the zoo: each class that transformers maps to a task, tiny, with random parameters, and inputs for it."""
import dataclasses
import inspect
import zlib

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

from tiny_config import VOCABULARY, tiny_config

CLASSES = 5
BATCH, SEQUENCE = 4, 12
CHOICES = 3
MASKED = -100
MOST_PARAMETERS = 8_000_000


@dataclasses.dataclass(frozen=True)
class Task:
    mapping: str   # MODEL_FOR_..., which is of model types to classes
    inputs: tuple
    loss: str      # of shardc


TASKS = {
    "causal": Task("CAUSAL_LM", ("input_ids",), "lm"),
    "masked": Task("MASKED_LM", ("input_ids", "attention_mask"), "ce"),
    "seq2seq": Task("SEQ_TO_SEQ_CAUSAL_LM", ("input_ids", "attention_mask", "decoder_input_ids"), "ce"),
    "classify": Task("SEQUENCE_CLASSIFICATION", ("input_ids", "attention_mask"), "ce"),
    "tokens": Task("TOKEN_CLASSIFICATION", ("input_ids", "attention_mask"), "ce"),
    "choice": Task("MULTIPLE_CHOICE", ("input_ids", "attention_mask"), "ce"),
    "answer": Task("QUESTION_ANSWERING", ("input_ids", "attention_mask"), "dot"),
    "image": Task("IMAGE_CLASSIFICATION", ("pixel_values",), "ce"),
    "segment": Task("SEMANTIC_SEGMENTATION", ("pixel_values",), "dot"),
    "depth": Task("DEPTH_ESTIMATION", ("pixel_values",), "dot"),
    "audio": Task("AUDIO_CLASSIFICATION", ("input_values",), "ce"),
    "ctc": Task("CTC", ("input_values",), "ce"),
    "speech": Task("SPEECH_SEQ_2_SEQ", ("input_features", "decoder_input_ids"), "ce"),
}


class Wrapped(torch.nn.Module):
    """A model with positional inputs and one output."""

    def __init__(self, model, inputs):
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, *args):
        out = self.model(**dict(zip(self.inputs, args)), return_dict=True)
        return next(value for value in out.values() if isinstance(value, torch.Tensor))


def all_models():
    """{"task.model_type": class name}"""
    found = {}
    for task, about in TASKS.items():
        for kind, name in getattr(modeling_auto, f"MODEL_FOR_{about.mapping}_MAPPING_NAMES").items():
            found[f"{task}.{kind}"] = name if isinstance(name, str) else name[0]
    return found


def perturb(model):
    """Random parameters that keep activations near 1, with no zeros, no ones, and statistics of norms that are not fresh."""
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            if not p.is_floating_point() or (not isinstance(p, torch.nn.Parameter) and "running_" not in name):
                continue
            if p.ndim >= 2:
                p.copy_(torch.randn(p.shape, generator=random) / p[0].numel() ** 0.5)
            else:
                p.add_(torch.rand(p.shape, generator=random) * 0.6 - (0 if "running_var" in name else 0.3))
    return model


def build(name, attention):
    """The model in float32, without dropout, with its `default` or `eager` attention. Raises where its class and its tiny configuration do not go together."""
    task, kind = name.split(".")
    cls = getattr(transformers, all_models()[name])
    config_class = getattr(transformers, configuration_auto.CONFIG_MAPPING_NAMES[kind])
    config = tiny_config(config_class, is_decoder=True) if task == "causal" else tiny_config(config_class)
    if "input_ids" in TASKS[task].inputs and not hasattr(config, "vocab_size") and hasattr(config, "text_config"):
        config = config.text_config
    config.use_cache = False
    if TASKS[task].loss == "ce":
        config.num_labels = CLASSES
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "batched_mm"  # of transformers 5; its default is an operator that no exporter knows
    if getattr(config, "decoder_start_token_id", 0) is None:
        config.decoder_start_token_id = 1
    torch.manual_seed(0)
    model = cls._from_config(config, attn_implementation=None if attention == "default" else attention).float().eval()
    parameters = sum(p.numel() for p in model.parameters())
    if parameters > MOST_PARAMETERS:
        raise NotImplementedError(f"the tiny configuration still has {parameters} parameters")
    takes = inspect.signature(cls.forward).parameters
    return Wrapped(perturb(model), tuple(i for i in TASKS[task].inputs if i in takes))


def inputs_of(name, model, batch=BATCH, sequence=SEQUENCE):
    """Tensors by name. A mask hides the end of the last example; what is there is no padding token, whose row PyTorch gives no
    gradient, which TorchScript's files do not say."""
    random = torch.Generator().manual_seed(5)
    config = model.model.config
    image = getattr(config, "image_size", 32)
    height, width = image if isinstance(image, (tuple, list)) else (image, image)
    tokens = (batch, CHOICES, sequence) if name.startswith("choice.") else (batch, sequence)
    mask = torch.ones(tokens, dtype=torch.int64)
    mask[-1, ..., -2:] = 0
    makers = {
        "input_ids": lambda: torch.randint(4, VOCABULARY, tokens, generator=random),
        "attention_mask": lambda: mask,
        "decoder_input_ids": lambda: torch.randint(4, VOCABULARY, (batch, sequence - 3), generator=random),
        "pixel_values": lambda: torch.randn(batch, getattr(config, "num_channels", 3), height, width, generator=random),
        "input_values": lambda: torch.randn(batch, 4000, generator=random),
        "input_features": lambda: torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, generator=random),
    }
    return {i: makers[i]() for i in model.inputs}


def loss_of(name, output):
    """shardc's name of the loss that suits an output, and what it takes beside the model's inputs."""
    random = torch.Generator().manual_seed(6)
    loss = TASKS[name.split(".")[0]].loss
    if loss == "dot" or output.ndim not in (2, 3):
        return "dot", {"cotangent": torch.randn(output.shape, generator=random)}
    labels = torch.randint(0, output.shape[-1], output.shape[:-1], generator=random)
    if output.ndim == 3:
        labels[0, 3] = MASKED
    return loss, {"labels": labels}


def loss_value(loss, output, extra):
    """What shardc computes for --loss, by PyTorch."""
    if loss == "dot":
        return (output * extra["cotangent"].to(output.dtype)).sum()
    labels = extra["labels"]
    if loss == "lm":
        output, labels = output[:, :-1], labels[:, 1:]
    return torch.nn.functional.cross_entropy(output.flatten(0, -2), labels.flatten(), ignore_index=MASKED)
