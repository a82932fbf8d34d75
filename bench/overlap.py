"""./dev bench overlap: how much of a step waits for gradients on a slow link, beside DDP over Gloo.

Two network namespaces, one core each, joined by a link that tc shapes. A round runs, in an order
that turns with the round: dtrain on both (TCP), the same two programs alone at once (compute-only:
as many samples a rank, nothing sent), what the link needs for the same gradients alone, and DDP
both ways. Exposed = step - compute-only step - CPU time
of the comm threads: the core is one, so what these threads compute cannot be hidden; on any link
that was not busy all else could. Medians over the rounds count. Points differ in samples a step and
in the link: communication well below backward, near it, above it, and so far above that only it
counts. CPU time is the kernel's (schedstat), seen from outside: of threads named dtrain-comm, and
of whole processes minus those of compute-only. A run replaces the points that it takes in the
results file and leaves the others.
"""
import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

import links
from jobs import QUIET, records, series
from peers import read_facts, twin_path
from report import NO_BOUND, begin, how_taken, judged, measured_before, print_goals, write_results
from rounds import back_and_forth
from runner import set_words, times_by_size

HERE = os.path.dirname(os.path.abspath(__file__))
# Samples a step over both ranks, Mbit/s, measured steps.
POINTS = {"hidden": (24, 400, 8), "near": (10, 400, 8), "above": (4, 400, 8), "far": (2, 50, 5)}
WARM_UP = 10  # dtrain tunes its buckets within them (bucket_tuner.h).
PEER_WARM_UP = 3
CALLS = 5  # All-reduces in a row; their median counts, since the link may let a single one pass faster.
HIDEABLE, EXPOSED, OF_POSSIBLE = 0.9, 0.03, 1.03


