"""The jobs of dtrain in ./dev bench checkpoint: trainings that save, and starts that only restore."""
import dataclasses
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile

from checkpoint_disk import FirstLook, bytes_of, drop_cache, read_s
from checkpoint_memory import PeakWatch, back_free_memory
from jobs import QUIET, launch_command, records
from rounds import rotated
from runner import fail, run

EVERY = 10  # Steps from one save to the next.
RANKS = 2
JOB_TIMEOUT_S = 1800
QUIET = [value for value in QUIET if not value.startswith("checkpoint.")]
POLL_S = 0.005
STATES = 3  # A restore has its checkpoints in memory, as pages of files and as states, and little else.


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to train; `step_of_none`: the longest step that it may have, of one without saves."""

    name: str
    sets: tuple
    step_of_none: float | None = None
    journals: bool = False


# The first saves nothing. Another way, such as one with other checkpoint.* keys, is one line more.
WAYS = (
    Way("dtrain", ("checkpoint.interval=0",)),
    Way("dtrain-sync", (f"checkpoint.interval={EVERY}", "checkpoint.async=false")),
    Way("dtrain-async", (f"checkpoint.interval={EVERY}", "checkpoint.async=true"), step_of_none=1.01),
    Way("dtrain-journal", ("checkpoint.interval=0", "checkpoint.journal=async"), step_of_none=1.01, journals=True),
)


def periods_of(ends):
    """Seconds of each EVERY steps, of `ends`, {step: when it ended}, after the first EVERY."""
    last = max(ends, default=0) // EVERY
    return [ends[EVERY * (k + 1)] - ends[EVERY * k] for k in range(1, last)]


def step_s(ends):
    return statistics.median(periods_of(ends)) / EVERY


def saves_of(run_dir, ranks):
    """[{"step", "blocked_s" of the slowest rank, "durable_s", "bytes"}], without the one at the end of
    the run, and how many were skipped."""
    saves, skipped = {}, 0
    for rank in range(ranks):
        for line in records(run_dir, rank):
            if line["kind"] != "ckpt" or "restored" in line:
                continue
            if line.get("skipped"):
                skipped += rank == 0
                continue
            if not line.get("durable"):
                sys.exit(f"bench: the save of step {line['step']} failed: {line.get('error')}")
            save = saves.setdefault(line["step"], {"step": line["step"], "blocked_s": 0.0,
                                                   "durable_s": 0.0, "bytes": line["m"]["ckpt/bytes"]})
            save["blocked_s"] = max(save["blocked_s"], line["m"]["time/checkpoint_s"])
            save["durable_s"] = max(save["durable_s"], line["m"]["ckpt/seconds"])
    ordered = [saves[step] for step in sorted(saves)]
    return ordered[:-1], skipped


def elements_of(run_dir):
    """The elements of the model that the run's newest checkpoint holds."""
    newest = max(glob.glob(f"{run_dir}/checkpoints/step-*/MANIFEST.json"))
    with open(newest, encoding="utf-8") as file:
        return json.load(file)["engine"]["total_elements"]


def journal_of(run_dir, ranks):
    """What the ranks journalled: {"bytes" of a step, "bytes_per_parameter", "blocked_s" and "write_s" of a
    step of the slowest rank}. Ends the run where a journal has switched itself off."""
    total, steps, blocked, written = 0, 0, [], []
    for rank in range(ranks):
        lines = [line for line in records(run_dir, rank) if line.get("name") in ("journal", "journal_off")]
        off = [line["why"] for line in lines if line["name"] == "journal_off"]
        if off:
            sys.exit(f"bench: the journal of rank {rank} has switched itself off: {off[0]}")
        steps = sum(line["steps"] for line in lines)
        if steps == 0:
            sys.exit(f"bench: rank {rank} has journalled no step")
        total += sum(line["m"]["journal/bytes"] for line in lines) / steps
        blocked.append(sum(line["m"]["time/journal_s"] for line in lines) / steps)
        written.append(sum(line["m"]["journal/seconds"] for line in lines) / steps)
    return {"bytes": total, "bytes_per_parameter": total / elements_of(run_dir), "blocked_s": max(blocked),
            "write_s": max(written)}


