"""Runs the tests and benchmarks of a bundle on this machine's GPU; prints one table and writes JSON.

Needs nothing but Python; with torch it also measures torch beside shardc."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 480

GPT2 = "layers=12,hidden=768,heads=12,vocab=50257,seq=1024"
GPT2_XL = "layers=48,hidden=1600,heads=25,vocab=50257,seq=1024"


class Report:
    def __init__(self, root):
        self.bin = root / "bin"
        # Of the binaries only: torch in this process keeps its own.
        self.env = dict(os.environ, LD_LIBRARY_PATH=f"{self.bin}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"))
        self.began = time.monotonic()
        self.rows = []

    def left(self):
        return DEADLINE_S - (time.monotonic() - self.began)

    def add(self, name, status, detail="", **values):
        self.rows.append({"name": name, "status": status, "detail": detail, **values})
        print(f"{name:44} {status:8} {detail}", flush=True)

    def command(self, args, limit):
        limit = min(limit, self.left())
        if limit < 5:
            return None, "no time left"
        try:
            done = subprocess.run(args, capture_output=True, text=True, timeout=limit,
                                  env=self.env)
        except subprocess.TimeoutExpired:
            return None, f"took more than {limit:.0f} s"
        return done, (done.stderr.strip().splitlines() or [""])[-1]

    def tests(self):
        done, why = self.command([self.bin / "test_gpu", "--gtest_color=no"], 300)
        if done is None:
            self.add("test_gpu", "FAILED", why)
            return
        # There is a GPU, so a test that skips has not found it.
        words = {"OK": "passed", "FAILED": "FAILED", "SKIPPED": "FAILED"}
        for word, name, ms in re.findall(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+)(?:, where [^(]*)? \((\d+) ms\)", done.stdout):
            self.add(name, words[word], f"{int(ms) / 1e3:.1f} s")
        if done.returncode != 0:
            self.add("test_gpu", "FAILED", f"exit {done.returncode}")
            sys.stderr.write(done.stdout[-6000:] + done.stderr[-2000:])

    def compile(self, folder, model, *options):
        plan = folder / re.sub(r"\W+", "_", model)[-60:]
        done, why = self.command(
            [self.bin / "shardc", "compile", f"builtin:gpt?{model}", "--spec", "serial", "-o", plan, *options], 120)
        if done is None or done.returncode != 0:
            return None, why
        return plan, ""

    def sanitizer(self, folder):
        name = "compute-sanitizer memcheck, 2 layers"
        if not shutil.which("compute-sanitizer"):
            self.add(name, "skipped", "compute-sanitizer is not installed")
            return
        plan, why = self.compile(folder, "layers=2,hidden=64,heads=4,vocab=257,seq=32,batch=2")
        if plan is None:
            self.add(name, "FAILED", why)
            return
        done, why = self.command(
            ["compute-sanitizer", "--error-exitcode", "9", self.bin / "shardc", "run", plan,
             "--backend", "cuda", "--random-inputs", "1", "--repeat", "2"], 120)
        good = done is not None and done.returncode == 0
        self.add(name, "passed" if good else "FAILED", "" if good else why)

    def benchmark(self, folder, name, model, *options):
        plan, why = self.compile(folder, model, *options)
        if plan is None:
            self.add(name, "FAILED", why)
            return
        done, why = self.command(
            [self.bin / "shardc", "run", plan, "--backend", "cuda", "--random-inputs", "1", "--repeat", "12",
             "--json"], 150)
        if done is None or done.returncode != 0:
            self.add(name, "FAILED", why)
            return
        result = json.loads(done.stdout)
        # The first repeated steps capture the graph.
        times = sorted(result["times_s"][2:])
        median = times[len(times) // 2]
        self.add(name, "measured", f"{1e3 * median:.2f} ms, {result['peak_bytes'] / 2**30:.2f} GiB",
                 median_s=median, peak_bytes=result["peak_bytes"])

    def torch_peaks(self):
        """What this GPU reaches, in the same run as the figures it is compared with."""
        try:
            import torch
        except ImportError:
            self.add("peaks by torch", "skipped", "no torch here")
            return
        n = 8192
        a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)

        def seconds(f, repeats=20):
            for _ in range(3):
                f()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(repeats):
                f()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / repeats

        gemm = 2 * n**3 / seconds(lambda: a @ b)
        source = torch.empty(2**30, device="cuda", dtype=torch.uint8)
        target = torch.empty_like(source)
        copy = 2 * source.numel() / seconds(lambda: target.copy_(source))
        self.add("bf16 GEMM peak", "measured", f"{gemm / 1e12:.0f} TFLOP/s", flops=gemm)
        self.add("copy peak", "measured", f"{copy / 1e12:.2f} TB/s", bytes_per_s=copy)


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                         capture_output=True, text=True, check=True).stdout.strip()
    print(gpu)
    report = Report(root)
    report.tests()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        report.sanitizer(folder)
        report.torch_peaks()
        report.benchmark(folder, "GPT-2 124M f32, b=8 s=1024, fwd+bwd", GPT2 + ",batch=8")
        report.benchmark(folder, "GPT-2 124M bf16, b=64 s=1024, fwd+bwd", GPT2 + ",batch=64", "--precision", "bf16")
        report.benchmark(folder, "GPT-2 1.5B bf16, b=16 s=1024, fwd+bwd", GPT2_XL + ",batch=16", "--precision", "bf16")
    out.write_text(json.dumps({"gpu": gpu, "seconds": time.monotonic() - report.began, "rows": report.rows}, indent=1))
    failed = [r["name"] for r in report.rows if r["status"] == "FAILED"]
    print(f"{len(report.rows)} rows, {len(failed)} failed; {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
