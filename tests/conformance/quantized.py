"""Node tests of small integers with scales: results by ONNX Runtime, files like pack.py's.

    python quantized.py OUT_FOLDER

A case is an op, its inputs in order (None: left out), and its attributes; ops of ONNX itself are of opset 21.
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

rng = np.random.default_rng(13)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def codes(dtype, *shape):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def u8(x):
    return np.array(x, np.uint8)


def i8(x):
    return np.array(x, np.int8)


def f32(x):
    return np.array(x, np.float32)


def scales(*shape):
    return (rng.random(shape) * 0.02 + 0.005).astype(np.float32)


K, N, BLOCK = 40, 6, 16  # the last block of a row is not full
BLOCKS = 3
HALVES = f32([-129.6, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.4, 127.5, 300, np.inf, -np.inf])


def bits(width, **more):
    blob = BLOCK * width // 8
    b = codes(np.uint8, N, BLOCKS, blob)
    return b, dict(K=K, N=N, bits=width, block_size=BLOCK, **more)


def product_of_bits(width, zeros=None, bias=False):
    b, attributes = bits(width)
    parts = [floats(2, 3, K), b, scales(N, BLOCKS)]
    if zeros == "packed":
        parts.append(codes(np.uint8, N, -(-BLOCKS * width // 8)))
    elif zeros == "floats":
        parts.append(floats(N, BLOCKS) + 7)
    if bias:
        parts += [None] * (5 - len(parts)) + [floats(N)]
    return "com.microsoft::MatMulNBits", parts, attributes


def table(width, zeros=False, block=16):
    packed = 8 // width
    parts = [codes(np.uint8, 7, 48 // packed), np.array([[3, 6], [0, 3]], np.int64), scales(7, 48 // block)]
    if zeros:
        parts.append(codes(np.uint8, 7, -(-(48 // block) // packed)))
    return "com.microsoft::GatherBlockQuantized", parts, dict(bits=width, block_size=block)


A, B = codes(np.uint8, 5, 8), codes(np.int8, 8, 4)
X = floats(2, 5, 8)
GEMM = [A, f32(0.02), u8(130), B, scales(4), i8([1, -2, 3, 0]), np.array([50, -900, 7, 0], np.int32)]
ATTENTION = [codes(np.uint8, 2, 3, 8), codes(np.int8, 8, 24), floats(24), f32(0.02), f32(0.01), None, u8(120), i8(3)]

CASES = {
    "quantize_halves": ("QuantizeLinear", [HALVES, f32(1), i8(0)], {}),
    "quantize_default_zero": ("QuantizeLinear", [X, f32(0.02)], {}),
    "quantize_i16": ("QuantizeLinear", [X * 2000, f32(0.1), np.array(-7, np.int16)], {}),
    "quantize_columns": ("QuantizeLinear", [X, scales(8), codes(np.uint8, 8)], dict(axis=-1)),
    "quantize_half_type": ("QuantizeLinear", [X.astype(np.float16), np.array(0.02, np.float16), u8(128)], {}),
    "dequantize_i32": ("DequantizeLinear", [codes(np.int32, 9), f32(1e-9)], {}),
    "dequantize_rows": ("DequantizeLinear", [A, scales(5), codes(np.uint8, 5)], dict(axis=0)),
    "dequantize_half_type": ("DequantizeLinear", [A, np.array(0.03, np.float16), u8(100)], {}),
    "dynamic": ("DynamicQuantizeLinear", [X], {}),
    "dynamic_positive": ("DynamicQuantizeLinear", [np.abs(X) + 1], {}),
    "dynamic_zeros": ("DynamicQuantizeLinear", [np.zeros((2, 3), np.float32)], {}),
    "matmul_integer": ("MatMulInteger", [A, B, u8(3), i8(-4)], {}),
    "matmul_integer_columns": ("MatMulInteger", [codes(np.uint8, 2, 5, 8), B, u8(200), i8([1, 2, -3, 4])], {}),
    "matmul_integer_no_zeros": ("MatMulInteger", [codes(np.int8, 5, 8), B], {}),
    "qlinear_matmul": ("QLinearMatMul", [A, f32(0.02), u8(120), B, scales(4), i8([0, 1, 2, 3]), f32(0.05), u8(7)], {}),
    "bits_2": product_of_bits(2),
    "bits_4": product_of_bits(4),
    "bits_8": product_of_bits(8),
    "bits_2_zeros": product_of_bits(2, "packed"),
    "bits_4_zeros": product_of_bits(4, "packed"),
    "bits_8_zeros": product_of_bits(8, "packed"),
    "bits_4_float_zeros": product_of_bits(4, "floats"),
    "bits_4_bias": product_of_bits(4, bias=True),
    "fp4": ("com.microsoft::MatMulBnb4", [floats(2, 3, 32), codes(np.uint8, 5 * 16), scales(10)],
            dict(K=32, N=5, block_size=16, quant_type=0)),
    "nf4": ("com.microsoft::MatMulBnb4", [floats(2, 3, 32), codes(np.uint8, 5 * 16), scales(10)],
            dict(K=32, N=5, block_size=16, quant_type=1)),
    "table_2": table(2),
    "table_4": table(4),
    "table_8": table(8),
    "table_4_zeros": table(4, True),
    "table_8_zeros": table(8, True),
    "dynamic_product": ("com.microsoft::DynamicQuantizeMatMul", [X, B, scales(4), i8([0, 1, 2, 3]), floats(4)], {}),
    "integers_to_float": ("com.microsoft::MatMulIntegerToFloat",
                          [A, B, f32(0.02), scales(4), u8(100), i8([0, 1, 2, 3]), floats(4)], {}),
    "qgemm": ("com.microsoft::QGemm", [*GEMM, f32(0.1), u8(100)], dict(transA=0, transB=0, alpha=1.0)),
    "qgemm_floats": ("com.microsoft::QGemm", GEMM, dict(alpha=0.5)),
    "qattention": ("com.microsoft::QAttention", ATTENTION, dict(num_heads=2)),
    "qattention_causal": ("com.microsoft::QAttention", ATTENTION, dict(num_heads=2, unidirectional=1)),
    "qadd": ("com.microsoft::QLinearAdd", [A, f32(0.02), u8(120), A[:1], f32(0.03), u8(3), f32(0.05), u8(7)], {}),
    "qmul": ("com.microsoft::QLinearMul", [A, f32(0.02), u8(120), A[:1], f32(0.03), u8(3), f32(0.09), u8(7)], {}),
    "qconcat": ("com.microsoft::QLinearConcat", [f32(0.05), u8(7), A, f32(0.02), u8(120), A, f32(0.03), u8(3)], dict(axis=1)),
    "qsigmoid": ("com.microsoft::QLinearSigmoid", [A, f32(0.05), u8(120), f32(1 / 256), u8(0)], {}),
    "qleaky": ("com.microsoft::QLinearLeakyRelu", [A, f32(0.05), u8(120), f32(0.05), u8(30)], dict(alpha=0.2)),
}


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def main():
    out = pathlib.Path(sys.argv[1])
    for name, (key, parts, attributes) in CASES.items():
        domain, _, op = key.rpartition("::")
        feeds = {f"x{i}": np.array(part, order="C") for i, part in enumerate(parts) if part is not None}
        names = ["" if part is None else f"x{i}" for i, part in enumerate(parts)]
        results = [f"y{i}" for i in range(3 if op == "DynamicQuantizeLinear" else 1)]
        node = helper.make_node(op, names, results, domain=domain, **attributes)
        outputs = [onnx.ValueInfoProto(name=y) for y in results]
        graph = helper.make_graph([node], name, [info(k, v) for k, v in feeds.items()], outputs)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        constant = onnx.ModelProto.FromString(model.SerializeToString())  # weights have to be known there
        del constant.graph.input[1:]
        constant.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in list(feeds.items())[1:])
        if op == "GatherBlockQuantized":
            constant.graph.input[0].CopyFrom(info("x1", feeds["x1"]))
            constant.graph.initializer.append(numpy_helper.from_array(feeds["x0"], "x0"))
            del constant.graph.initializer[0]
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(constant.SerializeToString(), options, providers=["CPUExecutionProvider"])
        first = constant.graph.input[0].name
        values = session.run(None, {first: feeds[first]})
        for output, value in zip(model.graph.output, values):
            output.CopyFrom(info(output.name, value))
        tensors = {f"input:{k}": v for k, v in feeds.items()} | {f"output:{y}": v for y, v in zip(results, values)}
        model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in tensors.items())
        (out / f"quantized_{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


main()