def train(args, model_sets, way):
    """A training of one way: {"step_s", "saves", "skipped", "compute_s"}, and "journal" where it has one."""
    sets = [*QUIET, *model_sets, *way.sets, f"train_steps={EVERY * (args.periods + 1)}"]
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        run_dir = os.path.join(folder, "run")
        run(launch_command(args, run_dir, args.config, sets, RANKS), timeout_s=JOB_TIMEOUT_S)
        steps = [line for line in records(run_dir) if line["kind"] == "step"]
        saves, skipped = saves_of(run_dir, RANKS)
        journal = {"journal": journal_of(run_dir, RANKS)} if way.journals else {}
    compute = [line["m"]["time/forward_s"] + line["m"]["time/backward_s"] for line in steps]
    return {"step_s": step_s({line["step"]: line["ts"] for line in steps}),
            "compute_s": statistics.median(compute), "skipped": skipped, **journal,
            "saves": [save for save in saves if save["step"] > 0]}  # A journal begins behind one of step 0.


def save_once(args, sets, run_dir, ranks):
    """A run of few steps whose checkpoint the starts below restore; the checkpoint's bytes."""
    run(launch_command(args, run_dir, args.config, [*QUIET, *sets, "checkpoint.interval=0"], ranks),
        timeout_s=JOB_TIMEOUT_S)
    saved = [line for line in records(run_dir) if line["kind"] == "ckpt" and line.get("durable")]
    return saved[-1]["m"]["ckpt/bytes"]


def restore(args, sets, run_dir, ranks):
    """Starts the finished run of save_once again: it restores and ends. From the first look into the
    checkpoints' folder until the slowest rank says that it is restored, out of a cold cache:
    {"restore_s", "growth_bytes"}."""
    drop_cache(f"{run_dir}/checkpoints")
    back_free_memory(STATES * bytes_of(f"{run_dir}/checkpoints"))
    seen = [len(records(run_dir, rank)) for rank in range(ranks)]
    command = launch_command(args, run_dir, args.config, [*QUIET, *sets, "checkpoint.interval=0"], ranks)
    with tempfile.TemporaryFile() as log:
        watch = PeakWatch()
        look = FirstLook(f"{run_dir}/checkpoints/epochs", watch.begin)
        look.start()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT)
        watch.launcher = process.pid
        while process.poll() is None:
            watch.look()
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                pass
        begin = look.end()
        log.seek(0)
        said = log.read().decode(errors="replace")
    if process.returncode != 0:
        fail(command, process.returncode, said)
    ends = [line["ts"] for rank in range(ranks) for line in records(run_dir, rank)[seen[rank]:]
            if "restored" in line]
    if begin is None or len(ends) != ranks:
        fail(command, 0, f"{len(ends)} of {ranks} ranks restored\n{said}")
    return {"restore_s": max(ends) - begin, "growth_bytes": watch.growth()}


def restore_rounds(args, cases):
    """Restores of each case, {name: (sets, run_dir, ranks)}, args.restores times, in rounds whose order
    turns. Before and behind each restore O_DIRECT reads the files that it reads: "read_s" is the mean, for
    the first read of two may fill a cache below this machine. {name: {"restore_s" and "growth_bytes",
    medians, "of_read", the median of read_s / restore_s, and "rounds"}}."""
    taken = {name: [] for name in cases}
    for _, run_dir, ranks in cases.values():
        read_s(f"{run_dir}/checkpoints", ranks)  # So that the first round finds what the others find.
    for number in range(args.restores):
        for name in rotated(cases, number):
            sets, run_dir, ranks = cases[name]
            before = read_s(f"{run_dir}/checkpoints", ranks)
            found = restore(args, sets, run_dir, ranks)
            found["read_s"] = (before + read_s(f"{run_dir}/checkpoints", ranks)) / 2
            taken[name].append(found)
    return {name: summed_up(rounds) for name, rounds in taken.items()}


def summed_up(rounds):
    found = {key: statistics.median(one[key] for one in rounds) for key in ("restore_s", "growth_bytes")}
    found["of_read"] = statistics.median(one["read_s"] / one["restore_s"] for one in rounds)
    return {**found, "rounds": rounds}
