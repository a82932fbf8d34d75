"""A Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, none of them from init."""
import glob
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from ports import free_ports_in_a_row
from time_bounds import bound_s

DAEMONS = {"munged": "/usr/sbin/munged", "slurmctld": "/usr/sbin/slurmctld",
           "slurmd": "/usr/sbin/slurmd", "mungekey": "/usr/sbin/mungekey", "srun": "/usr/bin/srun"}
READY_S = bound_s(120)

# The nodes' names are addresses, so that they resolve without /etc/hosts: ranks meet at the first node of
# a step's list. A requeued job waits until its credentials have expired, two minutes by default.
CONFIGURATION = """ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
FirstJobId={first_job}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=6
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
TopologyPlugin=topology/tree
MpiDefault=none
SlurmUser=root
SlurmdUser=root
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports} CPUs=2 RealMemory=500
PartitionName=p Nodes=ALL Default=YES State=UP OverSubscribe=YES MaxTime=10
"""
# Slurm reads it beside its configuration.
TOPOLOGY = """SwitchName=leaf1 Nodes=127.0.0.1
SwitchName=leaf2 Nodes=127.0.0.2
SwitchName=spine Switches=leaf[1-2]
"""
NODES = ("127.0.0.1", "127.0.0.2")


class Cluster:
    """munged, slurmctld and a slurmd for each node, none of them from init."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="dtrain-slurm-")
        os.chmod(self.folder, 0o755)
        for name in ("state", *NODES):
            os.mkdir(f"{self.folder}/{name}")
        port = free_ports_in_a_row(3)
        with open(f"{self.folder}/slurm.conf", "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(
                folder=self.folder, host=socket.gethostname().split(".")[0],
                controller_port=port, node_ports=f"[{port + 1}-{port + 2}]",
                nodes="127.0.0.[1-2]", first_job=random.randrange(1, 9000)))
        with open(f"{self.folder}/topology.conf", "w", encoding="utf-8") as file:
            file.write(TOPOLOGY)
        self.environment = {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf"}
        self.processes = []

    def start(self):
        """Why not all nodes are idle; "" when they are."""
        subprocess.run([DAEMONS["mungekey"], "-c", "-f", "-k", f"{self.folder}/munge.key"], check=True)
        self.spawn(DAEMONS["munged"], "--force", "--foreground",
                   f"--key-file={self.folder}/munge.key", f"--socket={self.folder}/munge.sock",
                   f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                   f"--seed-file={self.folder}/munge.seed")
        self.await_true(lambda: os.path.exists(f"{self.folder}/munge.sock"))
        self.spawn(DAEMONS["slurmctld"], "-D", "-c")
        for node in NODES:
            self.spawn(DAEMONS["slurmd"], "-D", "-c", "-N", node)
        ready = self.await_true(lambda: self.states() == ["idle"] * len(NODES))
        return "" if ready else f"nodes are {self.states()}: {self.logs()}"

    def spawn(self, *command):
        self.processes.append(subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True))

    def await_true(self, condition):
        end = time.monotonic() + READY_S
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def states(self):
        return self.ask("sinfo", "-h", "-N", "-o", "%T").split()

    def logs(self):
        text = ""
        for path in glob.glob(f"{self.folder}/*.log"):
            with open(path, encoding="utf-8", errors="replace") as file:
                text += f"\n{path}:\n" + "".join(file.readlines()[-15:])
        return text

    def ask(self, *command):
        """Gives what one of Slurm's programs prints."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=READY_S,
                              check=False).stdout

    def job(self, number):
        """{field: value} of a job, as scontrol shows it."""
        shown = self.ask("scontrol", "--oneliner", "show", "job", str(number))
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def stop(self):
        """Kills the daemons and the processes that they started, and removes the folder."""
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        for path in glob.glob("/proc/[0-9]*/environ"):  # slurmstepd and tasks that outlive slurmd.
            try:
                with open(path, "rb") as file:
                    if f"SLURM_CONF={self.folder}/".encode() in file.read():
                        os.kill(int(path.split("/")[2]), signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)


def why_not():
    """Why no cluster can be started here; "" when one can."""
    missing = [path for path in DAEMONS.values() if not os.path.exists(path)]
    if missing:
        return f"{missing[0]} is not installed (./dev deps test)"
    return "" if os.geteuid() == 0 else "slurmd wants root"
