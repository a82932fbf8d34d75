"""./dev bench compression: what compressed gradients save on the wire and cost in loss.

Trains a small GPT on 2 ranks over TCP once with each policy, same seed and batches, and compares
bytes that a rank sends for gradients in a step (from its flight record, so of the calls that were
really made) and the mean loss of the last steps with those of fp32 gradients; then the losses on the way.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from jobs import launch_command, rank_pids, records, series
from report import begin, write_results
from runner import run

RANKS = 2
LAST_STEPS = 20
CURVE_EVERY = 50
CONFIG = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 8,
    "seed": 3,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupCosineLR",
                  "params": {"warmup_num_steps": 20, "total_num_steps": 0, "warmup_type": "linear",
                             "warmup_min_ratio": 0.1, "cos_min_ratio": 0.1}},
    "data": {"sequence_length": 64},
    "eval_interval": 0,
    "checkpoint": {"interval": 0},
    "comm": {"timeout_s": 300, "transport": "tcp"},
    "metrics": {"tensorboard": False},
    "model": {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3,
              "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64},
    "sample": {"bytes": 0},
}
COMPRESSED = {"start_step": 20, "min_elements": 0}
POLICIES = {
    "fp32": {},
    "bf16": {"wire_dtype": "bf16"},
    "fp16": {"wire_dtype": "fp16"},
    "int8": {"compression": {"type": "int8", **COMPRESSED}},
    "int8, no feedback": {"compression": {"type": "int8", "error_feedback": False, **COMPRESSED}},
    "powersgd 4": {"compression": {"type": "powersgd", "rank": 4, **COMPRESSED}},
    "powersgd 4, no feedback": {"compression": {"type": "powersgd", "rank": 4,
                                                "error_feedback": False, **COMPRESSED}},
    "powersgd 1": {"compression": {"type": "powersgd", "rank": 1, **COMPRESSED}},
    "powersgd 1, no feedback": {"compression": {"type": "powersgd", "rank": 1,
                                                "error_feedback": False, **COMPRESSED}},
}


def losses_of(run_dir):
    return {line["step"]: loss for line, loss in series(records(run_dir), "train/loss")}


def sent_by_call(entry):
    """Bytes that a rank sends: to the reducer of each slice and back, or once."""
    own = entry["dtrain"]
    share = (RANKS - 1) / RANKS
    if own["kind"] == "all_reduce":
        return 2 * share * own["bytes"] * (0.5 if own["wire"] else 1)
    return share * own["bytes"]


def bytes_a_step(run_dir):
    with open(f"{run_dir}/flight/rank-0.json", encoding="utf-8") as file:
        entries = json.load(file)["entries"]
    sums = {}
    for entry in entries:
        if "bucket" in entry["dtrain"]["name"] and entry["state"] == "completed":
            step = entry["dtrain"]["step"]
            sums[step] = sums.get(step, 0) + sent_by_call(entry)
    whole = sorted(sums)[1:-1]  # The first and the last may be cut off.
    return statistics.median(sums[step] for step in whole)


def train(args, folder, name, comm):
    run_dir = f"{folder}/{name.replace(' ', '-').replace(',', '')}"
    config = json.loads(json.dumps(CONFIG))
    config["comm"].update(comm)
    config["train_steps"] = args.steps
    config["scheduler"]["params"]["total_num_steps"] = args.steps
    config["data"]["train"] = [f"{folder}/data/train.bin"]
    config["data"]["validation"] = [f"{folder}/data/val.bin"]
    path = f"{run_dir}.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    process = subprocess.Popen(launch_command(args, run_dir, path, ranks=RANKS),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               stdin=subprocess.DEVNULL)
    asked = False
    while process.poll() is None:
        if not asked and max(losses_of(run_dir), default=0) > args.steps * 3 // 4:
            for pid in rank_pids(process.pid):
                os.kill(pid, signal.SIGUSR2)
            asked = True
        time.sleep(0.2)
    output = process.stdout.read()
    if process.returncode != 0:
        sys.exit(f"{name} ended with {process.returncode}:\n{output}")
    losses = losses_of(run_dir)
    last = [losses[step] for step in sorted(losses)[-LAST_STEPS:]]
    return {"policy": name, "bytes_a_step": bytes_a_step(run_dir), "loss": statistics.mean(last),
            "losses": losses}


def curve_lines(rows):
    """The losses of every CURVE_EVERY-th step, a line for each policy."""
    steps = [step for step in sorted(rows[0]["losses"]) if step % CURVE_EVERY == 0]
    return [f"{'loss at step':26}" + "".join(f"{step:9}" for step in steps),
            *(f"{row['policy']:26}" + "".join(f"{row['losses'].get(step, float('nan')):9.4f}"
                                              for step in steps) for row in rows)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--corpus", nargs="+", default=["base", "comm", "runtime"])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    args.json = begin("compression", args.json)
    rows = []
    with tempfile.TemporaryDirectory(prefix="dtrain-compression-", ignore_cleanup_errors=True) as folder:
        run([f"{args.bin}/dtrain", "data", "prepare", "--out", f"{folder}/data", *args.corpus])
        print(f"{'policy':26}{'bytes a step':>14}{'of fp32':>9}{'loss':>9}{'against fp32':>14}")
        for name in args.policies:
            rows.append(train(args, folder, name, POLICIES[name]))
            row = rows[-1]
            row["bytes_ratio"] = row["bytes_a_step"] / rows[0]["bytes_a_step"]
            row["loss_difference"] = row["loss"] - rows[0]["loss"]
            print(f"{name:26}{row['bytes_a_step']:14,.0f}{row['bytes_ratio']:9.3f}{row['loss']:9.4f}"
                  f"{row['loss_difference']:+14.4f}", flush=True)
    print("", *curve_lines(rows), sep="\n")
    write_results(args.json, "compression", steps=args.steps, ranks=RANKS, rows=rows)


if __name__ == "__main__":
    main()
