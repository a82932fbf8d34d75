"""./dev bench launch: how soon `dtrain launch` starts ranks and gets over a killed one, beside torchrun.

start: from the command to the first forward pass of 2 ranks on this host, and of 1 rank on each of two
hosts (network namespaces with an sshd each; torchrun is started over ssh on both at the same time). Both
train the example's GPT, torchrun's with DDP. torch's wheel of PyPI brings CUDA's libraries, and its twin
maps them; where --cpu-python has torch's wheel for CPUs, a twin that maps none runs in the same rounds,
and the goals are set against that. help: `dtrain --help`. killed: SIGKILL of rank 1 of 2, with
--max-restarts; the seconds to the launcher's word about it, to the end of the next step, and to the first
step that had not been taken before, with the survivor's process and (--no-reuse) with new ones. hang: the
same of SIGSTOP. node: one of two hosts loses its power and its network, with a third one as a spare and
without. Every loss of dtrain's run must be that of a run without the fault. torchrun takes the same faults,
and torchft where its package is installed; launches/peer_faults.py says with which limits. simulated: the
start of thousands of ranks, with the agents' and ranks' real messages. random: the random faults of
tests/faults/random_faults_test.py, for --fault-seconds.

Programs take turns in each round; a ratio is of one round, and tables and goals show medians. A run
replaces the parts that it measures in the results file.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "launches"))

import fault_run  # noqa: E402
import launch_faults as faults  # noqa: E402
import links  # noqa: E402
import lost_node  # noqa: E402
import peer_faults  # noqa: E402
import ssh_hosts  # noqa: E402
import torchft_job  # noqa: E402
from jobs import QUIET, first_forward, launch_command, records, run_job  # noqa: E402
from peers import read_facts, twin_command, twin_environment, twin_path  # noqa: E402
from report import begin, measure_parts  # noqa: E402
from rounds import back_and_forth  # noqa: E402
from runner import run, set_words  # noqa: E402
from step import CPU_PYTHON  # noqa: E402

PORT = 29500
SETS = (*QUIET, "train_steps=1")
HELP_RUNS = 20
# The keys that tell the rows of a part of the results file from each other.
PARTS = {part: ("name",) for part in ("start", "hosts", "help", "killed", "hang", "node", "simulated", "random")}
# {way: the head of its column}
WAYS = {"dtrain": "dtrain", "dtrain --no-reuse": "dtrain with `--no-reuse`", "torchrun": "torchrun",
        "torchrun-cpu": "torchrun without CUDA's libraries", "torchft": "torchft"}
USUAL = [part for part in PARTS if part != "random"]  # All of them within half an hour: the peers' faults take long.
FIRST_FORWARD_S, OF_TORCHRUN, TWO_HOSTS_OF_TORCHRUN, HELP_S = 0.5, 1 / 8, 1 / 4, 0.020
SEEN_S, NEXT_STEP_S = 0.050, 0.3
NODE_SEEN_S, NODE_WITH_SPARE_S, NODE_WITHOUT_S = 1, 2, 5
SIMULATED_S = {2048: 1, 16384: 8}
GOODPUT, FAULT_EVERY_S = 0.95, 20
JOB_TIMEOUT_S = 300


def in_folder(measure):
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-", ignore_cleanup_errors=True) as folder:
        return measure(folder)


def pythons(args):
    """{way: the Python of its torchrun}"""
    found = {"torchrun": sys.executable}
    if os.path.exists(args.cpu_python):
        found["torchrun-cpu"] = os.path.abspath(args.cpu_python)
    return found


def peer_first_forward(facts):
    return next(line["ts"] for line in read_facts(facts) if line["kind"] == "first_forward")


def start_dtrain(args, folder):
    start, _ = run_job(launch_command(args, f"{folder}/run", args.config, SETS), None)
    return first_forward(records(f"{folder}/run")) - start


def start_torchrun(args, folder, python):
    facts = f"{folder}/facts.jsonl"
    start, _ = run_job(twin_command("ddp", args.config, facts, SETS, python=python), twin_environment())
    return peer_first_forward(facts) - start


def start(command):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def hosts_dtrain(args, folder, hosts):
    begin_at = time.time()
    links.Link.finish([start(hosts.on_first([
        f"{os.path.abspath(args.bin)}/dtrain", "launch", "--hostfile", hosts.hostfile, "--launcher-args",
        hosts.ssh_options, "--run-dir", f"{folder}/run", "--", f"{os.path.abspath(args.bin)}/dtrain-gpt",
        os.path.abspath(args.config), *set_words(SETS)]))], JOB_TIMEOUT_S)
    return first_forward(records(f"{folder}/run")) - begin_at


def hosts_torchrun(args, folder, hosts, python):
    """Each host's torchrun knows the first one's address, which needs no meeting point."""
    facts = f"{folder}/facts.jsonl"
    threads = {key: value for key, value in twin_environment().items()
               if key in ("OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")}
    begin_at = time.time()
    links.Link.finish([start(hosts.over_ssh(name, [
        python, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(node), "--nproc_per_node", "1",
        "--master_addr", links.ADDRESSES[0], "--master_port", str(PORT), twin_path("ddp"),
        os.path.abspath(args.config), "--facts", facts, *set_words(SETS)],
        {**threads, "GLOO_SOCKET_IFNAME": hosts.link.cables[node]}))
        for node, name in enumerate(ssh_hosts.NAMES)], JOB_TIMEOUT_S)
    return peer_first_forward(facts) - begin_at


def interleaved(args, what, ways):
    """[{way: its figure}] of all rounds. `ways`: {way: function of a folder}."""
    taken = []
    for i in range(args.rounds):
        taken.append({way: in_folder(ways[way]) for way in back_and_forth(ways, i)})
        print(f"{what}, round {i + 1}/{args.rounds}: " + ", ".join(
            f"{way} {value if isinstance(value, dict) else f'{value:.3f} s'}" for way, value in taken[-1].items())
            + f"; load {os.getloadavg()[0]:.1f}", flush=True)
    return taken


def measure_start(args):
    ways = {"dtrain": lambda folder: start_dtrain(args, folder)}
    for way, python in pythons(args).items():
        ways[way] = lambda folder, python=python: start_torchrun(args, folder, python)
    return [{"name": "2 ranks", "rounds": interleaved(args, "start", ways)}]


def measure_hosts(args):
    if why := ssh_hosts.why_not():
        print(f"bench: no two hosts here: {why}", file=sys.stderr)
        return []
    with links.Link() as link, ssh_hosts.SshHosts(link) as hosts:
        ways = {"dtrain": lambda folder: hosts_dtrain(args, folder, hosts)}
        for way, python in pythons(args).items():
            ways[way] = lambda folder, python=python: hosts_torchrun(args, folder, hosts, python)
        return [{"name": "1 rank on each of 2 hosts", "rounds": interleaved(args, "hosts", ways)}]


def help_s(args):
    begin_at = time.perf_counter()
    run([f"{args.bin}/dtrain", "--help"])
    return time.perf_counter() - begin_at


def measure_help(args):
    return [{"name": "dtrain --help", "rounds": [{"dtrain": help_s(args)} for _ in range(HELP_RUNS)]}]


def without_fault(args):
    """{step: loss} of the job of the faults when nothing happens to it."""
    def losses(folder):
        run(faults.ours_command(args, f"{folder}/right"))
        return dict(faults.losses_of(f"{folder}/right"))

    return in_folder(losses)


def fault_row(args, name, fault, ours, peers):
    """A fault of dtrain's jobs and of the peers'. `fault`: its name in peer_faults.NOTES; `ours` and `peers`:
    {way: function of a folder}."""
    if "torchft" in peers and (why := torchft_job.why_not()):
        print(f"bench: without torchft: {why}", file=sys.stderr)
        del peers["torchft"]
    return {"name": name, "rounds": interleaved(args, name, {**ours, **peers}),
            **{key: {way: texts[way] for way in peers}
               for key, texts in (("limits", peer_faults.LIMITS), ("peers", peer_faults.NOTES[fault]))}}


def rank_faults(args, by):
    return {"torchrun": lambda folder: peer_faults.torchrun(args, folder, by),
            "torchft": lambda folder: torchft_job.fault(args, folder, by)}


def measure_killed(args):
    right = without_fault(args)
    ours = {"dtrain": lambda folder: faults.kill_ours(args, folder, right),
            "dtrain --no-reuse": lambda folder: faults.kill_ours(args, folder, right, ["--no-reuse"])}
    return [fault_row(args, "SIGKILL of rank 1", "killed", ours, rank_faults(args, signal.SIGKILL))]


def measure_hang(args):
    right = without_fault(args)
    ours = {"dtrain": lambda folder: faults.hang_ours(args, folder, right)}
    return [fault_row(args, "SIGSTOP of rank 1", "hang", ours, rank_faults(args, signal.SIGSTOP))]


def measure_node(args):
    if why := links.why_not():
        print(f"bench: no hosts here: {why}", file=sys.stderr)
        return []
    right = without_fault(args)
    rows = []
    for fault, with_spare in (("spare", True), ("no spare", False)):
        def way(measure, *more, with_spare=with_spare):
            return lambda folder: measure(args, folder, with_spare, *more)

        rows.append(fault_row(args, f"loss of a host, {'with' if with_spare else 'without'} a spare", fault,
                              {"dtrain": way(lost_node.ours, right)},
                              {"torchrun": way(lost_node.torchrun, sys.executable),
                               "torchft": way(lost_node.torchft)}))
    return rows


def measure_simulated(args):
    """The program prints a line of JSON for each number of ranks: {"ranks", "seconds"}."""
    program = f"{args.bin}/bench_launch_start"
    if not os.path.exists(program):
        print(f"bench: no simulated start: {program} is not built", file=sys.stderr)
        return []
    rounds = {ranks: [] for ranks in SIMULATED_S}
    for _ in range(args.rounds):
        for line in map(json.loads, run([program, *map(str, SIMULATED_S)]).splitlines()):
            rounds[line["ranks"]].append({"dtrain": line["seconds"]})
    return [{"name": f"{ranks:,} simulated ranks", "ranks": ranks, "rounds": taken} for ranks, taken in rounds.items()]


def measure_random(args):
    if why := links.why_not():
        print(f"bench: no hosts here: {why}", file=sys.stderr)
        return []

    def measure(folder):
        program = [os.path.abspath(f"{args.bin}/dtrain-gpt"), os.path.abspath(args.config),
                   *set_words((*faults.SMALL, "train_batch_size=64"))]
        return fault_run.measure(os.path.abspath(f"{args.bin}/dtrain"), program, dict(os.environ), f"{folder}/run",
                                 args.seed, args.fault_seconds, FAULT_EVERY_S, min(600, args.fault_seconds / 4),
                                 lambda text: print(f"random: {text}", flush=True))

    figures = in_folder(measure)
    if wrong := fault_run.problems(figures):
        sys.exit(f"bench: random faults, seed {args.seed}: {'; '.join(wrong)}")
    return [{"name": f"{args.fault_seconds:g} s of random faults", **figures}]


def median(row, way, key=None):
    """Over the rounds in which it took part; None where it was not measured."""
    values = [r[way] if key is None else r[way].get(key) for r in row["rounds"] if way in r]
    return statistics.median(values) if values and None not in values else None


def over_torchrun(row):
    """(median of the rounds' ratios, end of the goal's name), against the twin without CUDA's libraries if
    that was measured."""
    cpu = "torchrun-cpu" in row["rounds"][0]
    ratios = [r["dtrain"] / r["torchrun-cpu" if cpu else "torchrun"] for r in row["rounds"]]
    return statistics.median(ratios), "_without_cuda" if cpu else ""


def all_goals(results):
    """The goals of a results file."""
    goals = []
    for row in results.get("start", []):
        ratio, twin = over_torchrun(row)
        goals += [("launch.first_forward_s", median(row, "dtrain"), "<=", FIRST_FORWARD_S),
                  (f"launch.first_forward_vs_torchrun{twin}", ratio, "<=", OF_TORCHRUN)]
    for row in results.get("hosts", []):
        ratio, twin = over_torchrun(row)
        goals.append((f"launch.two_hosts_first_forward_vs_torchrun{twin}", ratio, "<=", TWO_HOSTS_OF_TORCHRUN))
    goals += [("launch.help_s", median(row, "dtrain"), "<=", HELP_S) for row in results.get("help", [])]
    for row in results.get("killed", []):
        after = [r["dtrain"]["next_step_s"] - r["dtrain"]["seen_s"] for r in row["rounds"]]
        goals += [("launch.killed_rank_seen_s", median(row, "dtrain", "seen_s"), "<=", SEEN_S),
                  ("launch.killed_rank_next_step_after_seen_s", statistics.median(after), "<=", NEXT_STEP_S)]
    for row in results.get("hang", []):
        # Its limit is max(1 s, 5 times the p99 of a step).
        goals += [("launch.hang_seen_s", median(row, "dtrain", "seen_s"), "<=", median(row, "dtrain", "limit_s")),
                  ("launch.hang_right_rank", min(int(r["dtrain"]["right_rank"]) for r in row["rounds"]), ">=", 1)]
    for row in results.get("node", []):
        with_spare = row["name"].endswith("with a spare")
        way = "with_spare" if with_spare else "without_spare"
        goals += [(f"launch.lost_node_seen_s.{way}", median(row, "dtrain", "seen_s"), "<=", NODE_SEEN_S),
                  (f"launch.lost_node_next_step_s.{way}", median(row, "dtrain", "next_step_s"), "<=",
                   NODE_WITH_SPARE_S if with_spare else NODE_WITHOUT_S)]
    goals += [(f"launch.simulated_{row['ranks']}_ranks_s", median(row, "dtrain"), "<=", SIMULATED_S[row["ranks"]])
              for row in results.get("simulated", [])]
    for row in results.get("random", []):
        goals += [("launch.random_faults_goodput", row["goodput"], ">=", GOODPUT),
                  ("launch.random_faults_lost_steps", row["lost_beyond_promise"], "<=", 0),
                  ("launch.random_faults_orphans", len(row["orphans"]), "<=", 0),
                  ("launch.random_faults_false_restarts", row["false_restarts"], "<=", 0)]
    return goals


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--config", default="examples/configs/gpt.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", default=USUAL, choices=list(PARTS))
    parser.add_argument("--fault-seconds", type=float, default=3600, help="of the part random: 3600")
    parser.add_argument("--seed", type=int, default=1, help="of the part random: 1")
    parser.add_argument("--cpu-python", default=CPU_PYTHON, metavar="PYTHON",
                        help="one with torch's wheel for CPUs, for a twin that maps nothing of CUDA's")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: allowed: 1 or more")
    return args


def main():
    args = parse()
    args.json = begin("launch", args.json)
    measure = {"start": measure_start, "hosts": measure_hosts, "help": measure_help, "killed": measure_killed,
               "hang": measure_hang, "node": measure_node, "simulated": measure_simulated, "random": measure_random}
    measure_parts(args.json, "launch", PARTS, {part: lambda part=part: measure[part](args) for part in PARTS
                                               if part in args.parts}, all_goals)


if __name__ == "__main__":
    main()
