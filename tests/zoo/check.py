"""Compiles and runs an export in several ways, and sorts what comes of it."""
import dataclasses
import json
import re
import shutil
import subprocess

# (spec, mesh, further options of compile) by the name that --sets takes.
SETS = {
    "serial": ("serial", "dp=1", ()),
    "tp2": ("megatron", "tp=2", ()),
    "tp3": ("megatron", "tp=3", ()),
    "dp2": ("dp", "dp=2", ()),
    "sp2": ("megatron_sp", "tp=2", ()),
    "cp2": ("megatron", "cp=2", ()),
    "ulysses2": ("ulysses", "cp=2", ()),
    "pp2": ("megatron", "pp=2", ("--microbatches", "2")),
    "zero": ("megatron", "dp=2", ("--zero", "3")),
    "mixed": ("megatron", "dp=2,tp=2", ("--microbatches", "2")),
}
TIMEOUT_S = 120
RTOL = 1e-3
LEAST_ATOL = 1e-5
FLOAT32_ERRORS = 10  # how many times PyTorch's own error in float32 is allowed
MISMATCH, INTERNAL = 7, 70
BAD = ("WRONG", "CRASH")


@dataclasses.dataclass(frozen=True)
class Result:
    kind: str       # ok, refused, WRONG, CRASH, slow
    what: str  # the diagnostic, its id first; of ok how many tensors agree


def run(command):
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Result("slow", f"{command[1]} took more than {TIMEOUT_S} s")
    if done.returncode == 0:
        agree = re.search(r"check: (\d+ tensors)", done.stderr)
        return Result("ok", agree.group(1) if agree else "")
    said = " ".join(line.strip() for line in done.stderr.splitlines() if not line.startswith(("note:", "warning:")))
    found = re.search(r"E\d{4}", said)
    what = f"{found.group() if found else done.returncode} {command[1]}: {said[:400]}"
    if done.returncode == MISMATCH:
        return Result("WRONG", what)
    return Result("CRASH" if done.returncode < 0 or done.returncode == INTERNAL else "refused", what)


def check(shardc, folder, name):
    """Of the export in `folder`, cut as SETS[name] says."""
    about = json.loads((folder / "export.json").read_text())
    spec, mesh, options = SETS[name]
    plan = folder / f"plan_{name}"
    shapes = ["--shape=" + k + "=" + "x".join(map(str, v)) for k, v in about["shapes"].items()]
    inputs = [f"--input={k}=@{folder / k}.npy" for k in about["given"]]
    atol = max(LEAST_ATOL, FLOAT32_ERRORS * about["error_of_float32"])
    result = run([shardc, "compile", folder / "model.onnx", "--spec", spec, "--mesh", mesh, "--loss", about["loss"], *options,
                  *shapes, "-o", plan])
    if result.kind == "ok":
        result = run([shardc, "run", plan, *inputs, "--threads", 1, "--check", folder / "golden.safetensors",
                      "--rtol", RTOL, "--atol", atol])
    shutil.rmtree(plan, ignore_errors=True)
    return result
