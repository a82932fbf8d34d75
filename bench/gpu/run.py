"""./dev gpu run, or `run` of a pack: tests and benchmarks on this machine's GPU, within 9 minutes.

The parts that the others depend on come first. The order is:
  tests         collectives and the engine, then kernels and the plugin
  short_run     a small GPT by the engine: graphs beside eager steps, the GPU beside the CPU, with
                the warnings, the memory and the time of a step
  kernels       each kernel's time
  comm          collectives' times
  kernel_peers  torch's and Liger's kernels
  mfu           dtrain's trainings, goals first
  mfu_peers     torch's trainings
Tests and the short run take a quarter of the time at most. Each part has its own share, and what is
left of it goes on to the next; a part that is cut off says so and the others still run.

It stops early. When a test of collectives or of the engine fails, or the short run's losses differ,
are not finite or do not come, trainings and torch's beside them are not started, because they would
measure something wrong; nor are the times of collectives whose test has failed. Kernels are timed
all the same: they need no engine, and whoever has 15 minutes of a GPU takes home what can still be
right. The summary has a line for each part that was not started, with the reason; what was measured
is kept, and the exit code is 1. A later call with the same programs is held to what an earlier one
has found. `--keep-going` takes all parts whatever was found.

Results go to RESULTS/<gpu>/*.json, a summary for people to RESULTS/<gpu>/SUMMARY.md; of what is
measured one by one each result is there when it is known. Without a GPU, or with a LibTorch that the
pack was not built with, it says so in one line and ends with 64.

The trainings and torch's beside them take longer than 9 minutes together: what there is no time for
is named with the command that takes it. `--trainings NAME...` takes the named ones; results of
others stay in their files. `--budget 1800`, half an hour, takes everything in one call. Within
9 minutes each it takes three calls, the last two with dtrain and torch beside each other:
  run
  run --trainings qwen2.5-3b-bf16-flash qwen2.5-1.5b-bf16 qwen2.5-1.5b-eager qwen2.5-1.5b-compile
  run --trainings qwen2.5-3b-bf16 qwen2.5-3b-fp8 qwen2.5-3b-eager qwen2.5-3b-compile
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import goals  # noqa: E402
import machine  # noqa: E402
import programs  # noqa: E402
import provenance  # noqa: E402
import stops  # noqa: E402
import summary  # noqa: E402
import test_shards  # noqa: E402
import trainings as plans  # noqa: E402
from report import merged, write_json  # noqa: E402
from short_run import ShortRun  # noqa: E402
from training_lines import is_measured  # noqa: E402

EXIT_USAGE = 64
BUDGET_S = 540
# (part, share of the budget), in the order in which they run. Time that a part leaves goes to the next.
SHARES = (("tests", 0.17), ("short_run", 0.08), ("kernels", 0.05), ("comm", 0.03),
          ("kernel_peers", 0.08), ("mfu", 0.59), ("mfu_peers", 0.0))
TESTS_AFTER_S = 5  # Each test leaves this to each of those after it, so that one that hangs is not all.


class Budget:
    """Shares out seconds: a part may take what the parts until it may take together."""

    def __init__(self, seconds, shares):
        self.seconds, self.shares = seconds, shares
        self.start = self.end_of_part = time.monotonic()

    def begin(self, part):
        names = [name for name, _ in self.shares]
        until = sum(share for _, share in self.shares[:names.index(part) + 1])
        whole = sum(share for _, share in self.shares)
        self.end_of_part = self.start + self.seconds * (until / whole if whole else 1)

    def left(self):
        return max(0.0, self.end_of_part - time.monotonic())


def run_command(words, limit, environment=None, characters=4000):
    """{"code", "s", "output"}, the last `characters` of it; code None: cut off, with all that it
    started."""
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
    finally:
        if process.poll() is None:  # This run is ended from outside: nothing goes on without it.
            os.killpg(process.pid, signal.SIGKILL)
    return {"code": code, "s": round(time.monotonic() - begin, 2), "output": output[-characters:]}


def with_earlier(before, taken):
    """The rows of an earlier call and of this one by name. An earlier measurement stays where this
    call has none: it had no time or no memory, or was cut off."""
    measured = {row["name"] for row in before if is_measured(row)}
    says = [row for row in taken if is_measured(row) or row["name"] not in measured
            or row.get("error", "cut off") != "cut off"]
    rows = merged(before, says, ("name",))
    return sorted(rows, key=lambda row: (plans.NAMES + [row["name"]]).index(row["name"]))


class Run:
    """The machine, the budget, and what is known so far."""

    def __init__(self, args, torch):
        self.pack, self.quick = args.pack, args.quick
        self.wanted, self.asked, self.keep_going = args.parts, args.trainings, args.keep_going
        self.shards = args.shards
        self.budget = Budget(args.budget, [item for item in SHARES if item[0] in args.parts])
        self.facts = machine.gpu_facts()
        self.folder = os.path.join(args.results, re.sub(r"[^A-Za-z0-9]+", "-", self.facts["gpu"]).lower())
        os.makedirs(self.folder, exist_ok=True)
        folders = [*machine.library_folders(torch), f"{self.pack}/lib"]
        self.environment = {**os.environ, "DTRAIN_PLUGIN_DIR": f"{self.pack}/lib",
                            "LD_LIBRARY_PATH": ":".join(folders), "PYTHONDONTWRITEBYTECODE": "1"}
        self.call = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
        with open(f"{self.pack}/pack.json", encoding="utf-8") as file:
            self.listed = json.load(file)
        self.taken = provenance.look(self.listed["commit"])
        provenance.say_marks(self.taken["marks"])
        self.parts = {}
        self.stopped = [row for row in self.earlier("stopped") if row["part"] not in self.wanted]

    def command(self, words, limit=None, characters=4000, variables=None):
        left = self.budget.left()
        return run_command(words, min(left, limit or left), {**self.environment, **(variables or {})},
                           characters)

    def earlier(self, part):
        """The results that an earlier call has left of this GPU with this driver, or []."""
        facts = summary.read(self.folder, part)
        return facts["results"] if facts and facts["driver"] == self.facts["driver"] else []

    def known(self, part):
        """This call's results, or those of an earlier one with the same programs; else None."""
        if part in self.parts:
            return self.parts[part]
        facts, commit = summary.read(self.folder, part), self.taken["commit"]
        # Nobody knows which programs those were where the tree was changed or there is no git.
        told = commit and not commit.endswith("-dirty")
        same = told and facts and facts.get("commit") == commit
        return self.earlier(part) or None if same else None

    def keep(self, part, facts):
        self.parts[part] = facts
        before = [row for row in self.earlier(part) if "name" in row] if part in plans.ALL else []
        kept = with_earlier(before, facts) if part in plans.ALL else facts
        write_json(f"{self.folder}/{part}.json",
                   {**self.facts, "part": part, **self.taken, "results": kept})

    def tests(self):
        results, tests = [], stops.in_order(self.listed["tests"])
        for i, test in enumerate(tests):
            left = self.budget.left()
            mine = max(left - TESTS_AFTER_S * (len(tests) - 1 - i), left / 2)
            limit = min(test["limit_s"], mine)

            def command(variables, program=f"{self.pack}/{test['program']}", limit=limit):
                return self.command([program], limit, characters=1_000_000, variables=variables)

            done = test_shards.run(command, self.shards)
            results.append({"name": test["name"], **done})
            print(f"  {test['name']}: {done['state']} ({done['s']:.1f} s)", flush=True)
            self.keep("tests", results)
        return results

    def short_run(self):
        def command(words, limit):  # All that is said: a warning may stand at the beginning.
            return self.command(words, limit, characters=1_000_000)

        return ShortRun(self.pack, command, self.budget.left,
                        lambda result: self.keep("short_run", result), self.known("short_run")).take()

    def json_of(self, words, limit=None):
        """The file that a benchmark wrote with --json, or its error and output."""
        path = f"{self.folder}/.part.json"
        if os.path.exists(path):  # A call that was killed has left it.
            os.remove(path)
        done = self.command([*words, "--json", path], limit)
        if done["code"] in (0, None) and os.path.exists(path):  # A benchmark that is cut off keeps its rows.
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

    def train(self, training, steps):
        if steps == 0:
            return plans.not_taken(training, self.budget.left())
        steps = 1 if self.quick else steps
        words = training.words(self.pack, self.folder, steps)
        return self.json_of(words, plans.PAST_PLAN * plans.seconds(training, steps))

    def train_all(self, part):
        """Each is kept when it is known, and what it left of its time goes to those after it."""
        card, host = machine.gigabytes(self.facts["memory"]), machine.host_gb()
        rows, waiting = [], []
        for training in plans.chosen(part, card, self.asked):
            if why := plans.does_not_fit(training, card, host):
                rows.append({**training.facts(), "skipped": why})
            else:
                waiting.append(training)
        self.keep(part, rows)
        while waiting:
            steps = plans.plan(waiting, self.budget.left())
            training = waiting.pop(0)
            result = self.train(training, steps.get(training.name, 0))
            rows.append({**training.facts(), "call": self.call,
                         **{key: self.taken[key] for key in ("date", "commit", "load_average", "marks")},
                         **result})
            self.keep(part, rows)
            said = result.get("skipped") or result.get("error") or \
                f"{result['tokens_per_s']:.0f} tokens/s"
            print(f"  {training.name}: {said}", flush=True)
        return rows

    def mfu(self):
        return self.train_all("mfu")

    def mfu_peers(self):
        return self.train_all("mfu_peers")

    def failures(self):
        """The names of dtrain's own parts that did not end well; peers may be absent."""
        failed = [test["name"] for test in self.parts.get("tests", [])
                  if test["state"] in ("failed", "cut off")]
        failed += (self.parts.get("short_run") or {}).get("problems", [])
        failed += [row["part"] for row in self.stopped if row["part"] in self.wanted]
        failed += ["kernels"] if "error" in self.parts.get("kernels", {}) else []
        failed += [run["backend"] for run in self.parts.get("comm", []) if "error" in run]
        return failed + [run["name"] for run in self.parts.get("mfu", []) if "error" in run]

    def is_stopped(self, part):
        """Says why a part is not started, where what is known of others does not let it."""
        found = {} if self.keep_going else stops.stopped(self.known("tests"), self.known("short_run"))
        if part not in found:
            return False
        self.stopped.append({"part": part, "why": found[part]})
        self.keep("stopped", self.stopped)
        print(f"{part}: not started: {found[part]}", flush=True)
        return True

    def run(self):
        self.keep("stopped", self.stopped)
        for part, _ in SHARES:
            if part in self.wanted and not self.is_stopped(part):
                self.budget.begin(part)
                print(f"{part}: up to {self.budget.left():.0f} s", flush=True)
                self.keep(part, getattr(self, part)())