class CpuWatch(threading.Thread):
    """Samples how long the threads of some processes have run: [(time, comm s, all s)] a process."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.samples = {pid: [] for pid in pids}
        self.over = threading.Event()

    @staticmethod
    def read(pid):
        comm = everything = 0
        for task in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{task}"
            try:
                with open(f"{path}/schedstat", encoding="ascii") as file:
                    nanos = int(file.read().split()[0])
                with open(f"{path}/comm", encoding="ascii") as file:
                    comm += nanos if file.read().startswith("dtrain-comm") else 0
            except (OSError, ValueError):
                continue  # It ended.
            everything += nanos
        return comm * 1e-9, everything * 1e-9

    def run(self):
        while not self.over.wait(0.1):
            for pid, samples in self.samples.items():
                try:
                    samples.append((time.time(), *self.read(pid)))
                except OSError:
                    pass

    def between(self, pid, begin, end):
        """(comm s, all s) that the process ran from `begin` to `end`."""
        return [self.at(pid, end, i) - self.at(pid, begin, i) for i in (1, 2)]

    def at(self, pid, moment, index):
        """A value at a moment, interpolated between two samples."""
        samples = self.samples[pid]
        after = next((i for i, sample in enumerate(samples) if sample[0] >= moment), None)
        if after is None or after == 0:
            return samples[-1 if after is None else 0][index]
        a, b = samples[after - 1], samples[after]
        return a[index] + (b[index] - a[index]) * (moment - a[0]) / (b[0] - a[0])


class Program:
    """A program that runs in both namespaces; `alone`: each rank is a job of its own."""

    def __init__(self, args, link, point, alone):
        self.args, self.link, self.alone = args, link, alone
        self.samples, _, self.measured = POINTS[point]
        self.folder = tempfile.mkdtemp(prefix="dtrain-overlap-")
        self.sets = [*QUIET, f"train_batch_size={self.samples // (2 if alone else 1)}",
                     f"train_micro_batch_size_per_gpu={self.samples // 2}"]

    def env(self, rank, port):
        env = self.link.env(rank, port)
        if self.alone:
            env.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR=links.ADDRESSES[rank])
        return env

    def run(self):
        """{"step_s", "comm_cpu_s", "cpu_s", ...} a step, of the slower rank."""
        port = next(PORTS)
        processes = self.link.start(self.command, lambda rank: self.env(rank, port))
        watch = CpuWatch([process.pid for process in processes])
        watch.start()
        said = self.link.finish(processes)[0]
        watch.over.set()
        watch.join()
        ranks = []
        for rank, process in enumerate(processes):
            steps = self.steps(rank)[-self.measured:]
            begin, end = steps[0]["ts"] - steps[0]["step_s"], steps[-1]["ts"]
            comm, everything = watch.between(process.pid, begin, end)
            result = {key: statistics.median(step[key] for step in steps)
                      for key in steps[0] if key != "ts"}
            ranks.append({**result, "comm_cpu_s": comm / len(steps), "cpu_s": everything / len(steps)})
        shutil.rmtree(self.folder, ignore_errors=True)
        for line in said.splitlines():
            if "gradient buckets" in line:
                print(line, flush=True)
        said = {key: max(rank[key] for rank in ranks) for key in ranks[0]}
        if "waited_s" in said:  # The other rank waits for this one's backward too.
            said["waited_of_last_s"] = min(rank["waited_s"] for rank in ranks)
        return said


class Dtrain(Program):
    def command(self, rank):
        sets = [*self.sets, f"train_steps={WARM_UP + self.measured}", "comm.transport=tcp",
                *self.args.set]
        run_dir = f"{self.folder}/run{rank if self.alone else ''}"
        return [f"{self.args.bin}/dtrain-gpt", self.args.config, "--run-dir", run_dir,
                *set_words(sets)]

    def env(self, rank, port):
        token = f"{self.folder}/token"
        if not os.path.exists(token):
            with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write("5a" * 32)
        return {**super().env(rank, port), "LOCAL_WORLD_SIZE": "1", "DTRAIN_TOKEN_FILE": token}

    def steps(self, rank):
        run_dir, number = (f"{self.folder}/run{rank}", 0) if self.alone else (f"{self.folder}/run", rank)
        found = []
        for line, seconds in series(records(run_dir, number), "time/step_s"):
            values = line["m"]
            found.append({"ts": line["ts"], "step_s": seconds,
                          "backward_s": values["time/backward_s"],
                          "forward_s": values["time/forward_s"],
                          "waited_s": values["time/exposed_comm_s"],
                          "gradient_bytes": values["memory/gradients_bytes"]})
        return found


class Ddp(Program):
    def command(self, rank):
        sets = [*self.sets, f"train_steps={PEER_WARM_UP + self.measured}"]
        return [sys.executable, twin_path("ddp"), self.args.config, "--facts", self.facts(rank),
                *set_words(sets)]

    def facts(self, rank):
        return f"{self.folder}/facts{rank if self.alone else ''}.jsonl"

    def steps(self, rank):
        # Rank 0 alone writes; a step takes as long on both.
        return [{"ts": fact["ts"], "step_s": fact["seconds"]}
                for fact in read_facts(self.facts(rank)) if fact["kind"] == "step"]


PORTS = itertools.count(7100)


def communication(args, link, size):
    """Seconds of an all-reduce of `size` bytes while nothing else runs (the median of the calls)."""
    port = next(PORTS)
    text = link.run(lambda rank: [f"{args.bin}/bench_comm_link", "--rank", str(rank), "--address",
                                  links.ADDRESSES[rank], "--store",
                                  f"{links.ADDRESSES[0]}:{port}", "--plan", f"{size}:{CALLS}"])
    return times_by_size(text)[size] * 1e-6


def measure(args, point):
    """The rounds of one point."""
    _, mbit, _ = POINTS[point]
    rounds = []
    size = 0
    with links.Link(mbit) as link:
        parts = {"dtrain": lambda: Dtrain(args, link, point, False).run(),
                 "compute": lambda: Dtrain(args, link, point, True).run(),
                 "communication_s": lambda: communication(args, link, size)}  # Once it is known.
        if not args.no_peer:
            parts["ddp"] = lambda: Ddp(args, link, point, False).run()
            parts["ddp_compute"] = lambda: Ddp(args, link, point, True).run()
        for number in range(args.rounds):
            taken = {}
            for name in back_and_forth(parts, number):
                taken[name] = parts[name]()
                size = size or int(taken[name]["gradient_bytes"])
            rounds.append(taken)
            print(f"{point}, round {number + 1}/{args.rounds}: step "
                  f"{taken['dtrain']['step_s'] * 1e3:.1f} ms, compute-only "
                  f"{taken['compute']['step_s'] * 1e3:.1f}; load {os.getloadavg()[0]:.1f}",
                  flush=True)
    return {"mbit": mbit, "samples": POINTS[point][0], "gradient_bytes": size, "rounds": rounds}


def summary(facts):
    """Medians over the rounds, and the figures that follow from them."""
    rounds = facts["rounds"]

    def median(value):
        return statistics.median(value(r) for r in rounds)

    result = {"communication_s": median(lambda r: r["communication_s"]),
              "step_s": median(lambda r: r["dtrain"]["step_s"]),
              "compute_s": median(lambda r: r["compute"]["step_s"]),
              "backward_s": median(lambda r: r["compute"]["backward_s"]),
              "comm_cpu_s": median(lambda r: r["dtrain"]["comm_cpu_s"]),
              "waited_s": median(lambda r: r["dtrain"]["waited_s"]),
              "waited_of_last_s": median(lambda r: r["dtrain"]["waited_of_last_s"]),
              "all_cpu_s": median(lambda r: r["dtrain"]["cpu_s"] - r["compute"]["cpu_s"]),
              "exposed_s": median(lambda r: r["dtrain"]["step_s"] - r["compute"]["step_s"]
                                  - r["dtrain"]["comm_cpu_s"])}
    result["hideable"] = result["communication_s"] <= HIDEABLE * result["backward_s"]
    result["exposed_of_communication"] = result["exposed_s"] / result["communication_s"]
    result["step_of_possible"] = median(lambda r: r["dtrain"]["step_s"] / max(
        r["compute"]["step_s"] + r["dtrain"]["comm_cpu_s"], r["communication_s"]))
    if "ddp" in rounds[0]:
        result["ddp_step_s"] = median(lambda r: r["ddp"]["step_s"])
        result["ddp_compute_s"] = median(lambda r: r["ddp_compute"]["step_s"])
        result["ddp_cpu_s"] = median(lambda r: r["ddp"]["cpu_s"] - r["ddp_compute"]["cpu_s"])
        result["ddp_exposed_s"] = median(lambda r: r["ddp"]["step_s"] - r["ddp_compute"]["step_s"]
                                         - max(0, r["ddp"]["cpu_s"] - r["ddp_compute"]["cpu_s"]))
        result["over_ddp"] = median(lambda r: r["ddp"]["step_s"] / r["dtrain"]["step_s"])
    return result


def print_point(name, facts, s):
    print(f"\n{name}: {facts['samples']} samples a step, {facts['gradient_bytes'] / 1e6:.1f} MB of "
          f"gradients, {facts['mbit']} Mbit/s; ms\n"
          f"  step {s['step_s'] * 1e3:.1f}, compute-only {s['compute_s'] * 1e3:.1f} (backward "
          f"{s['backward_s'] * 1e3:.1f}), CPU of comm threads {s['comm_cpu_s'] * 1e3:.1f} (all that "
          f"communication adds {s['all_cpu_s'] * 1e3:.1f}), communication alone "
          f"{s['communication_s'] * 1e3:.1f} = {s['communication_s'] / s['backward_s']:.2f} x backward\n"
          f"  exposed {s['exposed_s'] * 1e3:.1f} = {s['exposed_of_communication']:.1%} of "
          f"communication; step {s['step_of_possible']:.3f} of max(compute + comm CPU, communication)\n"
          f"  beside it, by the step's own clock: waited after backward {s['waited_s'] * 1e3:.1f} = "
          f"{s['waited_s'] / s['communication_s']:.1%} of communication, of the rank that ends "
          f"backward last {s['waited_of_last_s'] * 1e3:.1f} = "
          f"{s['waited_of_last_s'] / s['communication_s']:.1%} (no part of exposed: one program "
          "alone, so a machine whose speed changes between programs does not show)")
    if "ddp_step_s" in s:
        print(f"  DDP over Gloo: step {s['ddp_step_s'] * 1e3:.1f}, compute-only "
              f"{s['ddp_compute_s'] * 1e3:.1f}, CPU added {s['ddp_cpu_s'] * 1e3:.1f}, exposed "
              f"{s['ddp_exposed_s'] * 1e3:.1f} = {s['ddp_exposed_s'] / s['communication_s']:.1%}; "
              f"its step over dtrain's {s['over_ddp']:.3f}")


def goals_of(name, s):
    """The goal of a point. It has no bound if the step was faster than its bound: the machine was slower
    while the bound was measured."""
    if s["hideable"]:
        void = [NO_BOUND] if s["exposed_of_communication"] < 0 else []
        return [(f"overlap.{name}.exposed_of_communication", s["exposed_of_communication"], "<=",
                 EXPOSED, *void)]
    void = [NO_BOUND] if s["step_of_possible"] < 1 else []
    return [(f"overlap.{name}.step_of_possible", s["step_of_possible"], "<=", OF_POSSIBLE, *void)]


def all_goals(results):
    """The goals of a results file."""
    points = results["points"]
    return [goal for name in POINTS if name in points
            for goal in goals_of(name, points[name]["summary"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--config", default="examples/configs/gpt.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--points", nargs="+", default=list(POINTS), choices=list(POINTS))
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for dtrain")
    parser.add_argument("--no-peer", action="store_true", help="without DDP")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if reason := links.why_not():
        sys.exit(f"bench: no network namespaces here: {reason}")
    args.json = begin("overlap", args.json)
    points = measured_before(args.json).get("points", {})
    for name in args.points:
        points[name] = measure(args, name)
        points[name].update(how_taken())
        points[name]["summary"] = summary(points[name])
        print_point(name, points[name], points[name]["summary"])
        write_results(args.json, "overlap", points=points, goals=judged(all_goals({"points": points})))
    print_goals(all_goals({"points": points}))


if __name__ == "__main__":
    main()
