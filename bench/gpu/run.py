"""./dev gpu run, or `run` of a pack: tests and benchmarks on this machine's GPU, within 9 minutes.

Each part has its own share of the time and what is left of it goes on to the next; a part that
is cut off says so and the others still run. Results go to RESULTS/<gpu>/*.json, a summary for
people to RESULTS/<gpu>/SUMMARY.md. Without a GPU it says so in one line and ends with 64.
"""
import argparse
import dataclasses
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from report import print_goals  # noqa: E402
from summary import write_summary  # noqa: E402

EXIT_USAGE = 64
BUDGET_S = 540
SEQUENCE, TOKENS_A_STEP = 1024, 524288


@dataclasses.dataclass(frozen=True)
class Training:
    """A shape, what its products and AdamW's states are made of, and what it may take."""
    model: str
    dtype: str
    states: str
    micro_batch: int
    needs_gb: float  # Weights, masters, gradients, states, activations of a micro-batch.
    steps: int
    limit_s: float
    mfu_percent: float = 0  # The goal; 0: none of its own.
    attention: str = "flash"

    @property
    def name(self):
        return f"{self.model}-{self.dtype}" + ("" if self.attention == "flash" else f"-{self.attention}")

    @property
    def accumulation(self):
        return TOKENS_A_STEP // SEQUENCE // self.micro_batch


# The most telling first: what is cut off is the last. 14 bytes a parameter with states in bf16, 18
# in fp32; FP8 adds the codes of weights.
TRAININGS = (
    Training("qwen2.5-3b", "bf16", "bf16", 4, 64, 2, 90, 60),
    Training("qwen2.5-3b", "fp8", "bf16", 4, 72, 2, 75),
    Training("qwen2.5-7b", "bf16", "bf16", 4, 130, 2, 170, 60),
    Training("qwen2.5-1.5b", "bf16", "fp32", 8, 50, 3, 60, 55),
    Training("qwen2.5-3b", "bf16", "bf16", 4, 64, 2, 75, attention="cudnn"))
FP8_OVER_BF16 = 1.35
# torch has no master weights here, and a step of one micro-batch: tokens/s, not MFU, is compared.
PEER_MODEL, PEER_MICRO_BATCH, PEER_NEEDS_GB = "qwen2.5-1.5b", 8, 40
# (part, share of the budget); in this order. What one leaves goes to the next.
SHARES = (("tests", 0.18), ("kernels", 0.06), ("comm", 0.03), ("kernel_peers", 0.10), ("mfu", 0.52),
          ("mfu_peers", 0.11))
GLIBC = re.compile(rb"GLIBC_(\d+)[.](\d+)\0")


def no_gpu_here():
    """Why there is no GPU, or None."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not run ({error})"
    return None if "GPU" in done.stdout else f"nvidia-smi lists none ({done.stdout.strip()[:80]})"


def gpu_facts():
    query = "name,driver_version,memory.total"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], check=True,
                          capture_output=True, text=True).stdout
    name, driver, memory = (part.strip() for part in done.splitlines()[0].split(","))
    return {"gpu": name, "driver": driver, "memory": memory, "gpus": len(done.splitlines())}


def torch_folders():
    """Folders of LibTorch's and CUDA's libraries: DTRAIN_TORCH, else this Python's torch."""
    torch = os.environ.get("DTRAIN_TORCH")
    if not torch:
        found = subprocess.run([sys.executable, "-c",
                                "import torch, os; print(os.path.dirname(torch.__file__))"],
                               capture_output=True, text=True, check=False)
        if found.returncode != 0:
            sys.exit(f"gpu run: {sys.executable} has no torch; set DTRAIN_PYTHON to one that has, or "
                     "DTRAIN_TORCH to a LibTorch")
        torch = found.stdout.strip()
    site = os.path.join(os.path.dirname(torch), "nvidia")
    folders = [f"{torch}/lib"]
    for where, names, _ in os.walk(site):
        if os.path.basename(where) == "lib":
            folders.append(where)
            names.clear()
    return folders


def newest_glibc(path):
    """(major, minor) of the newest glibc that a program asks for."""
    with open(path, "rb") as file:
        return max((tuple(map(int, m)) for m in GLIBC.findall(file.read())), default=(0, 0))


class Budget:
    """Shares out seconds: a part may take what the parts until it may take together."""

    def __init__(self, seconds, shares):
        self.seconds, self.shares = seconds, shares
        self.start = self.end_of_part = time.monotonic()

    def begin(self, part):
        names = [name for name, _ in self.shares]
        until = sum(share for _, share in self.shares[:names.index(part) + 1])
        self.end_of_part = self.start + self.seconds * until

    def left(self):
        return max(0.0, self.end_of_part - time.monotonic())


