"""A rank that is killed or stopped under `dtrain launch`: when it says so, and when training takes the next step.
peer_faults.py has the same of the peers."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

from jobs import command_line, descendants, is_rank, records, series
from runner import fail, set_words

KILL_AT_STEP, STEPS, RESTARTS = 50, 200, 3
WITHIN_S = 120
# Steps of a few milliseconds, so that what is measured is the recovery.
SMALL = ("model.hidden_size=64", "model.intermediate_size=128", "model.num_hidden_layers=2",
         "model.num_attention_heads=4", "model.num_key_value_heads=4", "data.sequence_length=64",
         "train_batch_size=8", "train_micro_batch_size_per_gpu=4", "eval_interval=0", f"train_steps={STEPS}")
# The same bits in every run, so that a step after the fault can be told from a wrong one.
OURS = (*SMALL, 'sample={"bytes":0}', "deterministic=true", "checkpoint.interval=10")


class Said(threading.Thread):
    """What a process says, line by line, each with its time."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.lines = process, []
        self.start()

    def run(self):
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append((time.time(), line))

    def first(self, text, after):
        """When the first line with `text` came that is later than `after`; None before."""
        return next((moment for moment, line in list(self.lines) if moment >= after and text in line), None)

    def text(self):
        return "".join(line for _, line in self.lines)


def signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_job(process):
    """Kills all processes of a job that runs. They are stopped first, so that none starts another one meanwhile."""
    if process.poll() is not None:
        return
    found = set()
    while new := {process.pid, *descendants(process.pid)} - found:
        signal_all(new, signal.SIGSTOP)
        found |= new
    signal_all(found, signal.SIGKILL)
    process.wait(WITHIN_S)


def wait_for(look, process, said, what):
    """The first result of `look` that is not None."""
    end = time.monotonic() + WITHIN_S
    while (found := look()) is None:
        if (code := process.poll()) is not None or time.monotonic() > end:
            end_job(process)
            sys.exit(f"bench: {what} did not come within {WITHIN_S} s, exit {code}:\n{said.text()[-3000:]}")
        time.sleep(0.002)
    return found


def first_within(look, within_s):
    """The first result of `look` that is not None; None if none comes in time."""
    end = time.monotonic() + within_s
    while (found := look()) is None and time.monotonic() < end:
        time.sleep(0.002)
    return found


def variable(pid, name):
    """A variable of a process's environment; None without it, or when the process is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            items = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
    except OSError:
        return None
    value = items.get(name.encode())
    return None if value is None else value.decode()


def rank_one(launcher, of_rank):
    """Its process id; None before there is one."""
    return next((pid for pid in descendants(launcher)
                 if of_rank(command_line(pid)) and variable(pid, "RANK") == "1"), None)


def after_kill(killed, seen, steps):
    """{"seen_s", "next_step_s", "new_step_s"}: seconds from the kill to the launcher's word, to the end of
    the first step behind that, and to that of the first one that had not been taken before. `steps`:
    [(time, step)]; None while one is still to come. A step that was nearly done may end behind the kill."""
    last = max(step for moment, step in steps if moment < seen)
    later = [(moment, step) for moment, step in steps if moment >= seen]
    new = next((moment for moment, step in later if step > last), None)
    if new is None:
        return None
    return {"seen_s": seen - killed, "next_step_s": later[0][0] - killed, "new_step_s": new - killed}


def started(command, env, steps_of):
    """A job that has taken KILL_AT_STEP steps, and what it says."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=env)
    said = Said(process)
    wait_for(lambda: any(step >= KILL_AT_STEP for _, step in steps_of()) or None, process, said,
             f"step {KILL_AT_STEP}")
    return process, said


def await_end(process, said):
    try:
        process.wait(WITHIN_S)
    except subprocess.TimeoutExpired:
        end_job(process)
        sys.exit(f"bench: the job did not end within {WITHIN_S} s of its fault:\n{said.text()[-3000:]}")
    said.join()


def kill_a_rank(command, env, of_rank, steps_of):
    """Runs a job of which rank 1 is killed, to its end. `steps_of()`: its steps so far, as after_kill wants
    them."""
    process, said = started(command, env, steps_of)
    victim = wait_for(lambda: rank_one(process.pid, of_rank), process, said, "rank 1")
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    seen = wait_for(lambda: said.first(str(victim), killed), process, said, "a word on the killed rank")
    await_end(process, said)
    found = after_kill(killed, seen, steps_of())
    if process.returncode != 0 or found is None:
        fail(command, process.returncode, said.text())
    return found


def losses_of(run_dir):
    """[(step, loss)] in the order in which they were taken."""
    return [(line["step"], loss) for line, loss in series(records(run_dir), "train/loss")]


def ours_command(args, run_dir, sets=(), flags=()):
    return [f"{args.bin}/dtrain", "launch", "--nproc-per-node", "2", "--max-restarts", str(RESTARTS), *flags,
            "--run-dir", run_dir, "--", f"{args.bin}/dtrain-gpt", args.config, *set_words((*OURS, *sets))]


def check_losses(run_dir, right):
    """Every step of the run, taken once or again, must have the loss that it has without a fault."""
    taken = losses_of(run_dir)
    wrong = [(step, loss, right[step]) for step, loss in taken if loss != right[step]]
    if wrong or {step for step, _ in taken} != set(right):
        sys.exit(f"bench: a rank was killed, and then {len(wrong)} of {len(taken)} steps were others; the first: "
                 f"{wrong[:1]}; steps of the run {min(taken)[0]} to {max(taken)[0]}, of {len(right)}")


def kill_ours(args, folder, right, flags=()):
    run_dir = f"{folder}/killed"
    found = kill_a_rank(ours_command(args, run_dir, flags=flags), None, is_rank, lambda: [
        (line["ts"], line["step"]) for line in records(run_dir) if line["kind"] == "step"])
    check_losses(run_dir, right)
    return found


def after_hang(stopped, events, lines):
    """{"seen_s", "next_step_s", "limit_s", "right_rank"} of a job whose rank 1 was stopped, from the launcher's
    events and rank 0's records. A stopped rank is continued before it is ended, and may then end the step that
    it was in; the next step is the first one of the next start."""
    [hang] = [event for event in events if event["event"] == "hang"]
    begun = next((line["ts"] for line in lines if "restored" in line and line["ts"] > hang["ts"]), hang["ts"])
    step = next(line["ts"] for line in lines if line["kind"] == "step" and line["ts"] > begun)
    return {"seen_s": hang["ts"] - stopped, "next_step_s": step - stopped, "limit_s": hang["limit_s"],
            "right_rank": hang["ranks"] == [1]}


def hang_ours(args, folder, right):
    """SIGSTOP of rank 1, which the launcher has to name. The limit that it has learnt is part of the result."""
    run_dir = f"{folder}/stopped"
    command = ours_command(args, run_dir)
    process, said = started(command, None, lambda: [
        (line["ts"], line["step"]) for line in records(run_dir) if line["kind"] == "step"])
    victim = wait_for(lambda: rank_one(process.pid, is_rank), process, said, "rank 1")
    stopped = time.time()
    os.kill(victim, signal.SIGSTOP)
    await_end(process, said)
    if process.returncode != 0:
        fail(command, process.returncode, said.text())
    check_losses(run_dir, right)
    with open(f"{run_dir}/events.jsonl", encoding="utf-8") as file:
        return after_hang(stopped, list(map(json.loads, file)), records(run_dir))
