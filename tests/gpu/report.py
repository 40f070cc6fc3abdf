"""Runs tests and benchmarks on this machine's GPU; prints one table and writes JSON. tests/gpu/run_all starts it.

Needs nothing but Python; with torch it also measures torch beside shardc, with mpirun and several GPUs ranks as processes."""

import collections
import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

DEADLINE_S = 450  # of all; every command ends by then, whatever its own limit
NO_TIME = "no time left"
MOST_NAMED = 40  # failures in the last lines: of the output may be seen as little as its last 12,000 characters
HERE = pathlib.Path(__file__).resolve().parent

SMALL = dict(layers=2, hidden=64, heads=4, vocab=257, seq=32, batch=2)
# Tests that run at once: the GPU is mostly idle in them.
TESTS_AT_ONCE = 6
GPT2 = dict(layers=12, hidden=768, heads=12, vocab=50257, seq=1024)
GPT2_XL = dict(layers=48, hidden=1600, heads=25, vocab=50257, seq=1024)
LLAMA = dict(layers=8, hidden=2048, heads=32, kv_heads=4, ffn=5632, vocab=32000, seq=2048, norm="rms_norm", activation="swiglu",
             positions="rope", qkv="separate", bias="false", tied="false")
# Name, model, precision; torch's modes beside it, and the seconds for all of them.
GPT2_BF16 = ("GPT-2 124M bf16 b=64 s=1024 fwd+bwd", dict(GPT2, batch=64), "bf16", ["compile", "eager"], 120)
GPT2_XL_BF16 = ("GPT-2 1.5B bf16 b=16 s=1024 fwd+bwd", dict(GPT2_XL, batch=16), "bf16", ["eager", "regions"], 100)
LLAMA_BF16 = ("Llama, 8 layers of 2048, bf16 b=8 s=2048 fwd+bwd", dict(LLAMA, batch=8), "bf16", ["eager", "regions"], 80)
GPT2_F32 = ("GPT-2 124M f32 b=8 s=1024 fwd+bwd", dict(GPT2, batch=8), "f32", ["eager"], 40)
# With the optimizer's update: "train" is what torch_side.py and benchmark_options know it by.
GPT2_TRAIN = ("GPT-2 124M bf16 b=8 s=1024 step of AdamW, clipped", dict(GPT2, batch=8, train=True), "bf16",
              ["compile", "eager"], 60)
BENCHMARKS = [GPT2_BF16, GPT2_XL_BF16, LLAMA_BF16, GPT2_F32, GPT2_TRAIN]


# The suites of SHARDC_GPU_TRY: the report itself is tried out, with small models instead.
TRIED = [s for s in os.environ.get("SHARDC_GPU_TRY", "").split(",") if s]
# What main runs is named by a method and, if it has one, a benchmark: what this finds something in, or all.
PARTS = re.compile(os.environ.get("SHARDC_GPU_PARTS", ""))
REPEATS, PATIENCE = (4, 10) if TRIED else (12, 1)
if TRIED:
    BENCHMARKS = [(name, {**model, **SMALL, **({"kv_heads": 2, "ffn": 96} if "ffn" in model else {})}, *rest)
                  for name, model, *rest in BENCHMARKS]
    GPT2_BF16, GPT2_XL_BF16, LLAMA_BF16, GPT2_F32, GPT2_TRAIN = BENCHMARKS


def builtin(model):
    return "builtin:gpt?" + ",".join(f"{k}={v}" for k, v in model.items() if k != "train")


def flops(model):
    """Of a step, forward and backward: 6 per parameter of a matrix and token, and 12 per layer, hidden unit and pair of
    positions for attention, without the discount for a causal mask (PaLM, arXiv:2204.02311, appendix B)."""
    h, tokens = model["hidden"], model["batch"] * model["seq"]
    kv = h // model["heads"] * model.get("kv_heads", model["heads"])
    mlp = (3 if model.get("activation") == "swiglu" else 2) * h * model.get("ffn", 4 * h)
    matrices = model["layers"] * (2 * h * (h + kv) + mlp) + model["vocab"] * h
    return 6 * matrices * tokens + 12 * model["layers"] * h * model["seq"] * tokens