def run_command(words, limit, environment=None):
    """{"code", "s", "output"}; code None: cut off, with all that it started."""
    if limit < 1:
        return {"code": None, "s": 0.0, "output": "no time left"}
    begin = time.monotonic()
    try:
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
    except OSError as error:
        return {"code": 127, "s": 0.0, "output": str(error)}
    try:
        output, code = process.communicate(timeout=limit)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # Ranks that it forked hold the pipe open too.
        output, code = process.communicate()[0], None
    return {"code": code, "s": round(time.monotonic() - begin, 2), "output": output[-4000:]}


def gigabytes(memory):
    """Of nvidia-smi's "81559 MiB"."""
    return float(memory.split()[0]) * 2**20 / 1e9


class Run:
    """The machine, the budget, and what is known so far."""

    def __init__(self, args):
        self.pack, self.quick, self.wanted = args.pack, args.quick, args.parts
        self.budget = Budget(args.budget, SHARES)
        self.facts = gpu_facts()
        self.folder = os.path.join(args.results, re.sub(r"[^A-Za-z0-9]+", "-", self.facts["gpu"]).lower())
        os.makedirs(self.folder, exist_ok=True)
        self.environment = {**os.environ, "DTRAIN_PLUGIN_DIR": f"{self.pack}/lib",
                            "LD_LIBRARY_PATH": ":".join([*torch_folders(), f"{self.pack}/lib"]),
                            "PYTHONDONTWRITEBYTECODE": "1"}
        self.parts = {}

    def command(self, words, limit=None):
        left = self.budget.left()
        return run_command(words, min(left, limit or left), self.environment)

    def too_small(self, needs_gb):
        """What to say when this GPU's memory does not do; None when it does."""
        has = gigabytes(self.facts["memory"])
        return None if has >= needs_gb else {
            "skipped": f"it needs about {needs_gb:.0f} GB of memory, this GPU has {has:.0f}"}

    def keep(self, part, facts):
        self.parts[part] = facts
        with open(f"{self.folder}/{part}.json", "w", encoding="utf-8") as file:
            json.dump({**self.facts, "part": part, "results": facts}, file, indent=2)
            file.write("\n")

    def tests(self):
        with open(f"{self.pack}/pack.json", encoding="utf-8") as file:
            listed = json.load(file)["tests"]
        results = []
        for test in listed:
            done = self.command([f"{self.pack}/{test['program']}"], test["limit_s"])
            # 77 and this word: the project's way to say that nothing was tested.
            skipped = done["code"] == 77 or "SKIPPED: NOT TESTED ON" in done["output"]
            state = "cut off" if done["code"] is None else "skipped" if skipped else \
                "passed" if done["code"] == 0 else "failed"
            results.append({"name": test["name"], "state": state, **done})
            print(f"  {test['name']}: {state} ({done['s']:.1f} s)", flush=True)
        return results

    def json_of(self, words, limit=None):
        """What a benchmark wrote with --json, or what it said instead."""
        path = f"{self.folder}/.part.json"
        done = self.command([*words, "--json", path], limit)
        if done["code"] in (0, None) and os.path.exists(path):  # What is cut off keeps its rows.
            with open(path, encoding="utf-8") as file:
                result = json.load(file)
        else:
            result = {"error": "cut off" if done["code"] is None else f"exit {done['code']}",
                      "output": done["output"]}
        if os.path.exists(path):
            os.remove(path)
        return result

    def kernels(self):
        return self.json_of([f"{self.pack}/bin/dtrain-bench-kernels-cuda", "--launches", "50",
                             "--rounds", "2" if self.quick else "5"])

    def comm(self):
        """NCCL between all GPUs, one alone too, and two ranks through host memory."""
        ways = (("nccl", self.facts["gpus"], ["--registered"]), ("staged", 2, []))
        return [{"backend": backend, "ranks": ranks, **self.json_of(
            [f"{self.pack}/bin/dtrain-bench-comm", "--backend", backend, "--ranks", str(ranks), *words,
             "--stepfactor", "16", "--maxbytes", "1M" if self.quick else "256M"])}
            for backend, ranks, words in ways]

    def kernel_peers(self):
        return self.json_of([sys.executable, f"{self.pack}/bench/gpu/kernel_peers.py",
                             "--rounds", "2" if self.quick else "5"])

    def train(self, training):
        words = [f"{self.pack}/bin/dtrain-bench-mfu", "--preset", training.model, "--device", "cuda",
                 "--dtype", training.dtype, "--attention", training.attention,
                 "--micro-batch", str(training.micro_batch),
                 "--accumulation", str(training.accumulation), "--seq", str(SEQUENCE),
                 "--set", "cuda_graphs=true", "--warm-up", "3", "--short-steps", "3",
                 "--steps", "1" if self.quick else str(training.steps),
                 "--svg", f"{self.folder}/{training.name}.svg"]
        if training.states == "bf16":
            words.append("--bf16-states")
        result = self.too_small(training.needs_gb) or self.json_of(words, training.limit_s)
        print(f"  {training.name}: {result.get('skipped') or result.get('error') or 'measured'}",
              flush=True)
        return {"model": training.model, "dtype": training.dtype, "attention": training.attention,
                **result}

    def mfu(self):
        return [self.train(training) for training in TRAININGS]

    def mfu_peers(self):
        small = self.too_small(PEER_NEEDS_GB)
        return [{"model": PEER_MODEL, "way": way, **(small or self.json_of(
            [sys.executable, f"{self.pack}/bench/twins/mfu_torch.py", "--config",
             f"{self.pack}/examples/configs/models/{PEER_MODEL}.json", "--device", "cuda",
             "--dtype", "bf16", "--micro-batch", str(PEER_MICRO_BATCH), "--way", way, "--steps",
             "3" if self.quick else "10"]))} for way in ("eager", "compile")]

    def failures(self):
        """What of dtrain's own did not end well; peers may be absent."""
        failed = [test["name"] for test in self.parts.get("tests", [])
                  if test["state"] in ("failed", "cut off")]
        failed += ["kernels"] if "error" in self.parts.get("kernels", {}) else []
        failed += [run["backend"] for run in self.parts.get("comm", []) if "error" in run]
        return failed + [run["model"] for run in self.parts.get("mfu", []) if "error" in run]

    def run(self):
        for part, _ in SHARES:
            if part in self.wanted:
                self.budget.begin(part)
                print(f"{part}: up to {self.budget.left():.0f} s", flush=True)
                self.keep(part, getattr(self, part)())


