"""The command behind `run`: makes missing exports, checks them, and says what came of it."""
import argparse
import collections
import dataclasses
import json
import logging
import os
import pathlib
import re
import resource
import shutil
import sys
import time
import warnings

import torch
import transformers

import check
import export
import models

TOP = pathlib.Path(__file__).resolve().parents[2]
OUT = TOP / ".build/zoo"
EXPORT_CPU_S = 200
EXPORT_MEMORY = 16 << 30


def in_a_process(work):
    """Does `work` in a process of its own, limited in time and memory; returns what kept it from its end, or None."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (EXPORT_CPU_S, EXPORT_CPU_S))
        resource.setrlimit(resource.RLIMIT_AS, (EXPORT_MEMORY, EXPORT_MEMORY))
        reason = ""
        try:
            work()
        except BaseException as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        os.write(write, reason.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        reason = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return reason or (f"ended with {status}" if status else None)


def make_export(name, how):
    """The export's folder, and why there is nothing in it to check, or None. Kept for later runs."""
    folder = OUT / name / how
    failed = folder / "failed.txt"
    if (folder / "export.json").exists():
        return folder, None
    if not failed.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        silent = os.open(os.devnull, os.O_WRONLY)

        def work():
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            export.export(name, how, folder)

        reason = in_a_process(work)
        os.close(silent)
        if reason is None:
            return folder, None
        failed.write_text(reason)
    return folder, failed.read_text()


def warm_up():
    """Loads what every export needs before processes are made for them."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 2)
    torch.onnx.export(model, (torch.ones(2, 2),), dynamo=True, verbose=False)


def said_briefly(result):
    others = {s: r if s == "not exported" else f"{r['kind']} {r['what'].split(' ')[0]}" for s, r in result.items()
              if s == "not exported" or r["kind"] != "ok"}
    return others or "ok"


def print_table(results):
    sets = [s for s in check.SETS if any(s in r for r in results.values())]
    kinds = ["ok", "refused", *check.BAD, "slow"]
    print("\nset       " + "".join(k.rjust(9) for k in kinds))
    for s in sets:
        counts = collections.Counter(r[s]["kind"] for r in results.values() if s in r)
        print(s.ljust(10) + "".join(str(counts[k]).rjust(9) for k in kinds))
    refusals = collections.Counter(r[s]["what"].split(" ")[0] for r in results.values() for s in sets
                                   if s in r and r[s]["kind"] == "refused")
    print("refused by: " + ", ".join(f"{k} {n}" for k, n in refusals.most_common()))
    not_exported = sum("not exported" in r for r in results.values())
    print(f"{len(results) - not_exported} exports checked, {not_exported} not exported")


def print_changes(results, old):
    for name in sorted(results.keys() & old.keys()):
        for s in sorted(results[name].keys() & old[name].keys() - {"not exported"}):
            was, now = old[name][s], results[name][s]
            if was["kind"] != now["kind"] or was["what"].split(" ")[0] != now["what"].split(" ")[0]:
                print(f"{name} {s}: was {was['kind']} {was['what'][:60]}, is {now['kind']} {now['what']}")


def chosen(text, known, parser):
    names = text.split(",")
    unknown = [n for n in names if n not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def main():
    parser = argparse.ArgumentParser(prog="tests/zoo/run", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="of TASK.MODEL, as 'causal.(gpt2|llama)$'")
    parser.add_argument("--exports", default=",".join(export.EXPORTS[:2]), help=f"of {', '.join(export.EXPORTS)}")
    parser.add_argument("--sets", default=",".join(check.SETS), help=f"of {', '.join(check.SETS)}")
    parser.add_argument("--shardc", type=pathlib.Path, default=TOP / ".build/release/tools/shardc")
    parser.add_argument("--out", type=pathlib.Path, default=OUT / "results.json")
    parser.add_argument("--compare", type=pathlib.Path, metavar="OLD.json", help="say what changed since")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no export after these")
    args = parser.parse_args()
    if not args.shardc.exists():
        parser.error(f"there is no {args.shardc}: tools/setup builds it")
    chosen_models = [n for n in models.all_models() if re.search(args.only, n)]
    if not chosen_models:
        parser.error(f"no model is called like {args.only}")
    sets = chosen(args.sets, check.SETS, parser)
    exports = chosen(args.exports, export.EXPORTS, parser)
    old = json.loads(args.compare.read_text()) if args.compare else {}

    warm_up()
    end = time.monotonic() + args.minutes * 60
    results = {}
    for name, how in ((n, h) for n in chosen_models for h in exports):
        if time.monotonic() > end:
            print("stopped: --minutes are over")
            break
        key = f"{name}.{how}"
        folder, reason = make_export(name, how)
        if reason:
            results[key] = {"not exported": reason}
        else:
            results[key] = {s: dataclasses.asdict(check.check(args.shardc, folder, s)) for s in sets}
        print(key, said_briefly(results[key]), flush=True)
        args.out.write_text(json.dumps(results, indent=1))
    print_table(results)
    print_changes(results, old)
    sys.exit(any(r[s]["kind"] in check.BAD for r in results.values() for s in sets if s in r))


if __name__ == "__main__":
    main()
