"""./dev gpu run, or `run` of a pack: tests and benchmarks on this machine's GPU, within 9 minutes.

Each part has its own share of the time and what is left of it goes on to the next; a part that
is cut off says so and the others still run. Results go to RESULTS/<gpu>/*.json, a summary for
people to RESULTS/<gpu>/SUMMARY.md. Without a GPU it says so in one line and ends with 64.
"""
import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time

from summary import write_summary

EXIT_USAGE = 64
BUDGET_S = 540
MODELS = ("gpt2-124m", "qwen2.5-0.5b", "qwen2.5-1.5b")
# (model, type of its products); torch's are in bf16.
TRAININGS = (*((model, "bf16") for model in MODELS), (MODELS[-1], "fp8"))
# (part, share of the budget); in this order.
SHARES = (("tests", 0.30), ("kernels", 0.10), ("kernel_peers", 0.15), ("mfu", 0.20),
          ("mfu_peers", 0.25))
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
    return {"gpu": name, "driver": driver, "memory": memory}


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


class Run:
    """The machine, the budget, and what is known so far."""

    def __init__(self, args):
        self.pack, self.quick, self.wanted = args.pack, args.quick, args.parts
        self.start, self.budget = time.monotonic(), args.budget
        self.end_of_part = self.start
        self.facts = gpu_facts()
        self.folder = os.path.join(args.results, re.sub(r"[^A-Za-z0-9]+", "-", self.facts["gpu"]).lower())
        os.makedirs(self.folder, exist_ok=True)
        self.environment = {**os.environ, "DTRAIN_PLUGIN_DIR": f"{self.pack}/lib",
                            "LD_LIBRARY_PATH": ":".join([*torch_folders(), f"{self.pack}/lib"]),
                            "PYTHONDONTWRITEBYTECODE": "1"}
        self.parts = {}

    def left(self):
        return max(0.0, self.end_of_part - time.monotonic())

    def command(self, words, limit=None):
        """{"code", "s", "output"}; code None: cut off."""
        limit = min(self.left(), limit or self.budget)
        if limit < 1:
            return {"code": None, "s": 0.0, "output": "no time left"}
        begin = time.monotonic()
        try:
            done = subprocess.run(words, env=self.environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace",
                                  timeout=limit, check=False)
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            code, output = None, (error.stdout or b"").decode(errors="replace")
        except OSError as error:
            code, output = 127, str(error)
        return {"code": code, "s": round(time.monotonic() - begin, 2), "output": output[-4000:]}

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

    def json_of(self, words):
        """What a benchmark wrote with --json, or what it said instead."""
        path = f"{self.folder}/.part.json"
        done = self.command([*words, "--json", path])
        if done["code"] == 0 and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                result = json.load(file)
        else:
            result = {"error": "cut off" if done["code"] is None else f"exit {done['code']}",
                      "output": done["output"]}
        if os.path.exists(path):
            os.remove(path)
        return result

    def kernels(self):
        return self.json_of([f"{self.pack}/bin/dtrain-bench-kernels-cuda",
                             *(["--rounds", "2"] if self.quick else [])])

    def kernel_peers(self):
        return self.json_of([sys.executable, f"{self.pack}/bench/gpu/kernel_peers.py",
                             *(["--rounds", "2"] if self.quick else [])])

    def mfu(self):
        return [{"model": model, "dtype": dtype, **self.json_of(
            [f"{self.pack}/bin/dtrain-bench-mfu", "--preset", model, "--device", "cuda", "--dtype",
             dtype, "--micro-batch", "4", "--steps", "3" if self.quick else "10",
             "--svg", f"{self.folder}/{model}-{dtype}.svg"])} for model, dtype in TRAININGS]

    def mfu_peers(self):
        results = []
        for model in MODELS:
            for way in ("eager", "compile"):
                results.append({"model": model, "way": way, **self.json_of(
                    [sys.executable, f"{self.pack}/bench/twins/mfu_torch.py", "--config",
                     f"{self.pack}/examples/configs/models/{model}.json", "--device", "cuda",
                     "--dtype", "bf16", "--micro-batch", "4", "--way", way, "--steps",
                     "3" if self.quick else "10"])})
        return results

    def failures(self):
        """What of dtrain's own did not end well; peers may be absent."""
        failed = [test["name"] for test in self.parts.get("tests", [])
                  if test["state"] in ("failed", "cut off")]
        failed += ["kernels"] if "error" in self.parts.get("kernels", {}) else []
        return failed + [run["model"] for run in self.parts.get("mfu", []) if "error" in run]

    def run(self):
        spent = 0.0
        for part, share in SHARES:
            spent += share
            if part not in self.wanted:
                continue
            self.end_of_part = self.start + self.budget * spent
            print(f"{part}: up to {self.left():.0f} s", flush=True)
            self.keep(part, getattr(self, part)())


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
    print(write_summary(run.folder))
    return 1 if run.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