def goals_of(parts):
    """(name, measured, relation, target) of what was measured."""
    goals = [(f"kernels.{row['name']}.copy_fraction", row["copy_fraction"], ">=", row["goal"])
             for row in parts.get("kernels", {}).get("results", [])]
    measured = [run for run in parts.get("mfu", []) if "mfu_strict" in run]
    # Of several attention kernels the fastest counts.
    runs = {(run["model"], run["dtype"]): run
            for run in sorted(measured, key=lambda run: run.get("tokens_per_s", 0))}
    for training in TRAININGS:
        run = runs.get((training.model, training.dtype))
        if run and training.mfu_percent:
            goals.append((f"mfu.{training.model}", 100 * run["mfu_strict"], ">=",
                          training.mfu_percent))
        other = runs.get((training.model, "bf16"))
        if run and other and training.dtype == "fp8":
            goals.append((f"fp8.{training.model}.over_bf16",
                          run["tokens_per_s"] / other["tokens_per_s"], ">=", FP8_OVER_BF16))
    return goals


def print_skipped(parts):
    for run in parts.get("mfu", []):
        if "skipped" in run or "error" in run:
            why = run.get("skipped") or run["error"]
            print(f"not measured: mfu of {run['model']} in {run['dtype']}: {why}")


def needs_newer_glibc(pack):
    mine = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    asked = newest_glibc(f"{pack}/bin/dtrain-bench-mfu")
    return None if asked <= mine else (f"the pack was built for glibc {asked[0]}.{asked[1]}, this "
                                       f"machine has {mine[0]}.{mine[1]}: build it on an older system")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--results", default="", help="default: bench/results of the pack or checkout")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds in all")
    parser.add_argument("--parts", nargs="+", default=[part for part, _ in SHARES],
                        choices=[part for part, _ in SHARES])
    parser.add_argument("--quick", action="store_true", help="few rounds: whether everything runs")
    args = parser.parse_args()
    args.results = args.results or os.path.join(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench", "results")
    why = no_gpu_here() or needs_newer_glibc(args.pack)
    if why:
        print(f"gpu run: no GPU can be used here: {why}; GPU figures: not yet measured on a GPU",
              file=sys.stderr)
        return EXIT_USAGE
    run = Run(args)
    run.run()
    goals = print_goals(goals_of(run.parts))
    print_skipped(run.parts)
    run.keep("goals", goals)
    print(write_summary(run.folder))
    return 1 if run.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
