"""./dev bench comm: all-reduce of 2 ranks in shared memory beside Gloo, OpenMPI and DeepSpeed's shm.

Every round runs each program once over all sizes, in an order that turns with the round; ratios are
of the medians of one round, and the table and goals show their median over rounds. "probe" is
what the runtime's own benchmark measures beside itself: the same bytes streamed with no call and
no wait. Where the probe is the slower of the two, it bounds nothing. Peers have plain memory, which nobody
registered. So each ratio of registered memory stands beside that of plain memory, with goals of its
own, and "x best" is against the fastest peer of the round.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

from report import begin, of_probe, print_goals, write_results
from rounds import rotated
from runner import run, times_by_size

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
PEERS = ["gloo", "openmpi", "deepspeed-shm"]
OF_PROBE = 0.85  # comm/allreduce.cc has the same.
MOST = 1 << 40
# (name, the peers whose fastest counts, from and to how many bytes, relation, target)
PEER_GOALS = (
    ("4KiB_vs_gloo", ("gloo",), 4096, 4096, ">=", 20),
    ("from_1MiB_vs_gloo", ("gloo",), MIB, MOST, ">=", 6),
    ("4KiB_to_4MiB_vs_best_of_openmpi_deepspeed", ("openmpi", "deepspeed-shm"), 4096, 4 * MIB, ">=",
     0.97),
    ("beyond_4MiB_vs_best_of_openmpi_deepspeed", ("openmpi", "deepspeed-shm"), 4 * MIB + 1, MOST, ">", 1),
    ("from_16MiB_vs_openmpi", ("openmpi",), 16 * MIB, MOST, ">=", 1.5))


def sizes_up_to(largest):
    sizes = [4096 * 4 ** i for i in range(20) if 4096 * 4 ** i <= largest]
    return sorted(sizes + [size for size in (25 * MIB,) if size <= largest])


def rounds_of(size):
    return 200 if size <= MIB else 30 if size <= 32 * MIB else 11  # comm/allreduce.cc has the same.


class Programs:
    """Each gives {mode: {bytes: microseconds}}."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.sizes = sizes_up_to(args.largest_mib * MIB)
        self.plan = [f"{size}:{rounds_of(size)}" for size in self.sizes]
        self.mpi = f"{folder}/allreduce_mpi"
        run(["mpicc", "-O2", "-o", self.mpi, f"{HERE}/twins/allreduce_mpi.c"])

    def dtrain(self):
        path = f"{self.folder}/dtrain.json"
        run([f"{self.args.bin}/bench_comm_allreduce", "--json", path,
             "--sizes", ",".join(map(str, self.sizes))])
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        times = {}
        for line in report["lines"]:
            times.setdefault(line["mode"], {})[line["bytes"]] = line["p50_us"]
        return times

    def torch(self, kind):
        text = run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
                    "--standalone", f"{HERE}/twins/allreduce_torch.py", kind,
                    "--plan", ",".join(self.plan)],
                   env={"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
                        "TORCH_EXTENSIONS_DIR": self.args.extensions,
                        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"})
        return {kind: times_by_size(text)}

    def openmpi(self):
        text = run(["mpirun", "--allow-run-as-root", "--bind-to", "core", "-np", "2", self.mpi,
                    *self.plan])
        return {"openmpi": times_by_size(text)}

    def all(self):
        return [self.dtrain, lambda: self.torch("gloo"), self.openmpi,
                lambda: self.torch("deepspeed-shm")]


def median_ratio(rounds, size, other, ours="registered"):
    """The other's time divided by ours."""
    return statistics.median(r[other][size] / r[ours][size] for r in rounds)


def median_against_best(rounds, size, others, ours="registered"):
    return statistics.median(min(r[o][size] for o in others) / r[ours][size] for r in rounds)


def label_of(size):
    """4KiB, 25MiB."""
    return f"{size // MIB}MiB" if size >= MIB else f"{size // 1024}KiB"


def ratios_in(rounds, sizes, peers, ours, low, high=MOST):
    """The ratio to the fastest of `peers`, for each size of the range."""
    return [median_against_best(rounds, size, peers, ours) for size in sizes if low <= size <= high]


def goals_against_peers(rounds, sizes, ours):
    """The goals against peers, each at the worst size of its range. `ours`: the kind of memory."""
    goals = []
    for name, peers, low, high, relation, target in PEER_GOALS:
        if found := ratios_in(rounds, sizes, peers, ours, low, high):
            of = "" if ours == "registered" else f"_{ours}"
            goals.append((f"comm.shm_{name}{of}", min(found), relation, target))
    return goals


def goals_of(rounds, sizes):
    """All goals, as print_goals takes them."""
    return [*goals_against_peers(rounds, sizes, "registered"),
            *goals_against_peers(rounds, sizes, "plain"),
            *(of_probe(f"comm.shm_{label_of(size)}_of_zero_copy_bound",
                       median_ratio(rounds, size, "probe"), OF_PROBE) for size in sizes)]


def all_goals(results):
    """The goals of a results file."""
    return goals_of(results["rounds"], sorted(results["rounds"][0]["registered"]))


def print_table(rounds, sizes):
    columns = ["registered", "plain", *PEERS]
    print(f"\n{'bytes':>12}" + "".join(f"{name + ' us':>18}" for name in columns) +
          f"{'busbw GB/s':>12}{'of probe':>10}" + "".join(f"{'x ' + p:>16}" for p in PEERS) +
          f"{'x best':>10}{'plain x best':>14}")
    for size in sizes:
        micros = {c: statistics.median(r[c][size] for r in rounds) for c in columns}
        share = median_ratio(rounds, size, "probe")
        print(f"{size:12}" + "".join(f"{micros[c]:18.1f}" for c in columns) +
              f"{size / micros['registered'] * 1e-3:12.2f}"
              f"{share:10.0%}" +
              "".join(f"{median_ratio(rounds, size, p):16.2f}" for p in PEERS) +
              f"{median_against_best(rounds, size, PEERS):10.2f}"
              f"{median_against_best(rounds, size, PEERS, 'plain'):14.2f}" +
              ("  probe slower than the operation: no bound" if share > 1 else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest-mib", type=int, default=256)
    parser.add_argument("--extensions", default=".deps/torch_extensions",
                        help="where torch keeps DeepSpeed's compiled operation")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    args.extensions = os.path.abspath(args.extensions)
    args.json = begin("comm", args.json)
    rounds = []
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        programs = Programs(args, folder)
        for i in range(args.rounds):
            times = {}
            for program in rotated(programs.all(), i):
                times.update(program())
            rounds.append(times)
            print(f"round {i + 1}/{args.rounds}: 4 KiB in {times['registered'][4096]:.1f} us, "
                  f"Gloo {times['gloo'][4096]:.1f} us", flush=True)
        sizes = programs.sizes
    print_table(rounds, sizes)
    write_results(args.json, "comm", rounds=rounds, goals=print_goals(goals_of(rounds, sizes)))


if __name__ == "__main__":
    main()
