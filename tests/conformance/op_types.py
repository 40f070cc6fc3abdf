"""Prints the table of frontend/onnx/op_types.cc, from the schemas of the onnx package (1.23.2): which integers the inputs of the ops
that the importer converts may be, in opsets from 9 on; without those that may be of any type."""
import collections
import sys

import onnx.defs
from op_versions import FIRST, converted_ops

TYPES = ["bool", *(f"{u}int{bits}" for bits in (2, 4, 8, 16, 32, 64) for u in ("", "u"))]

def allowed(schema, i):
    i = min(i, len(schema.inputs) - 1)
    return tuple(t for t in TYPES if {f"tensor({t})", f"seq(tensor({t}))"} & schema.inputs[i].types)

def rows(history):
    """(input, first opset, types) where the types change; after the last change there is no row."""
    history = sorted(history, key=lambda s: s.since_version)
    current = [s for i, s in enumerate(history) if i + 1 == len(history) or history[i + 1].since_version > FIRST]
    for i in range(max(len(s.inputs) for s in current)):
        before = None
        for schema in current:
            if i >= len(schema.inputs):
                continue
            types = allowed(schema, i)
            if types != before and not (before is None and len(types) == len(TYPES)):
                yield i, max(FIRST, schema.since_version), types
            before = types

def main():
    if onnx.defs.onnx_opset_version() < 28:
        sys.exit("this needs onnx 1.23.2 or later")
    schemas = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            schemas[schema.name].append(schema)
    # The importer takes an integer for the condition of If and Loop, as for other flags.
    for name in sorted((converted_ops() & schemas.keys()) - {"If", "Loop"}):
        for i, first, types in rows(schemas[name]):
            print(f'    {{"{name}", {i}, {first}, "{" ".join(types)}"}},')

if __name__ == "__main__":
    main()
