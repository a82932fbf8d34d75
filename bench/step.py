"""./dev bench step: training steps of dtrain beside torch eager and torch.compile, interleaved.

Speed: two models on 1 and 2 ranks. A round runs each program once on the same configuration and
batches, in an order that turns with the round; a ratio is of one round, tables and goals show
medians. f, the GEMM and attention share of eager's step, and what of dtrain's step is neither are
profiled in the same run. Start: seconds to the first forward and private memory of the ranks
(RssAnon + own shared memory), seen from outside; measured apart, since watching a job slows it.
torch's wheel of PyPI brings CUDA's libraries, and its twin maps them. Where --cpu-python has torch's
wheel for CPUs, a twin that maps none runs in the same rounds, and the goals are set against that.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

from jobs import GPT_100M, QUIET, first_forward, is_rank, launch_command, records, run_job, series
from peers import is_rank_of, read_facts, steps_of, twin_command, twin_environment
from report import begin, measure_parts
from rounds import back_and_forth, rotated, spread, spread_text
from runner import run
from step_trace import shares_of_trace

WARM_UP_STEPS = 3
MODELS = {"5M": (), "100M": GPT_100M}
WAYS = ("dtrain", "eager", "compile")
# The keys that tell the rows of a part of the results file from each other.
PARTS = {"speed": ("model", "ranks"), "start": ("name",), "bookkeeping": ("tensors",)}
OVER_EAGER, OF_POSSIBLE, OVER_COMPILE, OUTSIDE = 1.25, 0.92, 1.0, 0.10
START_GOALS = (("first_forward_s", "first_forward_vs_torchrun", 1 / 6),
               ("memory_before", "memory_before_first_batch_vs_ddp", 0.4),
               ("memory_peak", "memory_peak_vs_ddp", 0.9))
CPU_PYTHON = ".deps/python-cpu/bin/python"
HOW_TO_GET = ("python3 -m venv .deps/python-cpu && .deps/python-cpu/bin/pip install numpy "
              "torch=={} --index-url https://download.pytorch.org/whl/cpu")


class Job:
    """One way to train one model on a number of ranks."""

    def __init__(self, args, way, model, ranks, steps, python=sys.executable):
        self.args, self.way, self.ranks, self.python = args, way, ranks, python
        self.sets = [*QUIET, *MODELS[model], f"train_steps={steps}"]

    def run(self, folder, profile=False, watched=False):
        """{"steps": tokens/s of each, "first_forward_s", memory...}; with `profile` also shares."""
        if self.way == "dtrain":
            return self.run_dtrain(folder, profile, watched)
        facts_path = os.path.join(folder, "facts.jsonl")
        extra = (["--compile"] if self.way == "compile" else []) + (["--profile"] if profile else [])
        command = twin_command("ddp", self.args.config, facts_path, self.sets, extra, self.ranks,
                               self.python)
        start, watch = run_job(command, twin_environment(self.ranks),
                               is_rank_of("ddp") if watched else None)
        lines = read_facts(facts_path)
        first = next(line["ts"] for line in lines if line["kind"] == "first_forward")
        result = self.result(start, first, steps_of(lines, "tokens_per_s"), watch)
        libraries = next(line for line in lines if line["kind"] == "libraries")
        result.update(cuda_libraries=libraries["cuda"], torch=libraries["torch"])
        if profile:
            result["f"] = next(line["gemm_attention_share"] for line in lines
                               if line["kind"] == "profile")
        return result

    def run_dtrain(self, folder, profile, watched):
        run_dir = os.path.join(folder, "run")
        steps = int(self.sets[-1].split("=")[1])
        sets = [*self.sets, *([f"metrics.trace_first_step={steps}", "metrics.trace_steps=1"]
                              if profile else [])]
        start, watch = run_job(launch_command(self.args, run_dir, self.args.config, sets, self.ranks),
                               os.environ, is_rank if watched else None)
        lines = records(run_dir)
        speeds = [value for _, value in series(lines, "perf/tokens_per_s")]
        result = self.result(start, first_forward(lines), speeds, watch)
        if profile:
            result["trace"] = shares_of_trace(f"{run_dir}/trace/rank-0.json")
        return result

    @staticmethod
    def result(start, first, speeds, watch):
        result = {"steps": speeds, "first_forward_s": first - start,
                  "tokens_per_s": statistics.median(speeds[WARM_UP_STEPS:])}
        if watch:
            result.update(memory_before=watch.before(first), memory_peak=watch.peak(first))
        return result


def in_folder(job, **how):
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-", ignore_cleanup_errors=True) as folder:
        return job.run(folder, **how)


def measure_speed(args, model, ranks):
    """The rounds of one model on `ranks` ranks, and both profiles."""
    jobs = {way: Job(args, way, model, ranks, args.steps) for way in args.ways}
    rounds = []
    for i in range(args.rounds):
        taken = {way: in_folder(jobs[way])["tokens_per_s"] for way in rotated(args.ways, i)}
        rounds.append(taken)
        print(f"{model}, {ranks} rank{'s' if ranks > 1 else ''}, round {i + 1}/{args.rounds}: "
              + ", ".join(f"{way} {taken[way]:,.0f}" for way in args.ways)
              + f" tokens/s; load {os.getloadavg()[0]:.1f}", flush=True)
    # A profile shows one step, which a busy host may have slowed down, so the middle profile counts.
    traces = sorted((in_folder(jobs["dtrain"], profile=True)["trace"] for _ in range(args.profiles)),
                    key=lambda trace: trace["outside"])
    result = {"model": model, "ranks": ranks, "steps": args.steps, "rounds": rounds,
              "trace": traces[len(traces) // 2], "outside": [trace["outside"] for trace in traces]}
    if "eager" in jobs:
        result["f"] = statistics.median(in_folder(jobs["eager"], profile=True)["f"]
                                        for _ in range(args.profiles))
    for peer in args.ways[1:]:
        result[f"over_{peer}"] = spread([r["dtrain"] / r[peer] for r in rounds])
    return result


def speed_goals(result):
    name = f"step.{result['model']}.{result['ranks']}"
    goals = []
    if "over_eager" in result:
        # An engine with eager's own products cannot be much faster, but must never be slower.
        target = max(1.0, min(OVER_EAGER, OF_POSSIBLE / result["f"]))
        goals.append((f"{name}.vs_eager", result["over_eager"]["median"], ">=", target))
    if "over_compile" in result:
        goals.append((f"{name}.vs_compile", result["over_compile"]["median"], ">=", OVER_COMPILE))
    goals.append((f"{name}.outside_gemm_attention", result["trace"]["outside"], "<=", OUTSIDE))
    return goals


def print_speed(result):
    print(f"\n{result['model']}, {result['ranks']} rank{'s' if result['ranks'] > 1 else ''}")
    for way in result["rounds"][0]:
        over = result.get(f"over_{way}")
        ratio = f"  dtrain is {spread_text(over)} of it" if over else ""
        print(f"  {way:10}{statistics.median(r[way] for r in result['rounds']):10,.0f} tokens/s{ratio}")
    if "f" in result:
        print(f"  f, GEMM + attention share of eager's step: {result['f']:.3f}; no engine can beat "
              f"1/f = {1 / result['f']:.2f}")
    trace = result["trace"]
    print(f"  dtrain's step: GEMM + attention {trace['gemm_attention']:.3f}, outside "
          f"{trace['outside']:.3f}, of it waiting for peers {trace['wait']:.3f}; most of the rest: "
          + ", ".join(f"{name} {share:.3f}" for name, share in trace["most"]))


def start_jobs(args):
    """{way: its job}; "eager-cpu" where there is a torch without CUDA."""
    steps = WARM_UP_STEPS + 3
    jobs = {way: Job(args, way, "5M", 2, steps) for way in ("dtrain", "eager")}
    if os.path.exists(args.cpu_python):
        jobs["eager-cpu"] = Job(args, "eager", "5M", 2, steps, args.cpu_python)
    else:
        print(f"no twin without CUDA's libraries: {args.cpu_python} is not there. To have it: "
              + HOW_TO_GET.format(torch_version()))
    return jobs


def torch_version():
    import importlib.metadata
    return importlib.metadata.version("torch")


def start_row(key, rounds):
    """One figure of measure_start's rounds, in seconds or MB."""
    scale = 1e-6 if key.startswith("memory") else 1

    def values(way):
        return [r[way][key] * scale for r in rounds]

    ours = values("dtrain")
    row = {"name": key, "rounds": len(rounds), "dtrain": statistics.median(ours)}
    for way, peer, ratio in (("eager", "ddp", "ratio"), ("eager-cpu", "ddp_cpu", "ratio_cpu")):
        if way in rounds[0]:
            row[peer] = statistics.median(values(way))
            row[ratio] = statistics.median(a / b for a, b in zip(ours, values(way)))
            row.update({f"{peer}_{fact}": rounds[0][way][fact] for fact in ("cuda_libraries", "torch")})
    return row


