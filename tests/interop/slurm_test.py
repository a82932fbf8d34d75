"""Slurm's own srun and sbatch on a cluster of two nodes that this test starts on one machine."""
import glob
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import end_to_end
from end_to_end import BIN, EndToEnd

DAEMONS = {"munged": "/usr/sbin/munged", "slurmctld": "/usr/sbin/slurmctld",
           "slurmd": "/usr/sbin/slurmd", "mungekey": "/usr/sbin/mungekey", "srun": "/usr/bin/srun"}
READY_S = 60

# The nodes' names are addresses, so that they resolve without /etc/hosts: ranks meet at the first node of
# a step's list.
CONFIGURATION = """ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
FirstJobId={first_job}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
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
NODES = ("127.0.0.1", "127.0.0.2")


def free_ports(count):
    """The first of `count` consecutive free ports."""
    while True:
        first = random.randrange(30000, 32000)
        held = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for one in held:
                one.close()


class Cluster:
    """munged, slurmctld and a slurmd for each node, none of them from init."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="dtrain-slurm-")
        os.chmod(self.folder, 0o755)
        for name in ("state", *NODES):
            os.mkdir(f"{self.folder}/{name}")
        port = free_ports(3)
        with open(f"{self.folder}/slurm.conf", "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(
                folder=self.folder, host=socket.gethostname().split(".")[0],
                controller_port=port, node_ports=f"[{port + 1}-{port + 2}]",
                nodes="127.0.0.[1-2]", first_job=random.randrange(1, 9000)))
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
        result = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env=self.environment,
                                capture_output=True, text=True, timeout=30, check=False)
        return result.stdout.split()

    def logs(self):
        text = ""
        for path in glob.glob(f"{self.folder}/*.log"):
            with open(path, encoding="utf-8", errors="replace") as file:
                text += f"\n{path}:\n" + "".join(file.readlines()[-15:])
        return text

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


class Slurm(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = cls.batch = None
        missing = [path for path in DAEMONS.values() if not os.path.exists(path)]
        cls.why_not = ""
        if missing:
            cls.why_not = f"{missing[0]} is not installed (./dev deps test)"
        elif os.geteuid() != 0:
            cls.why_not = "slurmd wants root"
        else:
            cls.cluster = Cluster()
            try:
                cls.why_not = cls.cluster.start()
                if not cls.why_not:
                    cls.batch = cls.submit()
            except BaseException:
                cls.cluster.stop()
                raise

    @classmethod
    def submit(cls):
        """A batch script that trains. `sbatch --wait` asks for its end only every ten seconds, so other
        tests run meanwhile."""
        return subprocess.Popen(
            ["sbatch", "--wait", "-n2", f"--output={cls.folder}/batch.out", "--wrap",
             f"exec {BIN}/dtrain-gpt {cls.config} --run-dir {cls.folder}/batch"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**cls.cluster.environment, "OMP_NUM_THREADS": "1"})

    @classmethod
    def tearDownClass(cls):
        if cls.batch and not cls.batch.stdout.closed:
            cls.batch.kill()
            cls.batch.communicate()
        if cls.cluster:
            cls.cluster.stop()
        super().tearDownClass()

    def setUp(self):
        if self.why_not:
            self.skipTest(f"LOUD SKIP: no Slurm here: {self.why_not}")

    def slurm(self, *words, **variables):
        return self.run_program(list(words), env={**self.cluster.environment,
                                                  "OMP_NUM_THREADS": "1", **variables})

    def srun(self, tasks_per_node, line, kill_on_bad_exit=1, **variables):
        """Runs the shell command `line` as a step on both nodes."""
        return self.slurm("srun", "-N2", f"--ntasks-per-node={tasks_per_node}",
                          f"--kill-on-bad-exit={kill_on_bad_exit}", "sh", "-c", line, **variables)

    def gpt(self, run_dir, *sets):
        """The shell line of a training run below this test's folder."""
        words = [f"exec {BIN}/dtrain-gpt {self.config} --run-dir {self.folder}/{run_dir}"]
        return " --set ".join([*words, *sets])

    def test_a_step_gives_the_losses_of_dtrain_launch_to_the_bit(self):
        batch = "train_micro_batch_size_per_gpu=2"
        ours = self.losses(self.train(4, "launch", [batch]))
        result = self.srun(2, self.gpt("srun", batch))
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual(self.losses(f"{self.folder}/srun"), ours)
        # Without an agent rank 0 writes the TensorBoard files (interop_tensorboard_test reads them).
        self.assertTrue(glob.glob(f"{self.folder}/srun/report/tensorboard/events.out.*"))

    def test_dtrain_env_names_slurm_and_the_rank(self):
        for tasks in (1, 2):
            result = self.srun(tasks, f"{BIN}/dtrain env")
            self.assertEqual(result.code, 0, result.output)
            for rank in range(2 * tasks):
                self.assertIn(f"rank         {rank} of {2 * tasks}\n", result.output)
            self.assertIn("launcher     Slurm\n", result.output)
            self.assertIn(f"store        {NODES[0]}:", result.output)

    def test_a_token_file_that_is_missing_is_named(self):
        # Each rank finds the error by itself; a rank that is killed while it starts would end with 143.
        result = self.srun(1, self.gpt("no-token"), kill_on_bad_exit=0,
                           DTRAIN_TOKEN_FILE=f"{self.folder}/nowhere.key")
        self.assertEqual(result.code, 64, result.output)
        self.assertIn(f"DTRAIN_TOKEN_FILE names {self.folder}/nowhere.key", result.output)

    def test_a_rank_with_a_foreign_token_is_refused(self):
        for rank in range(2):
            path = f"{self.folder}/token-{rank}"
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                file.write(bytes([rank + 1]) * 32)
        result = self.srun(1, f"export DTRAIN_TOKEN_FILE={self.folder}/token-$SLURM_PROCID; "
                           + self.gpt("foreign", "comm.timeout_s=20"))
        self.assertNotEqual(result.code, 0, result.output)
        self.assertIn("rank 1", result.output)
        self.assertIn("token", result.output)

    def test_nodes_without_a_shared_run_directory_or_token_are_told_so(self):
        result = self.srun(1, self.gpt("apart-$SLURM_PROCID", "comm.timeout_s=3"))
        self.assertNotEqual(result.code, 0, result.output)
        self.assertIn("DTRAIN_TOKEN_FILE", result.output)
        self.assertIn("apart-1", result.output)

    def test_of_the_batch_a_script_of_several_tasks_is_refused_outside_a_step(self):
        output = self.batch.communicate(timeout=end_to_end.TIME_BOUND_S)[0]
        with open(f"{self.folder}/batch.out", encoding="utf-8") as file:
            said = file.read()
        self.assertEqual(self.batch.returncode, 64, output + said)
        self.assertIn("srun", said)


if __name__ == "__main__":
    end_to_end.main()
