"""Faults under torchrun and torchft: what both have in common, and torchrun's. A peer's figure is the end of the first
step that began after the fault, by the facts that its twin leaves; its launcher's word counts where it says which
process has failed."""
import json
import os
import time

import launch_faults as faults
from peers import is_rank_of, twin_command, twin_environment

WITHIN_S = 120
# Jobs are ended by the benchmark.
SETS = (*faults.SMALL, "train_steps=100000")
# A collective's limit under both peers: torchft's own example gives gloo 5 s. Torch's own is half an hour, with which
# torchrun would get over no hang.
COLLECTIVE_S = 5
LIMIT = ("--timeout", str(COLLECTIVE_S))
# Torchrun's ranks meet at one store for all attempts, where the new ones may read the addresses of the old ones
# (pytorch issue 135712). With this variable each attempt has a store of its own.
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

# {peer: its limits and its twin}, and {fault: {peer: how it gets over it}}, as the results file keeps them.
LIMITS = {
    "torchrun": f"collectives fail after {COLLECTIVE_S} s (torch's own limit: 1,800 s); an agent counts as lost after "
                "3 missed messages of 5 s each, its own values; a rank that does not end gets SIGKILL 30 s after "
                f"SIGTERM, a time that no option sets; {OWN_STORE}=1, without which new ranks may read addresses of "
                "the old ones (pytorch issue 135712). Its twin has no checkpoints and begins at the first step again",
    "torchft": f"collectives fail after {COLLECTIVE_S} s, as in its own example; a group counts as dead after 5 s "
               "without a heartbeat, its own value; a quorum waits 1 s for groups that have not asked for it (its own "
               "value: 60 s). Its twin replaces the hook of its DDP, which ends the process where a collective has "
               "failed (torchft pull request 294)"}
NOTES = {
    "killed": {"torchrun": "starts all ranks anew",
               "torchft": "starts the killed group anew, while the other one goes on in its process with half of the "
                          "batch"},
    "hang": {"torchrun": "sees the ends of processes alone, so it names the rank whose collective has failed, and "
                         "starts all ranks anew",
             "torchft": "names no rank, and the other group goes on when its collective has failed, with half of "
                        "the batch"},
    "spare": {"torchrun": "starts all ranks anew, on the host whose agent has waited (--nnodes 1:2)",
              "torchft": "has a third group that trains along and adds nothing to the gradients (FIXED_WITH_SPARES) "
                         "until it takes the lost one's place"},
    "no spare": {"torchrun": "starts the ranks of the first host anew (--nnodes 1:2)",
                 "torchft": "goes on with half of the batch"}}


def environment():
    return {**twin_environment(), OWN_STORE: "1"}


class Steps:
    """The steps of a twin's facts, which the twin still writes. Looks are many, so each reads only what is new."""

    def __init__(self, path):
        self.path, self.end = path, 0

    def new(self):
        """The facts of the steps that have come since the last look."""
        if not os.path.exists(self.path):
            return []
        with open(self.path, "rb") as file:
            file.seek(self.end)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self.end += len(whole) + 1
        return [fact for fact in map(json.loads, whole.splitlines()) if fact["kind"] == "step"]

    def taken_by(self, ranks):
        """[(time, step)] of the new ones that so many ranks have taken: they need not all be there from the first."""
        return [(fact["ts"], fact["step"]) for fact in self.new() if fact["ranks"] == ranks]

    def begun_after(self, moment):
        """When the first of the new ones ended that began after `moment`; None while there is none. One that was
        under way may still end without the rank that is gone."""
        return next((fact["ts"] for fact in self.new() if fact["ts"] - fact["seconds"] > moment), None)


def await_next_step(steps, moment, made):
    """{"next_step_s"} of a fault that was begun at `moment` and made by `made`; {"not_within_s"} if no step comes."""
    later = faults.first_within(lambda: steps.begun_after(made), WITHIN_S)
    return {"not_within_s": WITHIN_S} if later is None else {"next_step_s": later - moment}


def rank_fault(command, facts, victim_of, by):
    """{"seen_s", "next_step_s"} of a job of two ranks after the signal `by` for the process that
    `victim_of(launcher)` finds; without "seen_s" where the launcher does not say that this process has failed."""
    steps = Steps(facts)
    process, said = faults.started(command, environment(), lambda: steps.taken_by(ranks=2))
    victim = faults.wait_for(lambda: victim_of(process.pid), process, said, "the rank that gets the fault")
    moment = time.time()
    os.kill(victim, by)
    found = await_next_step(steps, moment, time.time())
    faults.end_job(process)
    said.join()
    if (seen := said.first(f"(pid: {victim})", moment)) is not None:
        found["seen_s"] = seen - moment
    return found


def torchrun(args, folder, by):
    facts = f"{folder}/facts.jsonl"
    command = twin_command("ddp", args.config, facts, SETS, LIMIT)
    at = command.index("torch.distributed.run") + 1
    command[at:at] = ["--max-restarts", str(faults.RESTARTS)]
    return rank_fault(command, facts, lambda launcher: faults.rank_one(launcher, is_rank_of("ddp")), by)
