"""Packs node tests of the onnx package (onnx/backend/test/data/node) one file each.

    python pack.py NODE_FOLDER OUT_FOLDER [--largest BYTES] [--opset N]

The inputs of a test become initializers "input:<name>", the results "output:<name>" of its model. A test is taken when
all of its ops are in OPS and all of its tensors have one of TYPES; with --opset if it uses that one, which then ends
the file's name.
"""
import argparse
import pathlib

import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

OPS = """
Abs Add And ArgMax ArgMin Attention Cast CastLike Ceil Celu Clip Concat Constant ConstantOfShape Conv Cos CumSum DFT
Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gelu Gemm Greater
GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log
LogSoftmax MatMul Max Mean Min Mish Mod Mul Neg NegativeLogLikelihoodLoss NonZero Not OneHot Or PRelu Pad Pow
RMSNormalization Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
ReduceProd ReduceSum ReduceSumSquare Relu Reshape RotaryEmbedding Round ScatterElements ScatterND Selu SequenceAt
Shape Sigmoid Sign SimplifiedLayerNormalization Sin Size Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign
Split SplitToSequence Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
""".split()

TYPES = [getattr(onnx.TensorProto, name) for name in "FLOAT FLOAT16 DOUBLE BOOL INT32 INT64".split()]


def read(path, name):
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    tensor.name = name
    return tensor


def results(model, tensors):
    """The tensors, with results by the reference of the onnx package that runs this where 1.18's were wrong: it took
    three-dimensional q, k and v apart without the transposition, and repeated kv heads as a whole instead of each."""
    if all(node.op_type != "Attention" for node in model.graph.node):
        return tensors
    feeds = {name[6:]: numpy_helper.to_array(t) for name, t in tensors.items() if name.startswith("input:")}
    values = ReferenceEvaluator(model).run(None, feeds)
    for info, value in zip(model.graph.output, values):
        tensors[f"output:{info.name}"] = numpy_helper.from_array(value, f"output:{info.name}")
    return tensors


def pack(folder, opsets):
    model = onnx.load(folder / "model.onnx")
    if not {node.op_type for node in model.graph.node} <= set(OPS):
        return None
    if any(opset.version not in opsets for opset in model.opset_import if not opset.domain):
        return None
    tensors = {}
    for kind, infos in (("input", model.graph.input), ("output", model.graph.output)):
        for i, info in enumerate(infos):
            if info.type.tensor_type.elem_type not in TYPES:
                return None
            name = f"{kind}:{info.name}"
            tensors[name] = read(folder / "test_data_set_0" / f"{kind}_{i}.pb", name)
    model.graph.initializer.extend(results(model, tensors).values())
    return model.SerializeToString(deterministic=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("node_folder", type=pathlib.Path)
    parser.add_argument("out_folder", type=pathlib.Path)
    parser.add_argument("--largest", type=int, default=30000)
    parser.add_argument("--opset", type=int)
    args = parser.parse_args()
    opsets = [args.opset] if args.opset else range(13, 24)
    end = f"_opset{args.opset}" if args.opset else ""
    for folder in sorted(args.node_folder.iterdir()):
        if folder.name.endswith("_expanded") or "_expanded_ver" in folder.name:
            continue
        data = pack(folder, opsets)
        if data and len(data) <= args.largest:
            (args.out_folder / (folder.name.removeprefix("test_") + end + ".onnx")).write_bytes(data)


if __name__ == "__main__":
    main()