def choices(plan):
    """What a plan keeps of the trials of libraries' kernels beside ours: pairs of the problem and what came of it."""
    path, found = plan / "cuda_choices.txt", []
    for line in path.read_text().splitlines()[1:] if path.exists() else []:
        key, value = line.split("\t")[:2]
        if key.startswith(("attention", "epilogue")):
            found.append((key, bytes.fromhex(value).decode(errors="replace")))
    return found


def reason(said):
    """In a line, of what a test of GoogleTest says, the values where it failed first."""
    lines = said.partition("Failure\n")[2].splitlines() or said.splitlines()
    first = itertools.takewhile(lambda line: ": Failure" not in line, (line.strip() for line in lines))
    boring = ("Expected equality of these values:", "Which is:", '""')
    return " ".join(line.removeprefix("Which is: ") for line in first if line and line not in boring)[:300]


def folder_of_plans():
    """Where plans are written, 10 GB with their weights: in memory where there is room, for a disk may be slow."""
    memory = "/dev/shm"
    room = shutil.disk_usage(memory).free if os.path.isdir(memory) else 0
    return memory if room > 16 * 2**30 else None


class Report:
    def __init__(self, bin_folder, folder, plans_folder, out, gpus):
        self.bin, self.folder, self.plans_folder, self.out, self.gpus = bin_folder, folder, plans_folder, out, gpus
        self.began = time.monotonic()
        self.rows = []
        self.profiles = {}
        self.peaks = {}
        self.figures = {}  # what was measured, by name of the benchmark and whose it is: "ours", or a mode of torch
        self.plans = {}  # by name of the folder: what will be (plan, error)
        self.compilers = concurrent.futures.ThreadPoolExecutor(2)
        self.torch_ahead = []
        self.lock = threading.Lock()

    def write(self):
        """What is known so far outlives whatever comes, also an end in the middle of this."""
        new = self.out.with_suffix(".new")
        new.write_text(json.dumps({"gpus": self.gpus, "seconds": time.monotonic() - self.began, "rows": self.rows,
                                   "profiles": self.profiles}, indent=1))
        new.replace(self.out)

    def left(self):
        return DEADLINE_S * PATIENCE - (time.monotonic() - self.began)

    def add(self, name, status, detail="", shown=True, **values):
        with self.lock:
            at = round(time.monotonic() - self.began, 1)
            self.rows.append({"name": name, "status": status, "detail": detail, "at_s": at, **values})
            if shown:
                print(f"{name:56} {status:9} {detail}", flush=True)
            self.write()

    def say(self, text):
        """Beside the table; in its place in the output."""
        with self.lock:
            sys.stdout.flush()
            print(text, file=sys.stderr, flush=True)

    def command(self, args, limit, env=None):
        """Exit code (None: not in time), stdout, stderr. What it printed is there also when it did not end."""
        most, left = limit * PATIENCE, self.left()
        limit = min(most, left)
        if limit < 5:
            return None, "", NO_TIME
        with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
            process = subprocess.Popen([str(a) for a in args], stdout=out, stderr=err, start_new_session=True,
                                       env=dict(os.environ, **(env or {})))
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = None
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    pass  # the driver holds it: nobody can end it
            out.seek(0), err.seek(0)
            text = err.read()
            if code is None:
                text += f"\ntook more than {limit:.0f} s" + ("" if limit == most else f": {NO_TIME}")
            return code, out.read(), text

    def failed(self, name, err):
        lines = err.strip().splitlines() or ["nothing was said"]
        if lines[-1].endswith(NO_TIME):  # who had less than it was promised has not failed
            self.add(name, "skipped", lines[-1])
            return
        self.add(name, "FAILED", next((l for l in lines if "error" in l), lines[-1])[:200])
        self.say("\n".join(lines[-15:])[-3000:])

    def part(self, run, name):
        """One that fails in a way that nobody thought of does not stop the others."""
        try:
            run()
        except Exception:
            self.failed(name, "error: " + traceback.format_exc())

    def tests(self):
        """Every test in a process of its own: what breaks the GPU's context, or hangs, ends only that one."""
        code, out, err = self.command([self.bin / "test_gpu", "--gtest_list_tests"], 30)
        suite, tests = "", []
        for line in out.splitlines():
            if line.startswith("  "):
                tests.append(suite + line.split()[0])
            elif re.fullmatch(r"\S+\.(\s.*)?", line):
                suite = line.split()[0]
        tests = [t for t in tests if not TRIED or t.partition(".")[0] + "." in TRIED]
        if code != 0 or not tests:
            self.failed("test_gpu", f"error: exit code {code}, {len(tests)} tests\n{err}")
        with concurrent.futures.ThreadPoolExecutor(TESTS_AT_ONCE) as at_once:
            for test in tests:
                at_once.submit(self.part, lambda test=test: self.test(test), test)
        passed = [row["name"].partition(".")[0] for row in self.rows if row["status"] == "passed"]
        for suite, count in collections.Counter(passed).items():
            print(f"{suite + '.*':56} {'passed':9} {count}", flush=True)

    def test(self, test):
        code, out, err = self.command([self.bin / "test_gpu", "--gtest_color=no", f"--gtest_filter={test}"], 120)
        # It ends with one of these lines; a reason to skip stands before it.
        last_end = 0
        for m in re.finditer(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \((\d+) ms\)$", out, re.M):
            word, name, ms = m.groups()
            said, last_end = out[last_end:m.start()], m.end()
            needs = re.search(r"needs \d+ GPUs", said)
            # There is a GPU, so a test that skips for want of one has not found it.
            status = {"OK": "passed", "FAILED": "FAILED"}.get(word, "skipped" if needs else "FAILED")
            if status == "FAILED":
                self.add(name, status, reason(said), said=said[:20000])
                self.say(said[:2000])  # what went wrong first may be why the rest did
            else:
                self.add(name, status, needs.group(0) if needs else f"{int(ms) / 1e3:.1f} s", shown=status != "passed")
        # One that ends otherwise than GoogleTest does has not passed, whatever it said before.
        if not last_end or code not in (0, 1):
            self.failed(test, f"error: exit code {code}: " + (err.strip().splitlines() or [""])[-1])

    def compile(self, plan, model, options):
        code, _, err = self.command([self.bin / "shardc", "compile", builtin(model), "-q", "-o", plan, *options], 120)
        return (plan, "") if code == 0 else (None, err)

    def ahead(self, model, *options):
        """Begins to compile a plan on cores that the GPU leaves idle."""
        name = re.sub(r"\W+", "_", "_".join([builtin(model), *options]))[-100:]
        with self.lock:
            if name not in self.plans:
                self.plans[name] = self.compilers.submit(self.compile, self.plans_folder / name, model, options)
            return self.plans[name]

    def plan(self, model, *options):
        return self.ahead(model, *options).result()

    def run_command(self, plan, *options):
        return [self.bin / "shardc", "run", plan, "--backend", "cuda", "--random-inputs", "1", *options]

    def run(self, compiled, *options, limit, env=None):
        """As `command`, of a plan on the GPU. What could not be compiled fails with what the compiler said."""
        plan, err = compiled
        return self.command(self.run_command(plan, *options), limit, env) if plan else (None, "", err)

    def plan_of(self, benchmark, *options):
        return self.plan(benchmark[1], *self.benchmark_options(*benchmark[1:3]), *options)

    def measure(self, compiled, limit, env=None, options=()):
        """What `run` says of repeated steps, with their median, which leaves out the first ones: they capture the graph. None
        where it fails. And what it says on stderr."""
        code, out, err = self.run(compiled, "--repeat", REPEATS, "--json", *options, limit=limit, env=env)
        if code != 0:
            return None, err
        result = json.loads(out)
        result["times_s"] = result["times_s"][2:]
        return {**result, "median_s": statistics.median_high(result["times_s"])}, err

    @staticmethod
    def benchmark_options(model, precision):
        # As a training step: what is only looked at, the logits, may be overwritten by their gradient.
        return (["--spec", "serial", "--drop", "logits"] + (["--precision", "bf16"] if precision == "bf16" else []) +
                (["--optimizer", "adamw", "--clip-norm", "1", "--lr", "1e-5"] if model.get("train") else []))

    def sanitizer(self):
        name = "compute-sanitizer memcheck, 2 layers"
        if not shutil.which("compute-sanitizer"):
            self.add(name, "skipped", "compute-sanitizer is not installed")
            return
        for precision in ["f32", "bf16"]:
            options = ["--spec", "serial"] + (["--precision", "bf16"] if precision == "bf16" else [])
            compiled, repeat, env = self.plan(SMALL, *options), ("--repeat", "2"), {"SHARDC_NO_CUDNN": "1"}
            # First without it: the choices that this leaves need not be tried in its slow motion.
            code, _, err = self.run(compiled, *repeat, limit=40, env=env)
            if code == 0:
                # Memory is what is looked at: libraries make calls that fail, to see what there is.
                code, out, err = self.command(["compute-sanitizer", "--report-api-errors", "no", "--error-exitcode", "9",
                                               *self.run_command(compiled[0], *repeat)], 120, env)
                err = out + err  # it reports on stdout
            if code == 0:
                self.add(f"{name} {precision}", "passed")
            elif "Device not supported" in err:
                self.add(f"{name} {precision}", "skipped", "compute-sanitizer does not support this machine")
            else:
                self.failed(f"{name} {precision}", err)

    def repeatable(self):
        """Two runs of a plan whose matrix products were chosen by timing, in the first of them."""
        name = "two runs of a plan give the same bits, bf16"
        compiled = self.plan(SMALL, "--spec", "serial", "--precision", "bf16", "--optimizer", "adamw")
        saved = [self.folder / "first.safetensors", self.folder / "second.safetensors"]
        for path in saved:
            code, _, err = self.run(compiled, "--steps", "4", "--save", path, limit=60)
            if code != 0:
                break
        if code != 0:
            self.failed(name, err)
        elif not (compiled[0] / "cuda_choices.txt").exists():
            self.failed(name, "error: no choices were kept")
        else:
            self.add(name, "passed" if saved[0].read_bytes() == saved[1].read_bytes() else "FAILED")

    def processes(self):
        name = "2 processes over NCCL against the CPU"
        missing = "needs 2 GPUs" if len(self.gpus) < 2 else "" if shutil.which("mpirun") else "mpirun is not installed"
        if missing:
            self.add(name, "skipped", missing)
            return
        plan, err = self.plan(SMALL, "--spec", "megatron", "--mesh", "tp=2")
        code = None
        if plan:
            outputs = self.folder / "cpu.safetensors"
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

    def torch(self, what, limit, env=None):
        """What torch_side.py prints, one object a line, and why there is no more of it."""
        if TRIED:
            what = {**what, "device": "cpu"}
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "torch"), "TRITON_CACHE_DIR": str(self.folder / "triton")}
        code, out, err = self.command([sys.executable, HERE / "torch_side.py", json.dumps(what)], limit, {**cache, **(env or {})})
        lines = err.strip().splitlines() or ["it failed"]
        # An error of the compiler, as that there is no C compiler, has advice behind it.
        errors = [line for line in lines if re.match(r"[\w.]+Error\b", line)] if code is not None else []
        why = "no torch here" if code == 3 else (errors or lines)[-1][:120]
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")], why if code != 0 else ""

    def begin_torch(self, share, *benchmarks):
        """torch.compile takes its minute while tests leave most cores idle, and keeps what it made for when it is measured: one
        model after the other in this share of the GPU's memory, of which tests need some too."""
        def compile_each():
            for _, model, precision, modes, _ in benchmarks:
                compiled = [mode for mode in modes if mode != "eager"]
                layers = 1 if compiled == ["regions"] else model["layers"]  # all of them are like one
                what = {"what": "gpt", "modes": compiled, "once": share, "precision": precision, **model, "layers": layers}
                self.torch(what, 200, {"TORCHINDUCTOR_COMPILE_THREADS": "4"})

        self.torch_ahead.append(threading.Thread(target=compile_each))
        self.torch_ahead[-1].start()

    def torch_peaks(self):
        for thread in self.torch_ahead:
            thread.join()  # from here on the GPU is for what is measured
        found, why = self.torch({"what": "peaks"}, 40)
        if why:
            self.add("peaks by torch", "skipped", why)
            return
        self.peaks = peaks = found[0]
        self.add("torch", "seen", peaks["version"])
        self.add("bf16 GEMM peak by torch", "measured", f"{peaks['bf16'] / 1e12:.0f} TFLOP/s", flops=peaks["bf16"])
        self.add("f32 GEMM peak by torch (no TF32)", "measured", f"{peaks['f32'] / 1e12:.0f} TFLOP/s", flops=peaks["f32"])
        self.add("copy peak by torch", "measured", f"{peaks['copy'] / 1e12:.2f} TB/s", bytes_per_s=peaks["copy"])

    def measured(self, name, model, precision, figures, against=None):
        """Adds a row of the figures of ours or of torch_side.py, and returns what that holds."""
        seconds, times, peak_bytes = (figures[k] for k in ("median_s", "times_s", "peak_bytes"))
        share = flops(model) / seconds / self.peaks[precision] if precision in self.peaks else None
        detail = f"{1e3 * seconds:.2f} ({1e3 * min(times):.1f} to {1e3 * max(times):.1f}) ms, {peak_bytes / 2**30:.2f} GiB"
        detail += f", {100 * share:.0f}% of the GEMM peak" if share else ""
        detail += f", {against / seconds:.2f} of shardc's speed" if against else ""
        values = {"median_s": seconds, "times_s": times, "peak_bytes": peak_bytes, "share_of_peak": share}
        self.add(name, "measured", detail, **values)
        return values

    def benchmark(self, name, model, precision, modes, limit):
        figures = self.figures.setdefault(name, {})
        plan, _ = compiled = self.plan(model, *self.benchmark_options(model, precision))
        result, err = self.measure(compiled, 100)
        ours = None
        if not result:
            self.failed(name, err)
        else:
            for note in re.findall("^note: (.*)$", err, re.M):
                self.add("  note", "seen", note[:200])
            # The weights are drawn, and small: what is computed is hardly better or worse than an even guess.
            loss, even = result["outputs"].get("loss"), math.log(model["vocab"])
            self.add(f"{name}: loss", "passed" if isinstance(loss, float) and abs(loss - even) < 1 else "FAILED",
                     f"{loss}; of an even guess {even:.3f}", loss=loss)
            ours = result["median_s"]
            figures["ours"] = self.measured(name, model, precision, result)
            figures["ours"]["of_prediction"] = self.memory(plan, result)
            host = figures["ours"]["host_s"] = statistics.median(result["host_times_s"][2:])
            self.add("  host's part of a captured step", "measured", f"{1e6 * host:.0f} us", host_s=host)
            self.chosen(choices(plan))
        what = {"what": "gpt", "precision": precision, **model}
        found, why = self.torch({**what, "modes": modes}, limit)
        seen = {f["mode"] for f in found}
        if "compile" in modes and "compile" not in seen:  # it takes longest; a layer may do
            found += self.torch({**what, "modes": [mode for mode in ("eager", "regions") if mode not in seen]}, limit)[0]
        for f in found:
            figures[f["mode"]] = self.measured(f"  torch {f['mode']}", model, precision, f, ours)
        for mode in modes:
            if mode not in figures:
                self.add(f"  torch {mode}", "skipped", why)

    def chosen(self, found):
        for key, choice in found:
            library = "cuBLASLt" if key.startswith("epilogue") else "cuDNN"
            problem = re.split(" cudnn | cublaslt ", key)[0]
            self.add("  " + problem[:54], library if choice[:1] == "1" else "ours", choice[2:], key=key)

    def memory(self, plan, result):
        """What was predicted for the plan, and who took the rest."""
        code, out, err = self.command([self.bin / "shardc", "dump", plan, "--json"], 20)
        if code != 0:
            self.failed("  memory", err)
            return None
        parts = json.loads(out)["memory"]
        predicted = sum(parts[k] for k in ("weights", "optimizer", "inputs", "arena"))
        work, libraries = result["workspace_bytes"], result["library_bytes"]
        taken = result["peak_bytes"]
        self.add("  memory against the plan's prediction", "measured",
                 f"{(taken + libraries) / predicted:.3f}: {predicted / 2**30:.2f} GiB predicted, "
                 f"{(taken - work) / 2**30:.2f} arena and states, {work / 2**20:.0f} MiB workspace, "
                 f"{libraries / 2**20:.0f} MiB libraries", predicted_bytes=predicted, workspace_bytes=work,
                 library_bytes=libraries)
        return (taken + libraries) / predicted

    def beside(self, what, benchmark, compiled, options=(), env=None):
        """A benchmark that ran, in another way."""
        name, seconds = f"{benchmark[0]}: {what}", self.figures.get(benchmark[0], {}).get("ours")
        if not seconds:
            return  # that it failed is known
        result, err = self.measure(compiled, 40, env, options)
        if not result:
            self.failed(name, err)
            return
        self.measured(name, *benchmark[1:3], result, seconds["median_s"])

    def without_epilogues(self, *benchmark):
        """The same plan, products and what follows them as kernels of their own."""
        what, compiled = "without epilogues of products", self.plan_of(benchmark)
        if compiled[0] and not any(key.startswith("epilogue") and choice[:1] == "1" for key, choice in choices(compiled[0])):
            self.add(f"{benchmark[0]}: {what}", "skipped", "none was taken")
            return
        self.beside(what, benchmark, compiled, env={"SHARDC_NO_EPILOGUES": "1"})

    def recomputed(self, *benchmark):
        """With cheap ops made again in the backward, as torch.compile does unasked: slower, in less memory."""
        options = ("--recompute", "selective")
        self.beside(" ".join(options), benchmark, self.plan_of(benchmark, *options))

    def varying(self, *benchmark):
        """With sums in an order of each run's own, as torch's backward of attention has them."""
        option, (plan, err) = "--fast-nondeterministic", self.plan_of(benchmark)
        known = choices(plan) if plan else []
        self.beside(option, benchmark, (plan, err), [option])
        self.chosen([choice for choice in choices(plan) if choice not in known] if plan else [])

    def profile(self, name, model, precision, *_):
        """Where the time goes: the tables of --profile, in the JSON."""
        if TRIED:
            self.add("profile of " + name, "skipped", "it multiplies large matrices")
            return
        code, _, err = self.run(self.plan(model, *self.benchmark_options(model, precision)), "--repeat", "3", "--profile",
                                self.folder / "trace.json", limit=40)
        if code != 0:
            self.failed("profile of " + name, err)
        else:
            self.profiles[name] = err
            self.add("profile of " + name, "measured", "its tables are in the JSON")

    def bars(self):
        """What the project holds itself to on one H200, each beside what was seen here."""
        for name, least in [(GPT2_BF16[0], 0.5), (GPT2_XL_BF16[0], 0.55)]:
            figures = self.figures.get(name, {})
            ours, torch = figures.get("ours"), [f for whose, f in figures.items() if whose != "ours"]
            compiled = [figures[mode]["median_s"] for mode in ("compile", "regions") if mode in figures]
            self.bar(name, "speed of torch.compile", ours and compiled and min(compiled) / ours["median_s"], 1.1, least=True)
            self.bar(name, "of the GEMM peak", ours and ours["share_of_peak"], least, least=True)
            self.bar(name, "us of the host for a step", ours and 1e6 * ours["host_s"], 100)
            self.bar(name, "of torch's memory", ours and torch and ours["peak_bytes"] / min(f["peak_bytes"] for f in torch), 0.9)
            self.bar(name, "off the predicted memory", ours and ours["of_prediction"] and abs(ours["of_prediction"] - 1), 0.03)
        for what, tests in [("bf16 within the tolerances of the CPU", "Bf16IsLikeTheGoldens|RecomputeInBf16"),
                            ("f32 within 1e-4", "AgainstGoldens"), ("bit-equal run to run", "BitEqual|two runs of a plan")]:
            ran = [row["status"] for row in self.rows if re.search(tests, row["name"])]
            self.add(f"bar: results, {what}", "missed" if "FAILED" in ran else "met" if "passed" in ran else "unknown")

    def bar(self, benchmark, what, figure, bar, least=False):
        sign = ">=" if least else "<="
        status = "unknown" if not figure else "met" if (figure >= bar if least else figure <= bar) else "missed"
        shown = f"{figure:.4g}" if figure else "?"
        self.add(f"bar: {benchmark.partition(' fwd')[0]}", status, f"{shown} {what}, {sign} {bar}", figure=figure or None, bar=bar)


