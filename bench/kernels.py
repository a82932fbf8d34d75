"""./dev bench kernels: CPU kernels beside a probe of their streams, torch eager and torch.compile.

One run, interleaved: a round of a case is (probe, kernel, probe) in dtrain-bench-kernels and one
call of each form in a Python process, on the same shapes and threads; their order is reversed
every second round. Ratios are of one round; tables and goals show their medians. A case without
a twin in bench/twins/kernel_twins is measured against the probe alone and named. A probe that was
slower than the kernel bounds nothing, and no goal asks for less than eager's own speed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import report
from rounds import back_and_forth, spread
from runner import run

TWIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "twins", "kernels.py")
PEERS = ("eager", "compile")
OF_PROBE, OVER_EAGER, OF_COMPILE = 0.90, 2.0, 0.97
SETTLE_S = 0.005  # In this time the other process's worker threads fall asleep.
# Peers get their memory from a heap that is never given back. A fresh output then causes no page
# faults, just as in dtrain's arena.
NO_PAGE_FAULTS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000000",
                  "MALLOC_TOP_PAD_": "268435456"}


class Server:
    """A process that answers a line by a line of JSON."""

    def __init__(self, command, env=None):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env)

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"bench: {' '.join(self.command)} ended with {self.process.wait()} at {words}")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ask(server, *words):
    time.sleep(SETTLE_S)
    return server.ask(*words)


def measure(case, args, ours, twin):
    """(rounds of one case, its peers, facts of the peers' forms); no peers if the case has no twin."""
    said = {"missing": "no peers"} if twin is None else twin.ask(case["name"], PEERS[0])
    peers = [] if "missing" in said else list(PEERS)
    forms = {key: said[key] for key in ("compiled", "distance", "allowed", "eager_form")
             if key in said}
    rounds = []
    for i in range(args.rounds):
        taken = {}
        sides = ["ours", *peers]
        for side in back_and_forth(sides, i):
            taken[side] = ask(ours, case["name"], args.threads) if side == "ours" \
                else ask(twin, case["name"], side)["s"]
        rounds.append(taken)
    return rounds, peers, forms


def summary(case, rounds, peers, forms=None):
    """The row of a case, with medians. Ratios above 1 mean that dtrain's kernel is faster. `forms`:
    the twin's facts about its forms, which are kept beside their times."""
    giga = case["bytes"] * 1e-9
    steady = [r["ours"] for r in rounds if r["ours"]["steady"]]
    probe = {id(r): (r["ours"]["probe_before_s"] + r["ours"]["probe_after_s"]) / 2 for r in rounds}
    row = {"name": case["name"], "rounds": len(rounds), "rounds_steady": len(steady),
           "gb_per_s": giga / statistics.median(r["ours"]["kernel_s"] for r in rounds),
           "probe_gb_per_s": giga / statistics.median(probe.values())}
    if steady:
        row["probe_fraction"] = statistics.median(
            (s["probe_before_s"] + s["probe_after_s"]) / 2 / s["kernel_s"] for s in steady)
    for peer in peers:
        ratios = spread([r[peer] / r["ours"]["kernel_s"] for r in rounds])
        row[peer] = {"gb_per_s": giga / statistics.median(r[peer] for r in rounds),
                     "ratio": ratios["median"],
                     **{f"ratio_{key}": value for key, value in ratios.items()
                        if key not in ("median", "rounds")},
                     "probe_fraction": statistics.median(probe[id(r)] / r[peer] for r in rounds)}
    for key, value in (forms or {}).items():
        side = "eager" if key == "eager_form" else "compile"
        if side in row:
            row[side][key] = value
    return row


def over_eager(row):
    """The goal: how many times as fast as eager a kernel should be. A kernel that is slower than the
    probe cannot be twice as fast as an eager form near the probe's speed. The goal is never below 1."""
    return max(1.0, min(OVER_EAGER, OF_PROBE / row["eager"]["probe_fraction"]))


def goals_of(row):
    name, goals = f"kernels.{row['name']}", []
    if "probe_fraction" in row:
        goals.append(report.of_probe(f"{name}.probe_fraction", row["probe_fraction"], OF_PROBE))
    if "probe_fraction" in row.get("eager", {}):
        # An older file marks an eager form that was not torch's fastest.
        void = [report.NO_BOUND] if "not_fastest" in row["eager"] else []
        goals.append((f"{name}.vs_eager", row["eager"]["ratio"], ">=", over_eager(row), *void))
    if "compile" in row:
        goals.append((f"{name}.vs_compile", row["compile"]["ratio"], ">=", OF_COMPILE))
    return goals


def all_goals(results):
    """The goals of a results file."""
    return [goal for row in results["rows"] for goal in goals_of(row)]


def note_of(row):
    """A remark behind the row, for a reader of its ratio to torch.compile."""
    form = row.get("compile", {})
    if not form.get("compiled", True):
        return "  not compiled: eager's is the faster"
    if form.get("distance", 0) > form.get("allowed", 0):
        return f"  torch.compile is {form['distance']:.2g} off eager, more than {form['allowed']:g}"
    return ""


def print_row(row):
    def peer(name):
        one = row.get(name)
        return f"{one['gb_per_s']:9.2f}{one['ratio']:7.2f}" if one else f"{'-':>9}{'-':>7}"

    share = f"{100 * row['probe_fraction']:6.1f}" if "probe_fraction" in row else "  busy"
    if row.get("probe_fraction", 0) > 1:
        share += ": no bound"
    print(f"{row['name']:28}{row['gb_per_s']:8.2f}{row['probe_gb_per_s']:8.2f}{share}"
          f"{peer('eager')}{peer('compile')}{row['rounds_steady']:4} of {row['rounds']}"
          f"{note_of(row)}", flush=True)


def torch_version():
    return run([sys.executable, "-c", "import torch; print(torch.__version__)"]).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--elements", type=int, default=16 << 20, help="of each stream")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 4 Mi elements")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.elements = 3, 4 << 20
    program = [f"{args.bin}/dtrain-bench-kernels", "--elements", str(args.elements)]
    known = json.loads(run([*program, "--list"]))
    cases = [case for case in known["cases"] if args.filter in case["name"]]
    if not cases:
        sys.exit(f"bench: --filter {args.filter!r} matches no case; there are: "
                 f"{', '.join(case['name'] for case in known['cases'])}")
    args.json = report.begin("kernels", args.json)
    ours, twin = Server([*program, "--serve"]), None
    if not args.no_peers:
        shapes = {case["name"]: case["shape"] for case in cases if case["shape"]}
        twin = Server([sys.executable, TWIN, "--elements", str(known["elements"]), "--hidden",
                       str(known["hidden"]), "--threads", str(args.threads), "--shapes",
                       json.dumps(shapes)], env={**os.environ, **NO_PAGE_FAULTS})
    print(f"{known['cpu']}, variant {known['variant']}, {known['elements']} elements, "
          f"{args.threads} threads, {args.rounds} rounds, {report.taken()['busy_cores']:.2f} cores busy "
          "with other work\n"
          f"{'kernel':28}{'GB/s':>8}{'probe':>8}{'%':>6}{'eager':>9}{'ratio':>7}{'compile':>9}"
          f"{'ratio':>7}  steady")
    rows = []
    for case in cases:
        rows.append(summary(case, *measure(case, args, ours, twin)))
        print_row(rows[-1])
    for server in filter(None, (ours, twin)):
        server.close()
    alone = [row["name"] for row in rows if "eager" not in row]
    if alone and twin is not None:
        print(f"without a twin in torch: {', '.join(alone)}")
    goals = report.print_goals(all_goals({"rows": rows}))
    facts = {key: known[key] for key in ("variant", "elements", "hidden")}
    report.write_results(args.json, "kernels", rounds=args.rounds, threads=args.threads,
                         torch=torch_version() if twin is not None else None, rows=rows, goals=goals,
                         **facts)


if __name__ == "__main__":
    main()
