"""./dev bench step: the default GPT, 2 ranks, dtrain beside torchrun + DDP, interleaved in one run.

Each round starts both programs on the same configuration and batches (order reversed every second
round) and takes: tokens/s (median over steps), seconds from the command to the start of the first
forward, private memory of the ranks (RssAnon + own shared memory) before the first batch and at the
peak of the steps, seen from outside through /proc.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from jobs import MemoryWatch, first_forward, is_rank, launch_command, records, series
from peers import is_rank_of, read_facts, steps_of, twin_command, twin_environment
from report import print_goals, write_results


def run(command, of_rank, facts_of, env):
    """One job; what it took."""
    with tempfile.TemporaryFile() as log:
        start = time.time()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        watch = MemoryWatch(process, of_rank)
        watch.start()
        code = process.wait()
        watch.join()
        if code != 0:
            log.seek(0)
            sys.exit(f"bench: {' '.join(command)} ended with {code}:\n{log.read().decode()[-3000:]}")
    first, steps, share = facts_of()
    return {
        "first_forward_s": first - start,
        "tokens_per_s": statistics.median(steps[3:]),
        "memory_before": watch.before(first),
        "memory_peak": watch.peak(first),
        "gemm_attention_share": share,
    }


def dtrain_round(args, folder):
    run_dir = os.path.join(folder, "run")

    def facts():
        lines = records(run_dir)
        steps = [value for _, value in series(lines, "perf/tokens_per_s")]
        return first_forward(lines), steps, None

    return run(launch_command(args, run_dir, args.config, sets(args)), is_rank, facts, os.environ)


def ddp_round(args, folder, profile):
    facts_path = os.path.join(folder, "facts.jsonl")

    def facts():
        lines = read_facts(facts_path)
        first = next(l["ts"] for l in lines if l["kind"] == "first_forward")
        share = [l["gemm_attention_share"] for l in lines if l["kind"] == "profile"]
        return first, steps_of(lines, "tokens_per_s"), share[0] if share else None

    command = twin_command("ddp", args.config, facts_path, sets(args),
                           ["--profile"] if profile else [])
    return run(command, is_rank_of("ddp"), facts, twin_environment())


def sets(args):
    return [f"train_steps={args.steps}", "eval_interval=0", "checkpoint.interval=0",
            "sample={\"bytes\":0}"]


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--config", default="examples/configs/gpt.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    ours, peer = [], []
    f = None
    for i in range(args.rounds):
        folder = tempfile.mkdtemp(prefix="dtrain-bench-")
        try:
            pair = [lambda: ours.append(dtrain_round(args, folder)),
                    lambda: peer.append(ddp_round(args, folder, profile=False))]
            for job in pair if i % 2 == 0 else reversed(pair):
                job()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"round {i + 1}/{args.rounds}: dtrain {ours[-1]['tokens_per_s']:,.0f} tok/s, "
              f"DDP {peer[-1]['tokens_per_s']:,.0f} tok/s", flush=True)
    folder = tempfile.mkdtemp(prefix="dtrain-bench-")
    f = ddp_round(args, folder, profile=True)["gemm_attention_share"]
    shutil.rmtree(folder, ignore_errors=True)
    bookkeeping = json.loads(subprocess.run([f"{args.bin}/bench_bookkeeping", "--json", "-"], check=True,
                                            capture_output=True, text=True).stdout)

    rows = []
    print(f"\n{'':34}{'dtrain':>12}{'torchrun+DDP':>14}{'ratio':>8}")
    for key, unit, scale in (("tokens_per_s", "tokens/s", 1), ("first_forward_s", "s to first forward", 1),
                             ("memory_before", "MB before the first batch", 1e-6),
                             ("memory_peak", "MB at the peak of a step", 1e-6)):
        a, b = median(ours, key) * scale, median(peer, key) * scale
        ratios = sorted(o[key] / p[key] for o, p in zip(ours, peer))
        ratio = statistics.median(ratios)
        rows.append({"name": key, "dtrain": a, "ddp": b, "ratio": ratio, "ratio_min": ratios[0],
                     "ratio_max": ratios[-1]})
        print(f"{unit:34}{a:12,.2f}{b:14,.2f}{ratio:8.3f}")
    print(f"f, GEMM + attention share of the eager step: {f:.3f}; no engine can beat 1/f = {1 / f:.2f}")
    for row in bookkeeping:
        print(f"bookkeeping with {row['tensors']} parameter tensors: {row['us_per_tensor']:.3f} us each")

    ratio = {row["name"]: row["ratio"] for row in rows}
    goals = [
        ("step.tokens_per_s_vs_ddp", ratio["tokens_per_s"], ">=", 1.05),
        ("step.first_forward_vs_torchrun", ratio["first_forward_s"], "<=", 1 / 6),
        ("step.memory_before_first_batch_vs_ddp", ratio["memory_before"], "<=", 0.4),
        ("step.memory_peak_vs_ddp", ratio["memory_peak"], "<=", 0.9),
    ]
    goals += [(f"step.bookkeeping_us_per_tensor_{row['tensors']}", row["us_per_tensor"], "<=", 1.0)
              for row in bookkeeping]
    write_results(args.json, "step", rounds=args.rounds, rows=rows, f=f, bookkeeping=bookkeeping,
                  goals=print_goals(goals))


if __name__ == "__main__":
    main()