def measure_start(args):
    """Medians for the 5M model on 2 ranks, with ratios of rounds."""
    jobs = start_jobs(args)
    rounds = []
    for i in range(args.rounds):
        rounds.append({way: in_folder(jobs[way], watched=True) for way in back_and_forth(jobs, i)})
    rows = [start_row(key, rounds) for key, _, _ in START_GOALS]
    print(f"\n{'s, MB':22}{'dtrain':>12}{'torchrun+DDP':>14}{'ratio':>8}{'without CUDA':>14}{'ratio':>8}")
    for row in rows:
        cells = [row[key] for key in ("dtrain", "ddp", "ratio", "ddp_cpu", "ratio_cpu") if key in row]
        print(f"{row['name']:22}" + "".join(f"{cell:{width},.{digits}f}" for cell, width, digits in zip(
            cells, (12, 14, 8, 14, 8), (2, 2, 3, 2, 3))))
    print(f"torchrun+DDP maps {rows[0]['ddp_cuda_libraries']} of CUDA's libraries, which its wheel brings")
    return rows


def start_goals(rows):
    """Goals against the twin without CUDA's libraries, if that was measured."""
    row_of = {row["name"]: row for row in rows}
    return [(f"step.{name}" + ("_without_cuda" if "ratio_cpu" in row_of[key] else ""),
             row_of[key].get("ratio_cpu", row_of[key]["ratio"]), "<=", target)
            for key, name, target in START_GOALS]


