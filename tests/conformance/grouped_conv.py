"""Conv with groups, of which the onnx package has no test: results by ONNX Runtime, files like pack.py's.

    python grouped_conv.py OUT_FOLDER
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

CASES = {
    "conv_groups": ((2, 6, 7, 5), (9, 2, 3, 2), True, dict(group=3, pads=[1, 0, 2, 1], strides=[2, 1])),
    "conv_groups_of_patches": ((2, 4, 6), (6, 2, 3), False, dict(group=2, strides=[3])),
    "conv_groups_of_one_channel": ((2, 3, 9), (6, 1, 2), True, dict(group=3, dilations=[2])),
    "conv_depthwise_causal": ((2, 5, 8), (5, 1, 4), True, dict(group=5, pads=[3, 0])),
    "conv_depthwise": ((1, 3, 6, 7), (3, 1, 2, 3), False, dict(group=3, auto_pad="SAME_UPPER", strides=[2, 1])),
}


def info(name, array):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)


def main():
    out = pathlib.Path(sys.argv[1])
    rng = np.random.default_rng(7)
    for name, (x, w, bias, attributes) in CASES.items():
        shapes = {"x": x, "W": w} | ({"B": w[:1]} if bias else {})
        feeds = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
        node = helper.make_node("Conv", list(feeds), ["y"], **attributes)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph([node], name, [info(k, v) for k, v in feeds.items()], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        result = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
        model.graph.output[0].CopyFrom(info("y", result))
        onnx.checker.check_model(model)
        tensors = {f"input:{k}": v for k, v in feeds.items()} | {"output:y": result}
        model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in tensors.items())
        (out / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


main()
