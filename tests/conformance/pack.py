"""Packs node tests of the onnx package (onnx/backend/test/data/node) one file each.

    python pack.py NODE_FOLDER OUT_FOLDER [--largest BYTES] [--opset N] [--only NAME...]

Where NODE_FOLDER is "-", the tests are those that the installed package generates (later ones hold no folder). The
inputs of a test become initializers "input:<name>", the results "output:<name>" of its model. A test is taken when
all of its ops are in OPS and all of its tensors have one of TYPES; with --opset if it uses that one, which then ends
the file's name.
"""
import argparse
import pathlib

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

OPS = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BitwiseAnd
BitwiseNot BitwiseOr BitwiseXor Cast CastLike CausalConvWithState Ceil Celu Clip Concat Constant ConstantOfShape Conv
ConvTranspose Cos Cosh CumSum DFT DepthToSpace Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU
Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization
HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LayerNormalization LeakyRelu LinearAttention LSTM
Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min Mish Mod Mul Neg NegativeLogLikelihoodLoss
NonZero Not OneHot Or PRelu Pad Pow RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum
ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize
RotaryEmbedding Round ScatterElements ScatterND Selu SequenceAt Shape Sigmoid Sign SimplifiedLayerNormalization Sin
Sinh Size Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze Sub
Sum SwiGLU Swish Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
""".split()

TYPES = [getattr(onnx.TensorProto, name) for name in "FLOAT FLOAT16 DOUBLE BOOL INT32 INT64".split()]
# With these ops, and these types besides.
QUANTIZED = set("BitShift DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearMatMul QuantizeLinear".split())
NARROW = [getattr(onnx.TensorProto, name) for name in (
    "INT2 UINT2 INT4 UINT4 INT8 UINT8 INT16 UINT16 UINT32 UINT64 FLOAT8E4M3FN FLOAT8E5M2 FLOAT4E2M1".split())]


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


def of_folder(folder):
    """A test's model and its tensors, those named "input:" or "output:" and what the model calls them."""
    model = onnx.load(folder / "model.onnx")
    tensors = {}
    for kind, infos in (("input", model.graph.input), ("output", model.graph.output)):
        for i, info in enumerate(infos):
            name = f"{kind}:{info.name}"
            tensors[name] = read(folder / "test_data_set_0" / f"{kind}_{i}.pb", name)
    return model, tensors


def of_case(case):
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    tensors = {}
    for kind, infos, values in zip(("input", "output"), (model.graph.input, model.graph.output), case.data_sets[0]):
        for info, value in zip(infos, values):
            name = f"{kind}:{info.name}"
            if not isinstance(value, onnx.TensorProto):
                value = numpy_helper.from_array(np.asarray(value))
            value.name = name
            tensors[name] = value
    return model, tensors


def wanted(model, opsets):
    infos = [*model.graph.input, *model.graph.output]
    ops = {node.op_type for node in model.graph.node}
    types = TYPES + (NARROW if ops <= QUANTIZED else [])
    return (ops <= set(OPS) | QUANTIZED
            and all(opset.version in opsets for opset in model.opset_import if not opset.domain)
            and all(info.type.tensor_type.elem_type in types for info in infos))


def tests(node_folder, opsets):
    """Name, model and tensors of each test that is wanted."""
    if str(node_folder) != "-":
        for folder in sorted(node_folder.iterdir()):
            if wanted(onnx.load(folder / "model.onnx"), opsets):
                yield folder.name, *of_folder(folder)
        return
    from onnx.backend.test.case.node import collect_testcases
    for case in collect_testcases(None):
        if case.model is not None and wanted(case.model, opsets):
            yield case.name, *of_case(case)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("node_folder", type=pathlib.Path)
    parser.add_argument("out_folder", type=pathlib.Path)
    parser.add_argument("--largest", type=int, default=30000)
    parser.add_argument("--opset", type=int)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    opsets = [args.opset] if args.opset else range(13, 24)
    end = f"_opset{args.opset}" if args.opset else ""
    for name, model, tensors in tests(args.node_folder, opsets):
        name = name.removeprefix("test_")
        if name.endswith("_expanded") or "_expanded_ver" in name or (args.only and name not in args.only):
            continue
        model.graph.initializer.extend(results(model, tensors).values())
        data = model.SerializeToString(deterministic=True)
        if len(data) <= args.largest:
            (args.out_folder / (name + end + ".onnx")).write_bytes(data)


if __name__ == "__main__":
    main()