def measure_bookkeeping(args):
    said = run([f"{args.bin}/bench_bookkeeping", "--json", "-"])
    rows = json.loads(said.splitlines()[-1])  # The job's own greeting comes before it.
    for row in rows:
        print(f"bookkeeping with {row['tensors']} parameter tensors: {row['us_per_tensor']:.3f} us "
              "each")
    return rows


def bookkeeping_goals(rows):
    return [(f"step.bookkeeping_us_per_tensor_{row['tensors']}", row["us_per_tensor"], "<=", 1.0)
            for row in rows]


def all_goals(results):
    """The goals of a results file."""
    goals = [goal for row in results.get("speed", []) for goal in speed_goals(row)]
    if "start" in results:
        goals += start_goals(results["start"])
    return goals + bookkeeping_goals(results.get("bookkeeping", []))


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--config", default="examples/configs/gpt.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--profiles", type=int, default=3, help="profiled runs; the middle one counts")
    parser.add_argument("--quick", action="store_true", help="1 round of 6 steps")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], choices=[1, 2])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--cpu-python", default=CPU_PYTHON, metavar="PYTHON",
                        help="one with torch's wheel for CPUs, for a twin that maps nothing of CUDA's")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.steps, args.profiles = 1, 6, 1
    if args.steps <= WARM_UP_STEPS:
        parser.error(f"--steps {args.steps}: allowed: more than the {WARM_UP_STEPS} of warm-up")
    args.ways = ["dtrain", *[way for way in WAYS if way in args.ways and way != "dtrain"]]
    return args


def measure_speeds(args):
    rows = [measure_speed(args, model, ranks) for model in args.models for ranks in args.ranks]
    for row in rows:
        print_speed(row)
    return rows


def main():
    args = parse()
    args.json = begin("step", args.json)
    measure = {"speed": measure_speeds, "start": measure_start, "bookkeeping": measure_bookkeeping}
    measure_parts(args.json, "step", PARTS, {part: lambda part=part: measure[part](args) for part in PARTS
                                             if part in args.parts}, all_goals)


if __name__ == "__main__":
    main()
