"""Runs tests and benchmarks on this machine's GPU; prints one table and writes JSON. tests/gpu/run_all starts it.

Needs nothing but Python; with torch it also measures torch beside shardc, with mpirun and several GPUs ranks as processes."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 470
HERE = pathlib.Path(__file__).resolve().parent

SMALL = dict(layers=2, hidden=64, heads=4, vocab=257, seq=32, batch=2)
GPT2 = dict(layers=12, hidden=768, heads=12, vocab=50257, seq=1024)
GPT2_XL = dict(layers=48, hidden=1600, heads=25, vocab=50257, seq=1024)
# Name, model, precision, whether torch.compile is measured beside it too.
BENCHMARKS = [
    ("GPT-2 124M bf16 b=64 s=1024 fwd+bwd", dict(GPT2, batch=64), "bf16", True),
    ("GPT-2 1.5B bf16 b=16 s=1024 fwd+bwd", dict(GPT2_XL, batch=16), "bf16", False),
    ("GPT-2 124M f32 b=8 s=1024 fwd+bwd", dict(GPT2, batch=8), "f32", False),
]


def builtin(model):
    return "builtin:gpt?" + ",".join(f"{k}={v}" for k, v in model.items())


def flops(model):
    """Of a step, forward and backward: 6 per parameter of a matrix and token, and 12 per layer, hidden unit and pair of
    positions for attention, without the discount for a causal mask (PaLM, arXiv:2204.02311, appendix B)."""
    h, tokens = model["hidden"], model["batch"] * model["seq"]
    matrices = model["layers"] * 12 * h * h + model["vocab"] * h
    return 6 * matrices * tokens + 12 * model["layers"] * h * model["seq"] * tokens


class Report:
    def __init__(self, bin_folder):
        self.bin = bin_folder
        self.began = time.monotonic()
        self.rows = []
        self.peaks = {}

    def left(self):
        return DEADLINE_S - (time.monotonic() - self.began)

    def add(self, name, status, detail="", **values):
        self.rows.append({"name": name, "status": status, "detail": detail, **values})
        print(f"{name:56} {status:9} {detail}", flush=True)

    def command(self, args, limit, env=None):
        """Exit code (None: not in time), stdout, stderr. What it printed is there also when it did not end."""
        limit = min(limit, self.left())
        if limit < 5:
            return None, "", "no time left"
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen([str(a) for a in args], stdout=out, stderr=err, start_new_session=True,
                                       env=dict(os.environ, **(env or {})))
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = None
            out.seek(0), err.seek(0)
            text = err.read()
            return code, out.read(), text if code is not None else f"{text}\ntook more than {limit:.0f} s"

    def failed(self, name, err):
        lines = err.strip().splitlines() or ["nothing was said"]
        self.add(name, "FAILED", next((l for l in lines if "error" in l), lines[-1])[:200])
        sys.stderr.write("\n".join(lines[-15:]) + "\n")

    def tests(self):
        code, out, err = self.command([self.bin / "test_gpu", "--gtest_color=no"], 210)
        # Each ends with one of these lines; a reason to skip stands before it.
        last_end = 0
        for m in re.finditer(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \((\d+) ms\)$", out, re.M):
            word, name, ms = m.groups()
            said, last_end = out[last_end:m.start()], m.end()
            needs = re.search(r"needs \d+ GPUs", said)
            # There is a GPU, so a test that skips for want of one has not found it.
            status = {"OK": "passed", "FAILED": "FAILED"}.get(word, "skipped" if needs else "FAILED")
            self.add(name, status, needs.group(0) if needs else f"{int(ms) / 1e3:.1f} s")
            if status == "FAILED":
                sys.stderr.write(said[-3000:] + "\n")
        if code != 0:
            began = re.findall(r"^\[ RUN +\] (\S+)$", out, re.M)
            at = f"; the last test that began is {began[-1]}" if began else ""
            self.failed("test_gpu", f"exit code {code}{at}: error: " + (err.strip().splitlines() or [""])[-1])

    def plan(self, folder, model, *options):
        plan = folder / re.sub(r"\W+", "_", "_".join([builtin(model), *options]))[-100:]
        if plan.exists():
            return plan, ""
        code, _, err = self.command([self.bin / "shardc", "compile", builtin(model), "-q", "-o", plan, *options], 120)
        return (plan, "") if code == 0 else (None, err)

    def sanitizer(self, folder):
        name = "compute-sanitizer memcheck, 2 layers"
        if not shutil.which("compute-sanitizer"):
            self.add(name, "skipped", "compute-sanitizer is not installed")
            return
        for precision in ["f32", "bf16"]:
            options = ["--spec", "serial"] + (["--precision", "bf16"] if precision == "bf16" else [])
            plan, err = self.plan(folder, SMALL, *options)
            code = None
            if plan:
                code, out, err = self.command(
                    ["compute-sanitizer", "--error-exitcode", "9", self.bin / "shardc", "run", plan, "--backend", "cuda",
                     "--random-inputs", "1", "--repeat", "2"], 60)
                err = out + err  # it reports on stdout
            if code == 0:
                self.add(f"{name} {precision}", "passed")
            else:
                self.failed(f"{name} {precision}", err)

    def repeatable(self, folder):
        """Two runs of a plan whose matrix products were chosen by timing, in the first of them."""
        name = "two runs of a plan give the same bits, bf16"
        plan, err = self.plan(folder, SMALL, "--spec", "serial", "--precision", "bf16", "--optimizer", "adamw")
        saved, code = [folder / "first.safetensors", folder / "second.safetensors"], None
        for path in saved if plan else []:
            code, _, err = self.command([self.bin / "shardc", "run", plan, "--backend", "cuda", "--random-inputs", "1",
                                         "--steps", "4", "--save", path], 60)
            if code != 0:
                break
        if code != 0:
            self.failed(name, err)
        elif not (plan / "cuda_choices.txt").exists():
            self.failed(name, "error: no choices were kept")
        else:
            self.add(name, "passed" if saved[0].read_bytes() == saved[1].read_bytes() else "FAILED")

    def processes(self, folder, gpus):
        name = "2 processes over NCCL against the CPU"
        missing = "needs 2 GPUs" if gpus < 2 else "" if shutil.which("mpirun") else "mpirun is not installed"
        if missing:
            self.add(name, "skipped", missing)
            return
        plan, err = self.plan(folder, SMALL, "--spec", "megatron", "--mesh", "tp=2")
        code = None
        if plan:
            outputs = folder / "cpu.safetensors"
            run = [self.bin / "shardc", "run", plan, "--random-inputs", "1", "--steps", "3"]
            code, _, err = self.command([*run, "--save", outputs], 60)
        if code == 0:
            code, _, err = self.command(
                ["mpirun", "-n", "2", *run, "--backend", "cuda", "--check", outputs], 60,
                {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        if code == 0:
            self.add(name, "passed")
        else:
            self.failed(name, err)

    def torch(self, what, limit):
        """What torch_side.py prints as JSON, or None and why not."""
        code, out, err = self.command([sys.executable, HERE / "torch_side.py", json.dumps(what)], limit)
        if code == 3:
            return None, "no torch here"
        if code != 0:
            return None, (err.strip().splitlines() or ["it failed"])[-1][:120]
        return json.loads(out), ""

    def torch_peaks(self):
        peaks, why = self.torch({"what": "peaks"}, 60)
        if peaks is None:
            self.add("peaks by torch", "skipped", why)
            return
        self.peaks = peaks
        self.add("bf16 GEMM peak by torch", "measured", f"{peaks['bf16'] / 1e12:.0f} TFLOP/s", flops=peaks["bf16"])
        self.add("f32 GEMM peak by torch (no TF32)", "measured", f"{peaks['f32'] / 1e12:.0f} TFLOP/s", flops=peaks["f32"])
        self.add("copy peak by torch", "measured", f"{peaks['copy'] / 1e12:.2f} TB/s", bytes_per_s=peaks["copy"])

    def measured(self, name, model, precision, seconds, peak_bytes, against=None):
        share = flops(model) / seconds / self.peaks[precision] if precision in self.peaks else None
        detail = f"{1e3 * seconds:.2f} ms, {peak_bytes / 2**30:.2f} GiB"
        detail += f", {100 * share:.0f}% of the GEMM peak" if share else ""
        detail += f", {against / seconds:.2f} of shardc's speed" if against else ""
        self.add(name, "measured", detail, median_s=seconds, peak_bytes=peak_bytes, share_of_peak=share)

    def benchmark(self, folder, name, model, precision, compiled):
        options = ["--precision", "bf16"] if precision == "bf16" else []
        plan, err = self.plan(folder, model, "--spec", "serial", *options)
        code = None
        if plan:
            code, out, err = self.command([self.bin / "shardc", "run", plan, "--backend", "cuda", "--random-inputs", "1",
                                           "--repeat", "12", "--json"], 90)
            shutil.rmtree(plan)
        if code != 0:
            self.failed(name, err)
            ours = None
        else:
            result = json.loads(out)
            times = sorted(result["times_s"][2:])  # the first ones capture the graph
            ours = times[len(times) // 2]
            self.measured(name, model, precision, ours, result["peak_bytes"])
        for mode in ["eager", "compile"] if compiled else ["eager"]:
            theirs, why = self.torch({"what": "gpt", "mode": mode, "precision": precision, **model}, 100)
            if theirs is None:
                self.add(f"  torch {mode}", "skipped", why)
            else:
                self.measured(f"  torch {mode}", model, precision, theirs["median_s"], theirs["peak_bytes"], ours)


def main():
    report, out = Report(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
    gpus = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True, check=True).stdout.strip().splitlines()
    print("\n".join(gpus))

    def write():
        out.write_text(json.dumps({"gpus": gpus, "seconds": time.monotonic() - report.began, "rows": report.rows}, indent=1))

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        parts = [report.tests, lambda: report.sanitizer(folder), lambda: report.repeatable(folder),
                 lambda: report.processes(folder, len(gpus)), report.torch_peaks]
        parts += [lambda b=b: report.benchmark(folder, *b) for b in BENCHMARKS]
        for part in parts:
            part()
            write()  # what is known so far outlives whatever comes
    failed = [r["name"] for r in report.rows if r["status"] == "FAILED"]
    print(f"{len(report.rows)} rows, {len(failed)} failed, {time.monotonic() - report.began:.0f} s; {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
