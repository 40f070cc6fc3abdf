"""What the benchmarks share: where things are, measured subprocesses, the machine, tables. Standard library only."""
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
SHARDC = TOP / ".build/release/tools/shardc"
OUT = TOP / ".build/bench"
MIB = 1 << 20


def two_cpus():
    """Two CPUs of this process on different cores, if there are such."""
    cpus = sorted(os.sched_getaffinity(0))

    def core(cpu):
        path = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text().strip() if path.exists() else str(cpu)

    others = [c for c in cpus[1:] if core(c) != core(cpus[0])]
    return {cpus[0], (others or cpus[1:] or cpus)[0]}


def measure(command, cpus=None, env=None, ends_with=0):
    """Runs a command to its end: {"wall_s", "max_rss_bytes", "stdout", "stderr"}. Another exit code ends the benchmark."""
    with open(OUT / "stderr.txt", "w+") as errors, open(OUT / "stdout.txt", "w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(c) for c in command], stdout=output, stderr=errors, env={**os.environ, **(env or {})},
            preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait for it again
        errors.seek(0)
        output.seek(0)
        said = errors.read()
        if process.returncode != ends_with:
            sys.exit(f"{' '.join(str(c) for c in command)}\nended with {process.returncode}:\n{said[-4000:]}")
        return {"wall_s": wall, "max_rss_bytes": usage.ru_maxrss * 1024, "stdout": output.read(), "stderr": said}


def google_benchmark(binary, pattern, cpus, repetitions=1):
    """Best seconds of each benchmark that matches, {name: seconds}; repetitions of several take turns."""
    report = measure([binary, f"--benchmark_filter={pattern}", f"--benchmark_repetitions={repetitions}",
                      "--benchmark_enable_random_interleaving=true", "--benchmark_format=json"], cpus)
    best = {}
    for run in json.loads(report["stdout"])["benchmarks"]:
        if run.get("run_type") == "iteration" and not run.get("error_occurred"):
            seconds = run["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[run["time_unit"]]
            best[run["name"]] = min(best.get(run["name"], float("inf")), seconds)
    return best


def machine(cpus=None):
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", info)
    memory = re.search(r"MemTotal:\s*(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True)
    commit = subprocess.run(["git", "-C", str(TOP), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {
        "cpu": model.group(1) if model else platform.processor(),
        "cpus_of_this_machine": os.cpu_count(),
        "cpus_used": sorted(cpus or os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.group(1)) / MIB, 1) if memory else None,
        "kernel": platform.release(),
        "compiler": compiler.stdout.splitlines()[0] if compiler.returncode == 0 else None,
        "shardc_commit": commit.stdout.strip(),
    }


def bar(name, value, unit, limit, at_most):
    """A measured value beside what it has to be."""
    return {"name": name, "value": value, "unit": unit, "limit": limit, "at_most": at_most,
            "met": value <= limit if at_most else value >= limit}


def print_table(title, header, rows):
    cells = [header] + [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    print(f"\n{title}")
    for row in cells:
        print("  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))))


def finish(name, result, bars):
    """Prints the bars and the JSON, writes .build/bench/NAME.json; the exit status says whether all bars are met."""
    print_table("bars", ["what", "measured", "bar", "met"],
                [[b["name"], f"{b['value']:.3f} {b['unit']}", f"{'<=' if b['at_most'] else '>='} {b['limit']:g}",
                  "yes" if b["met"] else "NO"] for b in bars])
    result["bars"] = bars
    (OUT / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    sys.exit(0 if all(b["met"] for b in bars) else 1)
