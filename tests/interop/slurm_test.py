"""Slurm's own srun and sbatch on a cluster of two nodes that this test starts on one machine."""
import glob
import os
import subprocess

import end_to_end
import slurm_cluster
from end_to_end import BIN, EndToEnd
from slurm_cluster import NODES, Cluster


class Slurm(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = cls.batch = None
        cls.why_not = slurm_cluster.why_not()
        if not cls.why_not:
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

    def test_each_node_knows_its_switches_without_slurms_file(self):
        line = f"{BIN}/dtrain topo; echo $SLURM_TOPOLOGY_ADDR $SLURM_TOPOLOGY_ADDR_PATTERN"
        result = self.srun(1, line)
        self.assertEqual(result.code, 0, result.output)
        addresses = [f"spine.leaf{i + 1}.{node}" for i, node in enumerate(NODES)]
        for address in addresses:
            self.assertIn(f"this node: {address}\n", result.output)
            self.assertIn(f"{address} switch.switch.node\n", result.output)
        path = f"{self.folder}/addresses"
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(said + "\n" for said in result.output.splitlines() if said.endswith(".node"))
        result = self.run_program([f"{BIN}/dtrain", "topo", "--topology-conf", path, "--host", NODES[1]])
        self.assertIn("leaf1: 127.0.0.1", result.output)
        self.assertIn(f"this node: {addresses[1]}\n", result.output)

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
        # Both time out; the second one would be killed before it has said why.
        result = self.srun(1, self.gpt("apart-$SLURM_PROCID", "comm.timeout_s=3"), kill_on_bad_exit=0)
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
