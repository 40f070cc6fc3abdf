"""Models of the transformers library, and recurrent ones, of moderate size with random weights; runs in the benchmark's venv.
One job per process:

    architectures_peers.py names                      one a line
    architectures_peers.py export NAME DIR            DIR/model.onnx, its inputs and the cotangent as .npy, and golden.safetensors:
                                                      PyTorch's output
    architectures_peers.py torch NAME DIR ITERATIONS  seconds of each forward and backward pass, as JSON
"""
import json
import pathlib
import sys
import time

import numpy as np
import torch
import transformers

THREADS = 2
VOCABULARY = 4000
DECODER = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": VOCABULARY,
           "max_position_embeddings": 512, "use_cache": False}
GROUPED = DECODER | {"num_key_value_heads": 4}
WINDOWS = GROUPED | {"head_dim": 32, "sliding_window": 64}
LATENT = DECODER | {"num_key_value_heads": 8, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
                    "first_k_dense_replace": 3}
IMAGE = {"image_size": 112, "num_labels": 10}
SPEECH = {"d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
          "encoder_ffn_dim": 768, "decoder_ffn_dim": 768, "vocab_size": VOCABULARY, "max_source_positions": 300,
          "max_target_positions": 64, "use_cache": False, "pad_token_id": 0, "decoder_start_token_id": 1}
# name: class, configuration, its values, tokens of an example
LIBRARY = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, 256),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", WINDOWS, 256),
    "deepseek_v3, dense": ("DeepseekV3ForCausalLM", "DeepseekV3Config", LATENT, 256),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", DECODER, 256),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"hidden_size": 256, "n_layer": 3, "n_head": 8, "vocab_size": VOCABULARY, "use_cache": False}, 256),
    "bert": ("BertForMaskedLM", "BertConfig", DECODER, 256),
    "mamba": ("MambaForCausalLM", "MambaConfig", {"hidden_size": 256, "num_hidden_layers": 3, "state_size": 8, "vocab_size": VOCABULARY, "use_cache": False}, 64),
    "vit": ("ViTForImageClassification", "ViTConfig", DECODER | IMAGE | {"patch_size": 8}, 0),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", IMAGE | {"hidden_sizes": [64, 128], "depths": [2, 2], "num_stages": 2}, 0),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [2, 2], "num_labels": 10}, 0),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", SPEECH, 48),
}


class Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 128)
        self.cells = kind(128, 256, 2, batch_first=True)
        self.head = torch.nn.Linear(256, VOCABULARY)

    def forward(self, input_ids):
        return self.head(self.cells(self.embed(input_ids))[0])


RECURRENT = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


class Output(torch.nn.Module):
    """With positional inputs, and the first output alone."""

    def __init__(self, net, names):
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *args):
        out = self.net(**dict(zip(self.names, args)))
        return out if isinstance(out, torch.Tensor) else out[0]


def model(name):
    """The module and its inputs."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    if name in RECURRENT:
        net, tokens = Recurrent(RECURRENT[name]), 64
    else:
        cls, config, values, tokens = LIBRARY[name]
        net = getattr(transformers, cls)(getattr(transformers, config)(**values))
    net = net.eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() == 1:  # fresh ones are all 0 or 1: the exporter would merge them
                parameter.add_(0.02 * torch.randn_like(parameter))
    ids = torch.randint(3, VOCABULARY, (4, tokens or 1))
    if not tokens:
        inputs = {"pixel_values": torch.randn(8, 3, 112, 112)}
    elif name == "whisper":
        inputs = {"input_features": torch.randn(2, 80, 600), "decoder_input_ids": ids[:2]}
    else:
        inputs = {"input_ids": ids}
    return Output(net, list(inputs)), inputs


def export(name, folder):
    from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    net, inputs = model(name)
    with torch.no_grad():
        output = net(*inputs.values())
    torch.onnx.export(net, tuple(inputs.values()), str(folder / "model.onnx"), dynamo=True, input_names=list(inputs),
                      output_names=["output"], external_data=True, verbose=False)
    for key, value in (inputs | {"cotangent": torch.randn_like(output)}).items():
        np.save(folder / f"{key}.npy", value.numpy())
    save_file({"output": output.contiguous()}, folder / "golden.safetensors")


def time_steps(name, folder, iterations):
    net, inputs = model(name)
    cotangent = torch.from_numpy(np.load(folder / "cotangent.npy"))
    times = []
    for _ in range(iterations + 1):
        net.zero_grad(set_to_none=True)
        start = time.perf_counter()
        (net(*inputs.values()) * cotangent).sum().backward()
        times.append(time.perf_counter() - start)
    return {"times_s": times[1:]}


def main():
    job, *args = sys.argv[1:]
    if job == "names":
        print("\n".join([*LIBRARY, *RECURRENT]))
    elif job == "export":
        export(args[0], pathlib.Path(args[1]))
    else:
        print(json.dumps(time_steps(args[0], pathlib.Path(args[1]), int(args[2]))))


main()
