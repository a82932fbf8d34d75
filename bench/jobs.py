"""Jobs under `dtrain launch` as the benchmarks start and watch them: command, ranks, metrics."""
import json
import os


def launch_command(args, run_dir, config, sets=(), ranks=2):
    """The default program on `ranks` ranks; `sets`: KEY=VALUE of --set."""
    command = [f"{args.bin}/dtrain", "launch", "--nproc-per-node", str(ranks), "--run-dir", run_dir,
               "--", f"{args.bin}/dtrain-gpt", config]
    return command + [word for value in sets for word in ("--set", value)]


def records(run_dir):
    """Rank 0's metrics so far; none before it has begun."""
    try:
        with open(f"{run_dir}/metrics/rank-0.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def series(lines, name):
    """[(record, value)] of the metric `name`."""
    return [(line, line["m"][name]) for line in lines if name in line.get("m", {})]


def first_forward(lines):
    """When the first forward pass began, in seconds since the epoch; None before."""
    return next((line["ts"] for line in lines if line.get("name") == "first_forward"), None)


def descendants(pid):
    """Of a process that may end meanwhile: children before their own."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return [found for child in children for found in (child, *descendants(child))]


def command_line(pid):
    """Arguments of a process; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode().split("\0")
    except OSError:
        return [""]


def is_rank(command):
    return os.path.basename(command[0]) == "dtrain-gpt"


def rank_pids(launcher):
    return [pid for pid in descendants(launcher) if is_rank(command_line(pid))]
