"""Prints the tables of frontend/onnx/op_versions.cc, from the schemas of the onnx package (1.23.2): what came to the ops that the
importer converts, and what left them, with opsets from 9 on."""
import collections
import pathlib
import re
import sys

import onnx.defs

FIRST = 9  # that the importer reads
# ONNX Runtime has these in the default domain of every opset: its optimizer makes them.
EVER = {"LayerNormalization", "ThresholdedRelu"}


def converted_ops():
    text = "".join(p.read_text() for p in (pathlib.Path(__file__).parents[2] / "frontend/onnx").glob("*convert*.cc"))
    return set(re.findall(r'\{"([A-Z]\w*)", ', text)) | set(re.findall(r'emplace\("(\w+)"', text)) | {"If", "Loop"}


def rows(name, history):
    """(what, first, last) for the op itself (""), its attributes, and the places of its inputs; last 0: still there."""
    history = sorted(history, key=lambda s: s.since_version)
    current = [s for i, s in enumerate(history) if i + 1 == len(history) or history[i + 1].since_version > FIRST]
    found = []
    if current[0].since_version > FIRST and name not in EVER:
        found.append(("", current[0].since_version, 0))
    if current[-1].deprecated:
        found.append(("", 0, current[-1].since_version - 1))
        current.pop()
    attributes = {a for s in current for a in s.attributes}
    inputs = range(1, max(s.max_input for s in current) if current[-1].max_input < 100 else 0)
    for what in [*sorted(attributes), *inputs]:
        there = [what in s.attributes if isinstance(what, str) else s.max_input > what for s in current]
        first = current[there.index(True)].since_version if not there[0] else 0
        last = current[there.index(False, there.index(True))].since_version - 1 if False in there[there.index(True):] else 0
        if first or last:
            found.append((what, first, last))
    return found


def main():
    if onnx.defs.onnx_opset_version() < 28:
        sys.exit("this needs onnx 1.23.2 or later")
    schemas = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            schemas[schema.name].append(schema)
    for name in sorted(converted_ops() & schemas.keys()):
        for what, first, last in rows(name, schemas[name]):
            print(f'    {{"{name}", "{what if isinstance(what, str) else ""}", {what if isinstance(what, int) else 0}, '
                  f'{first}, {last}}},')


if __name__ == "__main__":
    main()
