"""The jobs of ./dev bench zero: models and ways to train them, each with its speed."""
import dataclasses
import os
import statistics
import tempfile

from jobs import GPT_100M, QUIET, launch_command, records, series
from peers import read_facts, steps_of, twin_command, twin_environment
from runner import run

WARM_UP_STEPS = 3
JOB_TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Model:
    """The configuration's GPT with some values changed."""

    name: str
    layers: int
    layer_parameters: int
    steps: int
    watched_steps: int  # Enough for many looks at the memory.
    sets: tuple = ()


def gpt_layer(hidden, intermediate):
    """Four projections of attention, three of the MLP, two norms."""
    return 4 * hidden * hidden + 3 * hidden * intermediate + 2 * hidden


MODELS = {
    "5M": Model("5M", 6, gpt_layer(256, 704), steps=12, watched_steps=150),
    # One short sequence a rank, because this model is for the states and not for activations.
    "100M": Model("100M", 14, gpt_layer(768, 2048), steps=8, watched_steps=6,
                  sets=(*GPT_100M, "data.sequence_length=128")),
}


@dataclasses.dataclass(frozen=True)
class Way:
    """One program at one stage; `peer` empty: dtrain."""

    peer: str
    stage: int
    tight: bool = False  # Stage 3 with one layer's weights live, not as many as the default allows.

    @property
    def name(self):
        if self.peer == "ddp":
            return self.peer
        return f"{self.peer or 'dtrain'}-{self.stage}{'-tight' if self.tight else ''}"

    def sets(self, model):
        values = [f"zero_optimization.stage={self.stage}"]
        if self.tight:
            values += tight_sets(model)
        return values


def tight_sets(model):
    """Settings that keep few weights live, as many for a model with fewer layers."""
    return [f"zero_optimization.stage3_max_live_parameters={model.layer_parameters}",
            f"zero_optimization.stage3_prefetch_bucket_size={model.layer_parameters // 4}",
            f"zero_optimization.reduce_bucket_size={model.layer_parameters // 4}"]


def ways_of(stages):
    """The ways of these stages. Stage 0 is always there, because the others are compared with it."""
    ways = [Way("", 0), Way("ddp", 0)]
    for stage in sorted(set(stages) - {0}):
        ways += [Way("", stage), Way("deepspeed", stage)]
        if stage >= 2:  # FSDP2 has no stage 1.
            ways.append(Way("fsdp2", stage))
    if 3 in stages:
        ways.append(Way("", 3, tight=True))
    return ways


def tokens_per_s(args, model, way):
    """Median over the steps after the first ones."""
    steps = args.steps or model.steps
    sets = [*QUIET, *model.sets, *way.sets(model), f"train_steps={steps}"]
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        if way.peer:
            facts = os.path.join(folder, "facts.jsonl")
            run(twin_command(way.peer, args.config, facts, sets), twin_environment(), JOB_TIMEOUT_S)
            speeds = steps_of(read_facts(facts), "tokens_per_s")
        else:
            run_dir = os.path.join(folder, "run")
            run(launch_command(args, run_dir, args.config, sets), timeout_s=JOB_TIMEOUT_S)
            speeds = [value for _, value in series(records(run_dir), "perf/tokens_per_s")]
    return statistics.median(speeds[WARM_UP_STEPS:])