def print_missing(results):
    for part in plans.ALL:
        for row in results.get(part) or []:
            if not is_measured(row):
                print(f"not measured: {row['name']}: {row.get('skipped') or row['error']}")


def finish(run):
    """The goals and the summary of all that is known of this GPU, by earlier calls too."""
    results = summary.results_of(run.folder)
    found = goals.judged(results)
    goals.print_measured(found)
    print_missing(results)
    run.keep("goals", found)
    print(summary.write_summary(run.folder))


def cannot_run(pack):
    """(why nothing can be measured here or None, LibTorch's folder)."""
    if why := machine.no_gpu_here() or programs.unpack(pack) or machine.needs_newer_glibc(pack):
        return f"no GPU can be used here: {why}; GPU figures: {summary.NOT_YET}", None
    with open(f"{pack}/pack.json", encoding="utf-8") as file:
        packed = json.load(file).get("torch")
    torch, found, whose = machine.torch_here()
    return machine.wrong_torch(packed, torch, found, whose), torch


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--results", default="", help="default: bench/results of the pack or checkout")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds in all")
    parser.add_argument("--parts", nargs="+", choices=[part for part, _ in SHARES],
                        help="default: all; with --trainings those that have them")
    parser.add_argument("--trainings", nargs="+", choices=plans.NAMES, metavar="NAME", default=[],
                        help="only these of dtrain's trainings and torch's: " + ", ".join(plans.NAMES))
    parser.add_argument("--keep-going", action="store_true",
                        help="trainings too where tests or the short run found a fault")
    parser.add_argument("--quick", action="store_true", help="few rounds: whether everything runs")
    parser.add_argument("--shards", type=int, default=test_shards.shards_here(),
                        help="processes of a test program beside each other (default: %(default)s here)")
    args = parser.parse_args(words)
    args.results = args.results or os.path.join(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench", "results")
    holding = [part for part, of_part in plans.ALL.items()
               if any(training.name in args.trainings for training in of_part)]
    args.parts = args.parts or holding or [part for part, _ in SHARES]
    return args


def main():
    args = parse(sys.argv[1:])
    why, torch = cannot_run(args.pack)
    if why:
        print(f"gpu run: {why}", file=sys.stderr)
        return EXIT_USAGE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run = Run(args, torch)
    try:
        run.run()
    finally:
        finish(run)
    return 1 if run.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
