"""Bytes of model states on a rank, seen from outside, beside what `dtrain plan` says.

A model and one with half its layers are trained on a few tokens and the difference of their peaks
is taken, so that all that both have drops out: the process, LibTorch, the transport, buckets, live
weights. glibc's allocator is told to
give blocks back at once, as in tests/equivalence/memory_plan_test.py.
"""
import os
import sys
import tempfile

from jobs import QUIET, is_rank, launch_command, records, run_job
from runner import run, set_words
from zero_ways import tight_sets

STATES = ("weights", "gradients", "masters", "moments")
UNITS = {"MB": 1e6, "GB": 1e9}
# Each layer's activations are computed again, so that all but its input drops out too.
FEW_TOKENS = ["train_batch_size=2", "train_micro_batch_size_per_gpu=1", "data.sequence_length=2",
              "activation_checkpointing.mode=full"]
# Small weights that stay whole at stage 3 are live weights, which a plan counts apart.
ALL_SHARED = ["zero_optimization.stage3_param_persistence_threshold=0"]
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def sets_of(model, stage, layers):
    return [*QUIET, *model.sets, *FEW_TOKENS, *tight_sets(model), *ALL_SHARED,
            f"train_steps={model.watched_steps}", f"zero_optimization.stage={stage}",
            f"model.num_hidden_layers={layers}"]


def planned(args, model, stage, layers):
    text = run([f"{args.bin}/dtrain", "plan", args.config, "--world-size", "2",
                *set_words(sets_of(model, stage, layers))])
    total = 0.0
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in STATES:
            total += float(words[1]) * UNITS[words[2]]
    return total


def measured(args, model, stage, layers):
    """The biggest rank's peak from the second step on: construction is not a state."""
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        run_dir = os.path.join(folder, "run")
        _, watch = run_job(launch_command(args, run_dir, args.config, sets_of(model, stage, layers)),
                           {**os.environ, **GIVE_BACK}, is_rank)
        steps = [record["ts"] for record in records(run_dir) if record["kind"] == "step"]
    seen = [size for at, size in watch.samples if steps[0] <= at <= steps[-1]]
    if not seen:
        sys.exit("bench: the steps were over before the ranks' memory was looked at: more "
                 "watched_steps in zero_stages/zero_ways.py")
    return max(seen)


def states(args, model, stage):
    """{measured, planned} bytes of half the layers' states."""
    half = model.layers // 2
    return {
        "stage": stage,
        "measured": measured(args, model, stage, model.layers) - measured(args, model, stage, half),
        "planned": planned(args, model, stage, model.layers) - planned(args, model, stage, half),
    }
