"""Node tests of integers, extreme ones among them: results by ONNX Runtime, files like pack.py's.

    python integers.py OUT_FOLDER

A case is an op, its inputs in order (None: left out), and its attributes. Where ONNX Runtime's own result is an accident of how it
computes (a sum of int32 that leaves its range), unsupported.txt lists the case: what is compiled must not give another.
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

LEAST, MOST = -(2**31), 2**31 - 1


def i8(*values):
    return np.array(values, np.int8)


def i32(*values):
    return np.array(values, np.int32)


def i64(*values):
    return np.array(values, np.int64)


def f32(*values):
    return np.array(values, np.float32)


SMALL = i32([-7, 5, -2], [3, -8, 4])
WIDE = i32([LEAST, MOST, -2], [MOST, LEAST, 3])
A, B = i32(-7, 7, -7, 7, -6, LEAST), i32(3, -3, -3, 3, 2, 5)
PLACES = i64(0, 2, 0, 2)
LARGE = i32(MOST, 70000, LEAST, 1), i32(MOST, 70000, 3, -2)
EMPTY = np.zeros((2, 0), np.int8)

CASES = {
    **{f"{op}_{name}": ("".join(map(str.title, op.split("_"))), [x, i64(1)], {})
       for op in ("reduce_sum", "reduce_mean", "reduce_prod", "reduce_sum_square", "reduce_l1", "reduce_l2", "reduce_max",
                  "reduce_min")
       for name, x in (("small", SMALL), ("i64", SMALL.astype(np.int64)))},
    "reduce_prod_overflow": ("ReduceProd", [WIDE, i64(1)], {}),
    "reduce_sum_extreme": ("ReduceSum", [WIDE, i64(0)], {}),
    "reduce_sum_square_overflow": ("ReduceSumSquare", [WIDE, i64(1)], {}),
    "reduce_l2_overflow": ("ReduceL2", [WIDE, i64(1)], {}),
    "reduce_max_of_none": ("ReduceMax", [EMPTY, i64(1)], {}),
    "reduce_min_of_none": ("ReduceMin", [EMPTY.astype(np.uint8), i64(1)], {}),
    "mod": ("Mod", [A, B], {}),
    "mod_fmod": ("Mod", [A, B], dict(fmod=1)),
    "div": ("Div", [A, B], {}),
    "div_i64": ("Div", [A.astype(np.int64), B.astype(np.int64)], {}),
    "abs_least": ("Abs", [i8(-128, -127, 127)], {}),
    "neg_least": ("Neg", [i8(-128, -127, 127)], {}),
    "add_wraps": ("Add", [i8(127, -128, 100), i8(1, -1, 100)], {}),
    "mul_wraps": ("Mul", [np.array([65535, 256], np.uint16), np.array([65535, 256], np.uint16)], {}),
    "cumsum": ("CumSum", [SMALL, np.array(1, np.int64)], dict(reverse=1, exclusive=1)),
    "pow_by_floats": ("Pow", [SMALL, f32(3, 2, 0)], {}),
    "pow_by_fractions": ("Pow", [np.abs(SMALL), f32(0.5, 1.5, 2.5)], {}),
    "scatter_elements_add_wraps": ("ScatterElements", [LARGE[0], PLACES, LARGE[1]], dict(reduction="add")),
    "scatter_elements_mul_wraps": ("ScatterElements", [LARGE[0], PLACES, LARGE[1]], dict(reduction="mul")),
    "scatter_nd_add_wraps": ("ScatterND", [LARGE[0], PLACES[:, None], LARGE[1]], dict(reduction="add")),
    "scatter_nd_mul_wraps": ("ScatterND", [LARGE[0], PLACES[:, None], LARGE[1]], dict(reduction="mul")),
    "scatter_nd_max_nan": ("ScatterND", [f32(1, 2, 3), i64([0], [1], [1]), f32(np.nan, 5, 4)], dict(reduction="max")),
    "bitwise_and": ("BitwiseAnd", [SMALL, WIDE], {}),
    "bitwise_or_i8": ("BitwiseOr", [i8([-128, 5], [-7, 127]), i8(-86, 12)], {}),
    "bitwise_xor_u8": ("BitwiseXor", [np.array([[255, 5], [128, 0]], np.uint8), np.array([170, 85], np.uint8)], {}),
    "bitwise_xor_i64": ("BitwiseXor", [i64(-(2**63), 2**62 + 1, -1), i64(1)], {}),
    "bitwise_not": ("BitwiseNot", [WIDE], {}),
    "bitwise_not_u16": ("BitwiseNot", [np.array([0, 1, 65535], np.uint16)], {}),
    "resize_nearest": ("Resize", [SMALL[None, None], None, f32(1, 1, 2, 2)], dict(mode="nearest")),
    "resize_linear": ("Resize", [SMALL[None, None], None, f32(1, 1, 2, 2)], dict(mode="linear")),
}


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def main():
    out = pathlib.Path(sys.argv[1])
    for name, (op, values, attributes) in CASES.items():
        # The conformance test knows scales by their name.
        feeds = {"scales" if op == "Resize" and i == 2 else f"x{i}": v for i, v in enumerate(values) if v is not None}
        names = [next((k for k, v in feeds.items() if v is value), "") for value in values]
        graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], name, [info(k, v) for k, v in feeds.items()],
                                  [onnx.ValueInfoProto(name="y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        result = session.run(None, feeds)[0]
        model.graph.output[0].CopyFrom(info("y", result))
        onnx.checker.check_model(model)
        tensors = {f"input:{k}": v for k, v in feeds.items()} | {"output:y": result}
        model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in tensors.items())
        (out / f"integers_{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


main()