def names_of_gpus():
    """Those of their devices where a container has no nvidia-smi."""
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return sorted(str(p) for p in pathlib.Path("/dev").glob("nvidia[0-9]*"))


def main():
    gpus = names_of_gpus()
    print("\n".join(gpus))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=folder_of_plans()) as plans:
        r = Report(pathlib.Path(sys.argv[1]), pathlib.Path(folder), pathlib.Path(plans), pathlib.Path(sys.argv[2]), gpus)
        for name, model, precision, *_ in BENCHMARKS:
            if PARTS.search("benchmark " + name):
                r.ahead(model, *r.benchmark_options(model, precision))
        if PARTS.search("recomputed " + GPT2_XL_BF16[0]):
            r.ahead(GPT2_XL_BF16[1], *r.benchmark_options(*GPT2_XL_BF16[1:3]), "--recompute", "selective")
        if PARTS.search("torch_peaks"):  # which waits for it
            r.begin_torch(0.6, GPT2_BF16)
            r.begin_torch(0.2, GPT2_XL_BF16, LLAMA_BF16, GPT2_TRAIN)
        # What is worth most comes first: the last ones go without when time runs out.
        for run, *of in [(r.tests,), (r.repeatable,), (r.torch_peaks,), (r.benchmark, GPT2_BF16), (r.benchmark, GPT2_XL_BF16),
                         (r.profile, GPT2_BF16), (r.benchmark, LLAMA_BF16), (r.profile, LLAMA_BF16), (r.processes,),
                         (r.varying, GPT2_XL_BF16), (r.varying, LLAMA_BF16), (r.sanitizer,), (r.benchmark, GPT2_TRAIN),
                         (r.profile, GPT2_TRAIN), (r.benchmark, GPT2_F32), (r.recomputed, GPT2_XL_BF16),
                         (r.profile, GPT2_XL_BF16), (r.without_epilogues, GPT2_BF16), (r.without_epilogues, GPT2_XL_BF16)]:
            args = of[0] if of else ()
            name = " ".join([run.__name__, *args[:1]])
            if PARTS.search(name):
                r.part(lambda run=run, args=args: run(*args), name)
        r.compilers.shutdown(cancel_futures=True)
        r.write()
        failed = [row for row in r.rows if row["status"] == "FAILED"]
        # Again, where whoever sees only the end of the output sees it; single tests come last.
        for row in sorted(failed, key=lambda row: "said" in row)[:MOST_NAMED]:
            print(f"FAILED: {row['name'][:80]}: {row['detail'][:160]}")
        if len(failed) > MOST_NAMED:
            print(f"FAILED: {len(failed) - MOST_NAMED} more, see the JSON")
        r.part(r.bars, "bars")
        print(f"{len(r.rows)} rows, {len(failed)} failed, {time.monotonic() - r.began:.0f} s; {r.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
