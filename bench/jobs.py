"""Jobs under `dtrain launch` as the benchmarks start and watch them: command, ranks, metrics."""
import json
import os
import subprocess
import tempfile
import threading
import time

from runner import fail, set_words

QUIET = ["eval_interval=0", "checkpoint.interval=0", 'sample={"bytes":0}']
# Settings that make the default configuration's GPT one of 100M parameters, with one sequence a rank.
GPT_100M = ("model.hidden_size=768", "model.intermediate_size=2048", "model.num_hidden_layers=14",
            "model.num_attention_heads=12", "model.num_key_value_heads=12", "train_batch_size=2",
            "train_micro_batch_size_per_gpu=1")


def launch_command(args, run_dir, config, sets=(), ranks=2):
    """The default program on `ranks` ranks; `sets`: KEY=VALUE of --set."""
    command = [f"{args.bin}/dtrain", "launch", "--nproc-per-node", str(ranks), "--run-dir", run_dir,
               "--", f"{args.bin}/dtrain-gpt", config]
    return command + set_words(sets)


def records(run_dir, rank=0):
    """The rank's metrics so far; none before it has begun."""
    try:
        with open(f"{run_dir}/metrics/rank-{rank}.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file.read().split("\n")[:-1]]
    except FileNotFoundError:
        return []


def series(lines, name):
    """[(record, value)] of the metric `name`."""
    return [(line, line["m"][name]) for line in lines if name in line.get("m", {})]


def first_forward(lines):
    """When the first forward pass began, in seconds since the epoch; None before."""
    return next((line["ts"] for line in lines if line.get("name") == "first_forward"), None)


def descendants(pid):
    """The processes below one that may end meanwhile, each before its own children."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return [found for child in children for found in (child, *descendants(child))]


def command_line(pid):
    """The arguments of a process; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode().split("\0")
    except OSError:
        return [""]


def is_rank(command):
    return os.path.basename(command[0]) == "dtrain-gpt"


def rank_pids(launcher):
    return [pid for pid in descendants(launcher) if is_rank(command_line(pid))]


def private_bytes(pid):
    """RssAnon and the shared-memory segments that the process made and holds open."""
    total = 0
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                total += int(line.split()[1]) * 1024
    seen = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if os.readlink(path).startswith("/memfd:"):
            info = os.stat(path)
            if info.st_ino not in seen:
                seen.add(info.st_ino)
                total += info.st_blocks * 512
    return total


class MemoryWatch(threading.Thread):
    """Samples the ranks of a running job every 10 ms: (time, bytes of the biggest rank)."""

    def __init__(self, process, of_rank):
        super().__init__(daemon=True)
        self.process, self.of_rank, self.samples = process, of_rank, []

    def run(self):
        while self.process.poll() is None:
            sizes = []
            for pid in descendants(self.process.pid):
                try:
                    if self.of_rank(command_line(pid)):
                        sizes.append(private_bytes(pid))
                except OSError:
                    pass
            if sizes:
                self.samples.append((time.time(), max(sizes)))
            time.sleep(0.01)

    def before(self, moment):
        return max((s for t, s in self.samples if moment - 0.5 <= t <= moment), default=0)

    def peak(self, begin):
        return max((s for t, s in self.samples if t >= begin), default=0)


def run_job(command, env, of_rank=None):
    """Runs a job to its end. Gives (time of its start, MemoryWatch of its ranks). `of_rank` says whether
    a command line is a rank's; without it there is no MemoryWatch."""
    with tempfile.TemporaryFile() as log:
        start = time.time()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT, env=env)
        watch = MemoryWatch(process, of_rank) if of_rank else None
        if watch:
            watch.start()
        code = process.wait()
        if watch:
            watch.join()
        if code != 0:
            log.seek(0)
            fail(command, code, log.read().decode(errors="replace"))
    return start, watch
