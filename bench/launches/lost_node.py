"""A host that is gone from one moment to the next: its cable is cut and all that runs on it is killed. When the
job says so, and when training takes the next step, with a spare host and without; beside torchrun's elastic jobs."""
import os
import signal
import subprocess
import time

import launch_faults as faults
from fault_cluster import Broken, Cluster, address
from peers import twin_environment, twin_path
from random_faults import Fault
from runner import set_words

LOST = Fault(0, "lose_node", "partner")
PORT = 29500
# The losses of another number of ranks differ by roundings, and so after some steps by more than these.
SAME_SUM = 1e-3


def steps_of(run_dir):
    return [(line["ts"], line["step"]) for line in faults.records(run_dir) if line["kind"] == "step"]


def ours(args, folder, with_spare, right):
    """`right`: {step: loss} of a job of two ranks on one host."""
    sets = (*faults.OURS, "train_steps=100000")
    program = [f"{os.path.abspath(args.bin)}/dtrain-gpt", os.path.abspath(args.config)]
    with Cluster(f"{os.path.abspath(args.bin)}/dtrain", folder, program, dict(os.environ), 96) as cluster:
        if with_spare:
            cluster.start_all(sets)
        else:
            cluster.start(0, sets)
            cluster.start(1)
        cluster.await_that(lambda: any(step >= faults.KILL_AT_STEP for _, step in steps_of(cluster.run_dir)),
                           f"step {faults.KILL_AT_STEP}")
        lost = time.time()
        cluster.begin(LOST)
        cluster.await_that(lambda: "is lost" in cluster.said(0, cluster.marks[0]), "a word on the lost node")
        seen = time.time()
        found = {}

        def has_found():
            found.update(faults.after_kill(lost, seen, steps_of(cluster.run_dir)) or {})
            return bool(found)

        cluster.await_that(has_found, "a new step")
        cluster.agents[1].wait()
        cluster.agents[0].send_signal(signal.SIGINT)
        cluster.agents[0].wait(faults.WITHIN_S)
        wrong = [(step, loss, right[step]) for step, loss in faults.losses_of(cluster.run_dir) if step in right
                 and abs(loss - right[step]) > (0 if with_spare else SAME_SUM * right[step])]
        if wrong:
            raise Broken(f"a node was lost, and then {len(wrong)} steps were others; the first: {wrong[0]}")
        return found


def torchrun(args, folder, python):
    """Two hosts with torchrun's agents, which may go on with one."""
    facts = f"{folder}/facts.jsonl"
    program = [python, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc_per_node", "1", "--max-restarts",
               str(faults.RESTARTS), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address(0)}:{PORT}",
               "--rdzv-id", "bench", "--rdzv-conf"]
    environment = {**twin_environment(), "GLOO_SOCKET_IFNAME": "wire0"}
    with Cluster("dtrain", folder, ["dtrain-gpt"], environment, 16) as cluster:
        for node in (0, 1):
            with open(f"{folder}/node-{node}.log", "w", encoding="utf-8") as log:
                cluster.agents[node] = subprocess.Popen(
                    ["ip", "netns", "exec", cluster.spaces[node], *program,
                     f"is_host={int(node == 0)},last_call_timeout=1", "--local-addr", address(node), twin_path("ddp"),
                     os.path.abspath(args.config), "--facts", facts,
                     *set_words((*faults.SMALL, "train_steps=100000"))],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment)

        def steps():
            return [(line["ts"], line["step"]) for line in faults.facts_so_far(facts) if line["kind"] == "step"]

        cluster.await_that(lambda: any(step >= faults.KILL_AT_STEP for _, step in steps()),
                           f"step {faults.KILL_AT_STEP}", faults.WITHIN_S)
        lost = time.time()
        cluster.lose(1)
        # A step may be nearly done.
        later = faults.first_within(lambda: next((moment for moment, _ in steps() if moment > lost + 1), None),
                                    faults.NOTICED_WITHIN_S)
        return {"next_step_s": later - lost} if later else {"not_within_s": faults.NOTICED_WITHIN_S}
