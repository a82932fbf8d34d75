"""Jobs under `dtrain launch` as the benchmarks start and watch them: command, ranks, metrics."""
import json
import os
import threading
import time


def launch_command(args, run_dir, config, sets=(), ranks=2):
    """The default program on `ranks` ranks; `sets`: KEY=VALUE of --set."""
    command = [f"{args.bin}/dtrain", "launch", "--nproc-per-node", str(ranks), "--run-dir", run_dir,
               "--", f"{args.bin}/dtrain-gpt", config]
    return command + [word for value in sets for word in ("--set", value)]


def records(run_dir, rank=0):
    """The rank's metrics so far; none before it has begun."""
    try:
        with open(f"{run_dir}/metrics/rank-{rank}.jsonl", encoding="utf-8") as file:
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


def private_bytes(pid):
    """RssAnon plus the shared-memory segments that the process itself made and holds open."""
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
