# An MLP with annotations for several devices, made with the onnx package (1.22): what other tools write. Run here:
#   python make.py annotated.onnx x.npy golden.safetensors
import sys
import numpy as np, onnx
from onnx import helper, numpy_helper, TensorProto as T
rng = np.random.default_rng(1)
w = {"w1": (8, 32), "b1": (32,), "w2": (32, 8), "wq": (8, 24), "wr": (24, 8)}
inits = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 4, n) for n, s in w.items()]
nodes = [
    helper.make_node("MatMul", ["x", "w1"], ["h0"], name="up"),
    helper.make_node("Add", ["h0", "b1"], ["h1"], name="up_bias"),
    helper.make_node("Relu", ["h1"], ["h2"], name="act"),
    helper.make_node("MatMul", ["h2", "w2"], ["m"], name="down"),
    helper.make_node("MatMul", ["x", "wq"], ["q"], name="parts"),
    helper.make_node("Tanh", ["q"], ["t"], name="tanh"),
    helper.make_node("MatMul", ["t", "wr"], ["n"], name="join"),
    helper.make_node("Add", ["m", "n"], ["y"], name="sum"),
]
g = helper.make_graph(nodes, "mlp", [helper.make_tensor_value_info("x", T.FLOAT, [4, 8])],
                      [helper.make_tensor_value_info("y", T.FLOAT, [4, 8])], inits)
m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 18)], ir_version=11)
for name, n in (("pair", 2), ("grid", 4)):
    c = m.configuration.add(); c.name, c.num_devices = name, n
by_name = {n.name: n for n in m.graph.node}
def spec(node, config, tensor, devices, dims, groups=None):
    """dims: [(axis, [(size or None, shards), ...])]"""
    node = by_name[node]
    d = next((d for d in node.device_configurations if d.configuration_id == config), None)
    if d is None:
        d = node.device_configurations.add(); d.configuration_id = config
    s = d.sharding_spec.add(); s.tensor_name = tensor; s.device.extend(devices)
    for key, value in (groups or {}).items():
        e = s.index_to_device_group_map.add(); e.key = key; e.value.extend(value)
    for axis, parts in dims:
        sd = s.sharded_dim.add(); sd.axis = axis
        for size, shards in parts:
            p = sd.simple_sharding.add(); p.num_shards = shards
            if size: p.dim_value = size
# Megatron's cut over two devices; wq is three parts, each cut by itself.
spec("up", "pair", "w1", [0, 1], [(1, [(32, 2)])])
spec("up_bias", "pair", "b1", [0, 1], [(-1, [(None, 2)])])
spec("down", "pair", "w2", [0, 1], [(0, [(32, 2)])])
spec("down", "pair", "m", [-1], [], {-1: [0, 1]})
spec("parts", "pair", "wq", [0, 1], [(1, [(3, 1), (8, 2)])])
spec("join", "pair", "wr", [0, 1], [(0, [(3, 1), (8, 2)])])
# The batch over pairs of devices, the weights within a pair; y is cut where it is made.
spec("up", "grid", "x", [-1, -2], [(0, [(4, 2)])], {-1: [0, 1], -2: [2, 3]})
spec("up", "grid", "w1", [-1, -2], [(-1, [(32, 2)])], {-1: [0, 2], -2: [1, 3]})
spec("down", "grid", "w2", [7, 9], [(0, [(None, 2)])], {7: [0, 2], 9: [1, 3]})
spec("sum", "grid", "y", [0, 1, 2, 3], [(0, [(None, 2)]), (1, [(None, 2)])])
onnx.checker.check_model(m)
onnx.save(m, sys.argv[1])
x = rng.standard_normal((4, 8)).astype(np.float32)
from onnx.reference import ReferenceEvaluator
y = ReferenceEvaluator(m).run(None, {"x": x})[0]
np.save(sys.argv[2], x)
from safetensors.numpy import save_file
save_file({"y": y}, sys.argv[3])
