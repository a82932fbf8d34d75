"""./dev bench train: the main job of `./dev train`, and how fast a lost rank ends a job.

The default training runs as a newcomer starts it, until 3 minutes after its first forward pass; its
validation losses are read from its metrics. Then one of two ranks is killed with SIGKILL, several
times, and the time until `dtrain launch` has named it and ended is taken.
"""
import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from jobs import first_forward, launch_command, rank_pids, records, series
from report import begin, print_goals, write_results

TRAINING_S = 180


def default_training(args, folder):
    """[(seconds since the first forward, step, validation loss)]"""
    run_dir = f"{folder}/train"
    with open(f"{folder}/train.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(launch_command(args, run_dir, args.config), stdout=log,
                                   stderr=subprocess.STDOUT)
        while process.poll() is None:
            begin = first_forward(records(run_dir))
            if begin is not None and time.time() > begin + TRAINING_S + 1:
                process.terminate()
                process.wait(60)
            time.sleep(0.5)
    lines = records(run_dir)
    begin = first_forward(lines)
    if begin is None:
        with open(f"{folder}/train.log", encoding="utf-8") as log:
            sys.exit(f"bench: the training did not start:\n{log.read()[-3000:]}")
    return [(line["ts"] - begin, line["step"], loss) for line, loss in series(lines, "eval/loss")]


def seconds_from_kill_to_end(args, run_dir):
    process = subprocess.Popen(
        launch_command(args, run_dir, args.config, ["eval_interval=0", "checkpoint.interval=0"]),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not any(line["kind"] == "step" for line in records(run_dir)):
        if process.poll() is not None:
            sys.exit(f"bench: the job to be killed did not start:\n{process.stdout.read()}")
        time.sleep(0.05)
    victim = rank_pids(process.pid)[-1]
    start = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    seconds = time.monotonic() - start
    if process.returncode != 137 or str(victim) not in output:
        sys.exit(f"bench: exit {process.returncode} after SIGKILL of {victim}:\n{output[-3000:]}")
    return seconds


def all_goals(results):
    """The goals of a results file."""
    best = min((loss for seconds, _, loss in results["losses"] if seconds <= TRAINING_S),
               default=float("inf"))
    return [("train.validation_loss_within_3_minutes", best, "<=", 2.4),
            ("train.slowest_kill_to_exit_s", max(results["kills_s"]), "<=", 1.0)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--config", default="examples/configs/gpt.json")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    args.json = begin("train", args.json)
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        losses = default_training(args, folder)
        for seconds, step, loss in losses:
            print(f"{seconds:7.1f} s  step {step:5}  validation loss {loss:.3f} nats a byte", flush=True)
        kills = [seconds_from_kill_to_end(args, f"{folder}/kill-{i}") for i in range(args.kills)]
    print("SIGKILL of a rank to the end of dtrain launch: " +
          ", ".join(f"{seconds * 1e3:.0f}" for seconds in kills) + " ms")
    facts = {"losses": losses, "kills_s": kills, "kill_median_s": statistics.median(kills)}
    write_results(args.json, "train", **facts, goals=print_goals(all_goals(facts)))


if __name__ == "__main__":
    main()
