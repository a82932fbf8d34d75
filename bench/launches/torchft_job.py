"""Two replica groups of torchft, each under a torchrun of its own, with their lighthouse; and how they get over a
process that is killed or stopped. As a program it is the job: it ends when the first group has ended."""
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import launch_faults as faults  # noqa: E402
from jobs import command_line, descendants  # noqa: E402
from peers import twin_environment, twin_path  # noqa: E402
from runner import set_words  # noqa: E402

LIGHTHOUSE_PORT, FIRST_PORT = 29510, 29600
GROUPS = 2
# The lighthouse's own join timeout, a minute, would be part of every fault.
LIGHTHOUSE = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "1000", "--bind",
              f"127.0.0.1:{LIGHTHOUSE_PORT}"]


def lighthouse():
    """The program, which pip puts beside this Python."""
    beside = os.path.join(os.path.dirname(sys.executable), "torchft_lighthouse")
    return beside if os.path.exists(beside) else shutil.which("torchft_lighthouse")


def why_not():
    """"" where torchft is installed."""
    if importlib.util.find_spec("torchft") is None or lighthouse() is None:
        return "it is not installed (pip install torchft)"
    return ""


def is_rank(command):
    return twin_path("torchft") in command and "-u" in command


def steps_of(facts):
    return [(line["ts"], line["step"]) for line in faults.facts_so_far(facts) if line["kind"] == "step"]


def process_of_group_one(launcher, of_rank):
    return next((pid for pid in descendants(launcher) if of_rank(command_line(pid))
                 and "--group=1" in command_line(pid)), None)


def fault(args, folder, by):
    """{"next_step_s"} after the signal `by` for the process of the second group."""
    facts = f"{folder}/facts.jsonl"
    command = [sys.executable, os.path.abspath(__file__), args.config, "--facts", facts, *set_words(faults.SMALL)]
    process, said = faults.started(command, twin_environment(), lambda: steps_of(facts))
    victim = faults.wait_for(lambda: process_of_group_one(process.pid, is_rank), process, said, "the second group")
    moment = time.time()
    last = max(step for _, step in steps_of(facts))
    os.kill(victim, by)
    # The other group may already have all that it needs for the step that is under way.
    later = faults.first_within(lambda: next((at for at, step in steps_of(facts) if at > moment and step > last + 1),
                                             None), faults.WITHIN_S)
    left = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    process.wait(faults.WITHIN_S)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    said.join()
    if later is None:
        sys.exit(f"bench: torchft has not got over it within {faults.WITHIN_S} s:\n{said.text()[-3000:]}")
    return {"next_step_s": later - moment}


def main():
    # A signal ends this program at once; what it has started is ended by who sent it.
    processes = [subprocess.Popen([lighthouse(), *LIGHTHOUSE])]
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{LIGHTHOUSE_PORT}"}
    for group in range(GROUPS):
        processes.append(subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", "1",
             "--master_port", str(FIRST_PORT + group), "--max-restarts", str(faults.RESTARTS), twin_path("torchft"),
             *sys.argv[1:], f"--group={group}", f"--groups={GROUPS}"], env=environment))
    sys.exit(processes[1].wait())


if __name__ == "__main__":
    main()
