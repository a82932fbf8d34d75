"""./dev bench tcp: all-reduce between two network namespaces beside Gloo.

Two links: as fast as the host moves packets between namespaces, and shaped to 1 Gbit/s, where the
limit is what one plain TCP stream carries. Both programs run once a round, in turning order;
ratios are of the medians of one round, and goals show the median over rounds.
"""
import argparse
import json
import os
import statistics
import sys

import links
from report import begin, of_probe, print_goals, write_results
from rounds import rotated
from runner import times_by_size

HERE = os.path.dirname(os.path.abspath(__file__))
KIB, MIB = 1 << 10, 1 << 20
FAST = [(4 * KIB, 200), (64 * KIB, 200), (256 * KIB, 100), (MIB, 60), (4 * MIB, 30), (16 * MIB, 11),
        (64 * MIB, 5)]
SHAPED = [(4 * KIB, 100), (64 * KIB, 60), (MIB, 20), (16 * MIB, 5), (64 * MIB, 3)]
STREAM_BYTES = 128 * MIB


def plan_of(sizes):
    return ",".join(f"{size}:{rounds}" for size, rounds in sizes)


class Programs:
    """The programs that run over one link; dtrain and gloo give {bytes: microseconds}."""

    def __init__(self, args, link, sizes):
        self.args, self.link, self.sizes, self.port = args, link, sizes, 7000

    def _rank(self, rank, *more):
        return [f"{self.args.bin}/bench_comm_link", "--rank", str(rank), "--address",
                links.ADDRESSES[rank], "--store", f"{links.ADDRESSES[0]}:{self.port}", *more]

    def dtrain(self):
        self.port += 1
        return times_by_size(self.link.run(lambda rank: self._rank(rank, "--plan",
                                                                   plan_of(self.sizes))))

    def gloo(self):
        self.port += 1
        return times_by_size(self.link.run(
            lambda rank: [sys.executable, f"{HERE}/twins/allreduce_torch.py", "gloo", "--plan",
                          plan_of(self.sizes)],
            lambda rank: self.link.env(rank, self.port)))

    def stream(self):
        """MB/s of one plain connection."""
        self.port += 1
        text = self.link.run(lambda rank: self._rank(rank, "--stream", str(STREAM_BYTES)))
        return json.loads(text.splitlines()[-1])["stream_mb_s"]


def measure(args, mbit, sizes):
    """[{"dtrain": {bytes: us}, "gloo": ..., "stream_mb_s": ...}] by round."""
    rounds = []
    with links.Link(mbit) as link:
        programs = Programs(args, link, sizes)
        for number in range(args.rounds):
            rounds.append({name: getattr(programs, name)() for name in rotated(("dtrain", "gloo"), number)})
            rounds[-1]["stream_mb_s"] = programs.stream()
    return rounds


def ratio(rounds, size):
    return statistics.median(r["gloo"][size] / r["dtrain"][size] for r in rounds)


def goodput(rounds, size):
    """busbw of two ranks as a share of the stream."""
    return statistics.median(size / r["dtrain"][size] / r["stream_mb_s"] for r in rounds)


def print_table(title, rounds, sizes):
    print(f"\n{title}; a plain stream carries "
          f"{statistics.median(r['stream_mb_s'] for r in rounds):.0f} MB/s\n"
          f"{'bytes':>12}{'dtrain us':>14}{'gloo us':>14}{'x gloo':>10}{'of stream':>12}")
    for size, _ in sizes:
        micros = {name: statistics.median(r[name][size] for r in rounds)
                  for name in ("dtrain", "gloo")}
        print(f"{size:12}{micros['dtrain']:14.1f}{micros['gloo']:14.1f}{ratio(rounds, size):10.2f}"
              f"{goodput(rounds, size):12.1%}")


def all_goals(results):
    """The goals of a results file."""
    goals, facts = [], results["rounds"]
    if "veth" in facts:
        goals.append(("comm.tcp_veth_from_64KiB_vs_gloo",
                      min(ratio(facts["veth"], size) for size, _ in FAST if size >= 64 * KIB),
                      ">=", 1.5))
    if "gigabit" in facts:
        goals.append(of_probe("comm.tcp_1Gbit_64MiB_of_a_stream",
                              goodput(facts["gigabit"], SHAPED[-1][0]), 0.97))
    return goals


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--links", default="veth,shaped")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if reason := links.why_not():
        sys.exit(f"bench: no network namespaces here: {reason}")
    args.json = begin("tcp", args.json)
    facts = {}
    if "veth" in args.links:
        facts["veth"] = measure(args, None, FAST)
        print_table("veth, not shaped", facts["veth"], FAST)
    if "shaped" in args.links:
        facts["gigabit"] = measure(args, 1000, SHAPED)
        print_table("1 Gbit/s", facts["gigabit"], SHAPED)
    write_results(args.json, "tcp", rounds=facts, goals=print_goals(all_goals({"rounds": facts})))


if __name__ == "__main__":
    main()
