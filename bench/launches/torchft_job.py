"""Replica groups of torchft, each under a torchrun of its own, with their lighthouse; and how they get over a process
that is killed or stopped. As a program it is the part of the job on one host, with the address that it is given; it
ends when its first group has ended. The other arguments are the twin's."""
import argparse
import importlib.util
import os
import shutil
import subprocess
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import launch_faults as faults  # noqa: E402
import peer_faults  # noqa: E402
from jobs import command_line, descendants  # noqa: E402
from peers import twin_path  # noqa: E402
from runner import set_words  # noqa: E402

LOCAL = "127.0.0.1"
LIGHTHOUSE_PORT, FIRST_PORT = 29510, 29600
GROUPS = 2
# The lighthouse's own join timeout, a minute, would be part of every fault.
LIGHTHOUSE = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "1000", "--bind"]
# Torchft's managers tell each other the host's name. A host that is a network namespace gets its address as the name.
NAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']


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


def process_of_group_one(launcher):
    return next((pid for pid in descendants(launcher) if is_rank(command_line(pid))
                 and "--group=1" in command_line(pid)), None)


def job_command(args, facts, *words):
    return [sys.executable, os.path.abspath(__file__), *words, os.path.abspath(args.config), "--facts", facts,
            *peer_faults.LIMIT, *set_words(peer_faults.SETS)]


def host_command(args, facts, group, address, lighthouse_address, spares):
    """The job's part on one of several hosts: one group, and the lighthouse where its address is."""
    return [*NAMED, address, *job_command(args, facts, f"--only={group}", f"--address={address}",
                                          f"--lighthouse={lighthouse_address}", *(["--spares"] if spares else []))]


def fault(args, folder, by):
    """What peer_faults.rank_fault gives of the signal `by` for the process of the second group."""
    facts = f"{folder}/facts.jsonl"
    return peer_faults.rank_fault(job_command(args, facts), facts, process_of_group_one, by)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--only", type=int, metavar="GROUP", help="the group of this host; left out: all run here")
    parser.add_argument("--address", default=LOCAL, help="of this host")
    parser.add_argument("--lighthouse", default=LOCAL, help="address of the lighthouse's host")
    args, words = parser.parse_known_args()
    # A signal ends this program at once; what it has started is ended by who sent it.
    if args.address == args.lighthouse:
        subprocess.Popen([lighthouse(), *LIGHTHOUSE, f"{args.address}:{LIGHTHOUSE_PORT}"])
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": f"http://{args.lighthouse}:{LIGHTHOUSE_PORT}"}
    processes = [subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", "1",
         "--master_addr", args.address, "--master_port", str(FIRST_PORT + group), "--max-restarts",
         str(faults.RESTARTS), twin_path("torchft"), *words, f"--group={group}", f"--groups={GROUPS}"],
        env=environment) for group in (range(GROUPS) if args.only is None else [args.only])]
    sys.exit(processes[0].wait())


if __name__ == "__main__":
    main()
