"""A host that is gone from one moment to the next: its cable is cut and all that runs on it is killed. When the
job says so, and when training takes the next step, with a spare host and without; beside torchrun's elastic jobs and
torchft's groups."""
import os
import signal
import time

import launch_faults as faults
import peer_faults
import torchft_job
from fault_cluster import Broken, Cluster, address, is_connected
from peers import twin_path
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


def peer(folder, with_spare, facts, words_of, has_spare):
    """What peer_faults.await_next_step gives of the loss of the second of two hosts. `words_of(node)`: the peer's
    program on a host; `has_spare(cluster, steps)`: whether the third one is ready."""
    environment, steps = {**peer_faults.environment(), "GLOO_SOCKET_IFNAME": "wire0"}, peer_faults.Steps(facts)
    with Cluster("dtrain", folder, ["dtrain-gpt"], environment, 16) as cluster:
        for node in (0, 1):
            cluster.start_program(node, words_of(node))
        cluster.await_that(lambda: any(step >= faults.KILL_AT_STEP for _, step in steps.taken_by(ranks=2)),
                           f"step {faults.KILL_AT_STEP} of two ranks", faults.WITHIN_S)
        if with_spare:
            cluster.start_program(2, words_of(2))
            cluster.await_that(lambda: has_spare(cluster, steps), "a spare", faults.WITHIN_S)
        lost = time.time()
        cluster.lose(1)
        return peer_faults.await_next_step(steps, lost, time.time())


def torchrun(args, folder, with_spare, python):
    """Hosts with torchrun's agents, which may go on with one. A third one waits until there is room for it."""
    facts = f"{folder}/facts.jsonl"

    def words_of(node):
        return [python, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc_per_node", "1", "--max-restarts",
                str(faults.RESTARTS), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address(0)}:{PORT}",
                "--rdzv-id", "bench", "--rdzv-conf", f"is_host={int(node == 0)},last_call_timeout=1",
                "--local-addr", address(node), twin_path("ddp"), os.path.abspath(args.config), "--facts", facts,
                *peer_faults.LIMIT, *set_words(peer_faults.SETS)]

    # An agent says nothing when it begins to wait, which it does within a second of its first connection; the others
    # notice the loss many seconds later.
    return peer(folder, with_spare, facts, words_of, lambda cluster, _: any(
        is_connected(pid, PORT) for pid in cluster.pids(2)))


def torchft(args, folder, with_spare):
    """A replica group on each host, and the lighthouse on the first."""
    facts = f"{folder}/facts.jsonl"
    return peer(folder, with_spare, facts, lambda node: torchft_job.host_command(
        args, facts, node, address(node), address(0), with_spare), lambda _, steps: bool(steps.taken_by(ranks=3)))
