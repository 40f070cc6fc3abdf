"""Node tests of what ONNX Runtime fuses (domain com.microsoft): results by ONNX Runtime, files like pack.py's.

    python microsoft_ops.py OUT_FOLDER

A case is an op, its inputs in order (a shape: random floats; an array: as it is; None: left out), how many outputs it
has, and its attributes.
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

B, S, T, N, D, H, P = 2, 5, 7, 4, 8, 32, 3  # batch, queries, keys, heads, features of a head, of all, past


def i32(*values):
    return np.array(values, np.int32)


def i64(*values):
    return np.array(values, np.int64)


ROWS = i32([1, 1, 1, 0, 0], [1, 1, 1, 1, 0])
ROWS_OF_ALL = i32([1, 1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1])
KEYS = i32([1, 1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 1])
MATRIX = np.stack([np.tril(np.ones((S, S), np.int32)), np.tril(np.ones((S, S), np.int32), 1)])
PROMPT = [i32(S - 1, S - 1), i32(S)[0]]  # of GroupQueryAttention
POSITIONS = i64([0, 1, 2, 3, 4], [3, 4, 5, 6, 7])
QKV = [(B, S, H), (H, 3 * H), (3 * H,)]
KV, E = 2, 16  # of GroupQueryAttention: heads of keys and values, features of a head
GROUPED = [(B, S, N * E), (B, S, KV * E), (B, S, KV * E), None, None, *PROMPT]
PACKED = [(B, S, (N + 2 * KV) * E), *[None] * 4, *PROMPT]
PAST = [(B, N, P, D)] * 2
AFTER_PAST = [(1, S, N * E), (1, S, KV * E), (1, S, KV * E), *[(1, KV, P, E)] * 2, i32(P + S - 1), i32(P + S)[0]]
STEP = [(B, 1, N * E), (B, 1, KV * E), (B, 1, KV * E), *[(B, KV, P, E)] * 2, i32(P, P), i32(P + 1)[0]]


def cache(first, *lengths):
    """T places with so many tokens of each sequence: ONNX Runtime makes the others zero where it copies them."""
    filled = np.arange(T)[:, None] < np.reshape(lengths, (B, 1, 1, 1))
    return (np.sin(first + np.arange(B * KV * T * E)).reshape(B, KV, T, E) * filled).astype(np.float32)


# Lengths that differ, and a cache of more places than tokens.
RAGGED = [*STEP[:3], cache(1, P, T), cache(7, P, T), i32(P, T), i32(T + 1)[0]]
PARTLY = [*STEP[:3], cache(1, P, P - 1), cache(7, P, P - 1), i32(P, P - 1), i32(P + 1)[0]]
PARTLY_PROMPT = [*GROUPED[:3], cache(1, 0, 0), cache(7, 0, 0), *PROMPT]
PACKED_PAST = (2, B, N, P, D)
TABLES, WIDE_TABLES = [(9, D // 2)] * 2, [(9, E // 2)] * 2
heads = dict(num_heads=N)
grouped = dict(num_heads=N, kv_num_heads=KV)
linear = dict(kv_num_heads=KV, scale=0.1)
DECAYS = -np.abs(np.sin(np.arange(B * S * KV))).reshape(B, S, KV).astype(np.float32) / 8

CASES = {
    "attention": ("Attention", [(B, S, 10), (10, 3 * H), (3 * H,)], 1, heads),
    "attention_causal": ("Attention", QKV, 1, dict(heads, unidirectional=1, scale=0.3)),
    "attention_present": ("Attention", QKV, 2, dict(heads, unidirectional=1)),
    "attention_other_values": ("Attention", [(B, S, H), (H, 56), (56,)], 1,
                               dict(heads, qkv_hidden_sizes=[16, 16, 24])),
    "attention_lengths": ("Attention", [*QKV, i32(3, 5)], 1, heads),
    "attention_ends_and_starts": ("Attention", [*QKV, i32(3, 5, 0, 1)], 1, heads),
    "attention_rows": ("Attention", [*QKV, ROWS], 1, dict(heads, mask_filter_value=-50.0)),
    "attention_matrices": ("Attention", [*QKV, MATRIX], 1, heads),
    "attention_rows_causal": ("Attention", [*QKV, ROWS], 1, dict(heads, unidirectional=1)),
    "attention_bias": ("Attention", [*QKV, None, None, (1, N, S, S)], 1, heads),
    "attention_bias_of_batch": ("Attention", [*QKV, ROWS, None, (B, 1, S, S)], 1, heads),
    "multihead": ("MultiHeadAttention", [(B, S, H), (B, T, H), (B, T, H)], 1, heads),
    "multihead_bias": ("MultiHeadAttention", [(B, S, H), (B, T, H), (B, T, H), (3 * H,)], 1, dict(heads, scale=0.4)),
    "multihead_other_values": ("MultiHeadAttention", [(B, S, H), (B, T, H), (B, T, 16), (2 * H + 16,)], 1, heads),
    "multihead_heads_first": ("MultiHeadAttention", [(B, S, H), (B, N, T, D), (B, N, T, D)], 1, heads),
    "multihead_causal": ("MultiHeadAttention", [(B, S, H), (B, S, H), (B, S, H)], 3, dict(heads, unidirectional=1)),
    "multihead_mask": ("MultiHeadAttention", [(B, S, H), (B, T, H), (B, T, H), None, KEYS], 1, heads),
    "multihead_mask_and_bias": ("MultiHeadAttention", [(B, S, H), (B, T, H), (B, T, H), None, KEYS, (B, N, S, T)], 1,
                                dict(heads, mask_filter_value=-100.0)),
    "groupquery": ("GroupQueryAttention", GROUPED, 3, grouped),
    "groupquery_packed": ("GroupQueryAttention", PACKED, 3, grouped),
    "groupquery_rotary": ("GroupQueryAttention", [*GROUPED, *WIDE_TABLES], 3, dict(grouped, do_rotary=1)),
    "groupquery_interleaved": ("GroupQueryAttention", [*GROUPED, *WIDE_TABLES], 3,
                               dict(grouped, do_rotary=1, rotary_interleaved=1)),
    "groupquery_rotary_packed": ("GroupQueryAttention", [*PACKED, *WIDE_TABLES], 3, dict(grouped, do_rotary=1)),
    "groupquery_positions": ("GroupQueryAttention", [*GROUPED, *WIDE_TABLES, POSITIONS], 3, dict(grouped, do_rotary=1)),
    "groupquery_first_position": ("GroupQueryAttention", [*GROUPED, *WIDE_TABLES, POSITIONS[::-1]], 3,
                                  dict(grouped, do_rotary=1)),
    "groupquery_window": ("GroupQueryAttention", GROUPED, 3, dict(grouped, local_window_size=2)),
    "groupquery_wide_window": ("GroupQueryAttention", GROUPED, 3, dict(grouped, local_window_size=S)),
    "groupquery_softcap": ("GroupQueryAttention", GROUPED, 3, dict(grouped, softcap=0.7, scale=2.0)),
    "groupquery_bias": ("GroupQueryAttention", [*GROUPED, *[None] * 3, (B, N, S, S)], 3, grouped),
    "groupquery_softcap_bias_window": ("GroupQueryAttention", [*GROUPED, *[None] * 3, (1, N, S, S)], 3,
                                       dict(grouped, softcap=1.5, local_window_size=3)),
    "rotary_positions": ("RotaryEmbedding", [(B, S, H), POSITIONS, *TABLES], 1, {}),
    "rotary_offset": ("RotaryEmbedding", [(B, S, H), i64(2), *TABLES], 1, {}),
    "rotary_from_zero": ("RotaryEmbedding", [(B, S, H), i64(0), *TABLES], 1, dict(interleaved=1)),
    "rotary_four_dims": ("RotaryEmbedding", [(B, N, S, D), POSITIONS, *TABLES], 1, dict(interleaved=1)),
    "rotary_part": ("RotaryEmbedding", [(B, S, H), POSITIONS, (9, 2), (9, 2)], 1,
                    dict(num_heads=N, rotary_embedding_dim=4)),
    "embed_layer_norm": ("EmbedLayerNormalization",
                         [i32([3, 1, 4], [1, 5, 6]), i32([0, 0, 1], [1, 0, 0]), (7, H), (5, H), (2, H), (H,), (H,)], 2,
                         dict(epsilon=0.01)),
    "embed_layer_norm_mask": ("EmbedLayerNormalization",
                              [i32([3, 1, 4], [1, 5, 6]), None, (7, H), (5, H), None, (H,), (H,),
                               i32([1, 1, 0], [1, 1, 1])], 2, {}),
    "embed_layer_norm_positions": ("EmbedLayerNormalization",
                                   [i32([3, 1, 4], [1, 5, 6]), None, (7, H), (5, H), None, (H,), (H,), None,
                                    i32([4, 1, 2], [0, 3, 2])], 3, {}),
    "quick_gelu": ("QuickGelu", [(B, H)], 1, dict(alpha=1.2)),
    "multihead_past": ("MultiHeadAttention", [*[(B, S, H)] * 3, *[None] * 3, *PAST], 3, heads),
    "multihead_past_causal": ("MultiHeadAttention", [*[(B, S, H)] * 3, *[None] * 3, *PAST], 3,
                              dict(heads, unidirectional=1)),
    "multihead_past_bias": ("MultiHeadAttention", [*[(B, S, H)] * 3, (3 * H,), None, (B, N, S, P + S), *PAST], 3, heads),
    "groupquery_past": ("GroupQueryAttention", AFTER_PAST, 3, grouped),
    "groupquery_past_rotary": ("GroupQueryAttention", [*AFTER_PAST, *WIDE_TABLES], 3, dict(grouped, do_rotary=1)),
    "groupquery_past_window": ("GroupQueryAttention", AFTER_PAST, 3, dict(grouped, local_window_size=4)),
    "groupquery_step": ("GroupQueryAttention", [*STEP, *WIDE_TABLES], 3, dict(grouped, do_rotary=1)),
    "groupquery_step_window": ("GroupQueryAttention", STEP, 3, dict(grouped, local_window_size=2, softcap=2.0)),
    "groupquery_step_positions": ("GroupQueryAttention", [*STEP, *WIDE_TABLES, i64([3], [5])], 3,
                                  dict(grouped, do_rotary=1)),
    "groupquery_past_from_zero": ("GroupQueryAttention", [*AFTER_PAST, *WIDE_TABLES, POSITIONS[:1]], 3,
                                  dict(grouped, do_rotary=1)),
    "groupquery_ragged": ("GroupQueryAttention", [*RAGGED, *WIDE_TABLES], 3, dict(grouped, do_rotary=1)),
    "groupquery_ragged_window": ("GroupQueryAttention", RAGGED, 3, dict(grouped, local_window_size=3, softcap=1.5)),
    "groupquery_partly_filled": ("GroupQueryAttention", [*PARTLY, *WIDE_TABLES], 3, dict(grouped, do_rotary=1)),
    "groupquery_partly_filled_prompt": ("GroupQueryAttention", [*PARTLY_PROMPT, *WIDE_TABLES], 3,
                                        dict(grouped, do_rotary=1)),
    "groupquery_smooth_softmax": ("GroupQueryAttention", GROUPED, 3, dict(grouped, smooth_softmax=1)),
    "groupquery_sinks": ("GroupQueryAttention", [*GROUPED, *[None] * 4, (N,)], 3, grouped),
    "groupquery_sinks_step_window": ("GroupQueryAttention", [*STEP, *[None] * 4, (N,)], 3,
                                     dict(grouped, local_window_size=2)),
    "attention_past": ("Attention", [*QKV, None, PACKED_PAST], 2, heads),
    "attention_past_causal": ("Attention", [*QKV, None, PACKED_PAST], 2, dict(heads, unidirectional=1)),
    "attention_past_rows": ("Attention", [*QKV, ROWS_OF_ALL, PACKED_PAST], 2, dict(heads, unidirectional=1)),
    "fused_matmul_batches": ("FusedMatMul", [(S, B, N, D), (T, B, N, D)], 1,
                             dict(transBatchA=1, transBatchB=1, transB=1, alpha=0.3)),
    "fused_matmul_batch_of_columns": ("FusedMatMul", [(D, B, N, S), (B, N, D, T)], 1, dict(transBatchA=1, transA=1)),
    "fused_conv_relu": ("FusedConv", [(B, 6, 5, 7), (4, 3, 3, 2), (4,)], 1,
                        dict(activation="Relu", group=2, pads=[1, 0, 1, 1], kernel_shape=[3, 2])),
    "fused_conv_sum_clip": ("FusedConv", [(B, 3, 5), (4, 3, 2), (4,), (B, 4, 4)], 1,
                            dict(activation="Clip", activation_params=[-0.5, 0.75])),
    "fused_conv_leaky": ("FusedConv", [(B, 3, 5), (4, 3, 2)], 1, dict(activation="LeakyRelu", activation_params=[0.3])),
    "fused_gemm_leaky": ("FusedGemm", [(S, D), (D, T), (T,)], 1, dict(activation="LeakyRelu", activation_alpha=0.3)),
    "fused_gemm_hard_sigmoid": ("FusedGemm", [(S, D), (D, T), (T,)], 1,
                                dict(activation="HardSigmoid", activation_alpha=0.3, activation_beta=0.4)),
    "causal_conv": ("CausalConvWithState", [(B, 3, S), (3, 1, 4), (3,)], 2, dict(activation="silu")),
    "causal_conv_dilation": ("CausalConvWithState", [(B, 3, S), (3, 1, 3), None, (B, 3, 4)], 2, dict(dilation=2)),
    "causal_conv_channels_last": ("CausalConvWithState", [(B, S, 2, 3), (6, 1, 3), (6,), (B, 2, 2, 3)], 2,
                                  dict(channels_last=1)),
    "linear_attention": ("LinearAttention", [(B, S, N * E), (B, S, KV * E), (B, S, KV * D), None, DECAYS, DECAYS], 2,
                         dict(linear, q_num_heads=N, chunk_size=2)),
    "linear_attention_few_queries": ("LinearAttention", [(B, S, E), (B, S, KV * E), (B, S, KV * D), None, DECAYS], 2,
                                     dict(linear, q_num_heads=1, update_rule="gated")),
}


def feed(rng, spec):
    return rng.standard_normal(spec).astype(np.float32) if isinstance(spec, tuple) else np.asarray(spec)


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def main():
    out = pathlib.Path(sys.argv[1])
    rng = np.random.default_rng(11)
    for name, (op, specs, outputs, attributes) in CASES.items():
        feeds = {f"x{i}": feed(rng, spec) for i, spec in enumerate(specs) if spec is not None}
        names = ["" if spec is None else f"x{i}" for i, spec in enumerate(specs)]
        results = [f"y{i}" for i in range(outputs)]
        node = helper.make_node(op, names, results, domain="com.microsoft", **attributes)
        graph = helper.make_graph([node], name, [info(k, v) for k, v in feeds.items()],
                                  [onnx.ValueInfoProto(name=y) for y in results])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        values = session.run(None, feeds)
        for output, value in zip(model.graph.output, values):
            output.CopyFrom(info(output.name, value))
        tensors = {f"input:{k}": v for k, v in feeds.items()} | {f"output:{y}": v for y, v in zip(results, values)}
        model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in tensors.items())
        (out / f"microsoft_{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


main()
