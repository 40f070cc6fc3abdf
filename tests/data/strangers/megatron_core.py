"""megatron-core's own GPT, for tests/exec/strangers_test.cc: `megatron_core` as Llama is (grouped heads, rotary
positions, SwiGLU, RMSNorm), by its local layer spec on the CPU.

    python megatron_core.py OUT_FOLDER

Goldens are PyTorch's, of the module in float64. Made with megatron-core 0.16.1 and torch 2.15.
"""
import contextlib
import os
import pathlib
import sys

import torch
from torch.nn import functional as F
from weights import BATCH, H, LAYERS, SEQ, V, write

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
torch.cuda.current_device = lambda: torch.device("cpu")
from megatron.core import jit, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random
from megatron.core.transformer.transformer_config import TransformerConfig

random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()


class Causal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        fusions = ("bias_dropout_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion",
                   "bias_activation_fusion", "apply_rope_fusion", "persist_layer_norm")
        config = TransformerConfig(
            num_layers=LAYERS, hidden_size=H, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=40,
            normalization="RMSNorm", gated_linear_unit=True, activation_func=F.silu, add_bias_linear=False,
            hidden_dropout=0, attention_dropout=0, use_cpu_initialization=True, **dict.fromkeys(fusions, False))
        self.gpt = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), V, SEQ, parallel_output=False,
                            position_embedding_type="rope")
        for p in self.parameters():
            torch.nn.init.normal_(p, 1 if p.ndim == 1 else 0, 0.2)

    def double(self):
        RotaryEmbedding.forward.cache_clear()  # of the exporter's
        return super().double()

    def forward(self, input_ids):
        positions = torch.arange(SEQ).expand(BATCH, SEQ)
        unseen = torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool).triu(1)
        return self.gpt(input_ids, positions, unseen)


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    jit.disable_jit_fuser()
    parallel_state.initialize_model_parallel()
    write(pathlib.Path(sys.argv[1]), "megatron_core", Causal, "dynamo", optimize=True)
