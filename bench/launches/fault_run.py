"""A job of three hosts with random faults, and the same job without any beside programs that take the CPU: what
the faults cost, and whether they changed a number."""
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time

from fault_cluster import LOST, Broken, Cluster
from random_faults import plan, summary

# Every step has the same bits in every run, and a checkpoint comes every second or so.
SETS = ("train_steps=100000000", "deterministic=true", "checkpoint.interval=20", "checkpoint.keep=2",
        "checkpoint.journal=async", "checkpoint.journal_share=1", "metrics.tensorboard=false", "eval_interval=0",
        'sample={"bytes":0}')
STRESS_PER_CORE = 2
DISK_MB, DISK_MB_PER_MINUTE = 96, 12
STEPS_LEAST_PER_S = 2  # A job without faults that is slower is stuck.


def records_of(run_dir):
    """The whole records of rank 0. A process that was killed, or whose disk was full, leaves parts of lines."""
    found = []
    with contextlib.suppress(FileNotFoundError), open(f"{run_dir}/metrics/rank-0.jsonl", "rb") as file:
        for line in file.read().split(b"\n")[:-1]:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict) and "kind" in record]


def weights_of(run_dir):
    """(name of the newest checkpoint, {file of its model: hash})"""
    newest = max(name for name in os.listdir(f"{run_dir}/checkpoints") if name.startswith("step-"))
    folder = f"{run_dir}/checkpoints/{newest}/model"
    hashes = {}
    for name in sorted(os.listdir(folder)):
        with open(f"{folder}/{name}", "rb") as file:
            hashes[name] = hashlib.sha256(file.read()).hexdigest()
    return newest.split(".")[0], hashes


def missing_steps(losses, last, full_disks, moments):
    """Steps without a record, but for those of times in which the disk was full. `moments`: {step: its time}."""
    found, before = [], None
    for step in range(1, last + 1):
        if step in losses:
            before = step
            continue
        after = next((other for other in range(step + 1, last + 1) if other in losses), None)
        begin = moments[before] if before else 0
        end = moments[after] if after else float("inf")
        if not any(full < end and begin < empty for full, empty in full_disks):
            found.append(step)
    return found


def with_faults(cluster, faults, seconds, say):
    """Gives what is to be compared of a job that runs for `seconds`."""
    begin = time.time()
    cluster.start_all(SETS)
    started = time.monotonic()
    for fault in faults:
        cluster.pause(started + fault.at_s - time.monotonic())
        say(fault.text())
        cluster.make(fault)
    cluster.pause(started + seconds - time.monotonic())
    codes = cluster.stop()
    return {"begin": begin, "end": time.time(), "codes": codes, "orphans": cluster.orphans(),
            "records": records_of(cluster.run_dir), "weights": weights_of(cluster.run_dir),
            "full_disks": cluster.full_disks, "came_back": len(cluster.ended)}


def without_faults(cluster, steps, stress_s):
    """The same job up to `steps`, for its first `stress_s` seconds beside programs that take the CPU."""
    cluster.start_all((*SETS, f"train_steps={steps}"))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(STRESS_PER_CORE * os.cpu_count())]
    try:
        end = time.monotonic() + stress_s
        while cluster.agents[0].poll() is None and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    codes = cluster.wait(60 + steps / STEPS_LEAST_PER_S)
    lost = [text for node in range(len(cluster.agents)) for text in LOST if text in cluster.said(node)]
    return {"codes": codes, "records": records_of(cluster.run_dir), "weights": weights_of(cluster.run_dir),
            "false_restarts": cluster.attempts() - 1 + len(lost), "orphans": cluster.orphans()}


def measure(dtrain, program, environment, folder, seed, seconds, every_s, stress_s, say=print):
    """Runs both jobs in `folder`; gives the figures of summary(), and what the comparison adds."""
    faults = plan(seed, seconds, every_s)
    disk_mb = int(DISK_MB + DISK_MB_PER_MINUTE * seconds / 60)

    def cluster_in(name):
        os.makedirs(f"{folder}/{name}")
        return Cluster(dtrain, f"{folder}/{name}", program, environment, disk_mb)

    with cluster_in("faults") as cluster:
        taken = with_faults(cluster, faults, seconds, say)
    moments = {record["step"]: record["ts"] for record in taken["records"] if record["kind"] == "step"}
    newest, weights = taken["weights"]
    last = int(newest.removeprefix("step-"))
    with cluster_in("right") as cluster:
        right = without_faults(cluster, last, stress_s)
    losses = {record["step"]: record["m"]["train/loss"] for record in right["records"] if record["kind"] == "step"}
    figures = summary(taken["records"], losses, taken["begin"], taken["end"], taken["full_disks"])
    return {"seed": seed, "faults": len(faults), **figures,
            "codes": taken["codes"], "codes_without_faults": right["codes"],
            "orphans": taken["orphans"] + right["orphans"], "false_restarts": right["false_restarts"],
            "came_back": taken["came_back"], "last_step": last,
            "missing": missing_steps(moments, last, taken["full_disks"], moments),
            "weights_differ": weights != right["weights"][1]}


def problems(figures):
    """What of a run's figures must not be, as sentences."""
    expected = {"lost_beyond_promise": 0, "orphans": [], "false_restarts": 0, "wrong": [], "missing": [],
                "weights_differ": False, "codes_without_faults": [0, 0, 0], "codes": [130, 130, 130]}
    return [f"{key} is {str(figures[key])[:400]}, and has to be {value}" for key, value in expected.items()
            if figures[key] != value]


__all__ = ["Broken", "measure", "problems"]
