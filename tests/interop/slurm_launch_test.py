"""`dtrain launch` inside a real Slurm of two nodes: one command starts all of them, and a job that Slurm
stops ahead of its time limit, or starts again, loses no step."""
import contextlib
import glob
import json
import os
import re
import signal
import time

import end_to_end
import slurm_cluster
from end_to_end import BIN, SOURCE, EndToEnd
from processes import descriptors, marked_processes
from slurm_cluster import NODES, Cluster
from time_bounds import bound_s

EXAMPLE = f"{SOURCE}/examples/cluster/slurm.sh"
LONG = "DTRAIN_TEST_LONG" in os.environ
# Longer than a test runs, unless it is stopped.
ENDLESS = "train_steps=1000000"
SHELL = ["sh", "-c"]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class SlurmLaunch(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = None
        cls.why_not = slurm_cluster.why_not()
        if not cls.why_not:
            cls.cluster = Cluster()
            try:
                cls.why_not = cls.cluster.start()
            except BaseException:
                cls.cluster.stop()
                raise

    @classmethod
    def tearDownClass(cls):
        if cls.cluster:
            cls.cluster.stop()
        super().tearDownClass()

    def setUp(self):
        if self.why_not:
            self.skipTest(f"LOUD SKIP: no Slurm here: {self.why_not}")

    @property
    def variables(self):
        return {**self.cluster.environment, "OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}

    def slurm(self, *words):
        return self.run_program(list(words), env=self.variables)

    def launch(self, *words):
        """`dtrain launch` in an allocation of both nodes, and not in a step."""
        return self.slurm("salloc", "-N2", f"{BIN}/dtrain", "launch", *words)

    def start_launch(self, *words):
        return self.start(["salloc", "-N2", f"{BIN}/dtrain", "launch", *words], env=self.variables)

    def training(self, name, *sets):
        words = ["--run-dir", f"{self.folder}/{name}", "--", f"{BIN}/dtrain-gpt", self.config]
        for value in sets:
            words += ["--set", value]
        return words

    def submit(self, *words, output="out"):
        """The number of the job, which is cancelled when the test ends."""
        result = self.slurm("sbatch", "--parsable", "--time=5", f"--chdir={self.folder}",
                            f"--output={self.folder}/{output}", *words)
        self.assertRegex(result.output, r"^\d+\n$")
        self.output = output
        self.addCleanup(self.cluster.ask, "scancel", result.output.strip())
        return int(result.output)

    def await_job(self, number):
        job = {}

        def has_ended():
            job.update(self.cluster.job(number))
            return job.get("JobState") in ENDED

        self.assertTrue(self.cluster.await_true(has_ended), f"{job}{self.cluster.logs()}{self.said(self.output)}")
        return job

    def await_steps(self, name, step):
        self.assertTrue(self.cluster.await_true(lambda: max(self.losses(f"{self.folder}/{name}"), default=0) >= step),
                        f"step {step} was not reached: {self.said(self.output)}{self.cluster.logs()}")

    def said(self, output):
        path = f"{self.folder}/{output}"
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def saved_step(self, name):
        """The newest step of which a checkpoint is committed."""
        found = glob.glob(f"{self.folder}/{name}/checkpoints/step-*/MANIFEST.json")
        return max((int(re.search(r"/step-0*(\d+)\.", path)[1]) for path in found), default=0)

    def starters(self):
        """Pids of the launchers of this test that are in no step."""
        found = []
        for pid, command in marked_processes(self.mark):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if command.startswith(f"{BIN}/dtrain launch") and b"\0SLURM_STEP_ID=" not in file.read():
                    found.append(pid)
        return found

    def await_nothing_left(self):
        self.assertTrue(self.cluster.await_true(lambda: not self.left_behind()), self.left_behind())

    def assert_stopped_and_saved(self, name):
        """Checks that the last step that was trained is saved."""
        self.assertEqual(self.saved_step(name), max(self.losses(f"{self.folder}/{name}")))

    def test_one_command_in_an_allocation_starts_all_nodes(self):
        line = "echo rank $RANK of $WORLD_SIZE on node $GROUP_RANK, $SLURM_NODEID of $SLURM_STEP_NUM_NODES"
        result = self.launch("--run-dir", f"{self.folder}/all", "--", *SHELL, line)
        self.assertEqual(result.code, 0, result.output)
        self.assertRegex(result.output, r"dtrain: Slurm job \d+: starts itself on its 2 nodes by srun; they meet "
                                        rf"at {re.escape(NODES[0])}:2\d\d\d\d\n")
        for rank in range(2):
            self.assertEqual(self.said(f"all/logs/attempt-0/rank-{rank}.out"),
                             f"rank {rank} of 2 on node {rank}, {rank} of 2\n")

    def test_the_ranks_have_the_launchers_variables_whatever_the_job_was_submitted_with(self):
        # sbatch --export=NONE sets this for the srun of its script.
        variables = {**self.variables, "SLURM_EXPORT_ENV": "NONE", "MINE": "there"}
        result = self.run_program(["salloc", "-N2", f"{BIN}/dtrain", "launch", "--run-dir", f"{self.folder}/export",
                                   "--", *SHELL, "echo $MINE"], env=variables)
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual(self.said("export/logs/attempt-0/rank-1.out"), "there\n")

    def test_a_dry_run_shows_the_step_and_in_a_step_each_node(self):
        result = self.launch("--dry-run", "--run-dir", f"{self.folder}/dry", "--", "true")
        self.assertEqual(result.code, 0, result.output)
        self.assertRegex(result.output, r"starts itself on its 2 nodes by srun[^\n]*\n  command: [^\n]*srun --nodes=2 ")
        result = self.slurm("srun", "-N2", "--ntasks-per-node=1", f"{BIN}/dtrain", "launch", "--dry-run", "--", "true")
        self.assertEqual(result.code, 0, result.output)
        for node in range(2):
            self.assertIn(f"node {node} of 2: this host, 1 rank\n", result.output)
        self.assertFalse(os.path.exists(f"{self.folder}/dry"))

    def test_it_gives_the_losses_of_one_node_to_the_bit(self):
        ours = self.losses(self.train(2, "one-node"))
        result = self.launch(*self.training("two-nodes"))
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual(self.losses(f"{self.folder}/two-nodes"), ours)

    def test_the_exit_code_is_that_of_the_rank_that_failed_first(self):
        result = self.launch("--run-dir", f"{self.folder}/code", "--", *SHELL,
                             "[ $RANK = 1 ] && exit 17; sleep 1000")
        self.assertEqual(result.code, 17, result.output)
        self.assertIn("rank 1 ended with exit code 17", result.output)

    def test_what_contradicts_the_allocation_is_refused_by_name(self):
        for words, texts in (
                (["--nnodes", "3", "--", "true"], ["--nnodes 3 contradicts SLURM_JOB_NUM_NODES=2", "--standalone"]),
                (["--node-rank", "1", "--", "true"], ["--node-rank 1 has no meaning here"]),
                (["--", "./nowhere"], ["program ./nowhere not found"])):
            result = self.launch(*words)
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output, *texts)

    def test_two_tasks_a_node_are_refused_with_the_line_to_use(self):
        result = self.slurm("srun", "-N2", "--ntasks-per-node=2", f"{BIN}/dtrain", "launch", "--", "true")
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, "srun started 4 launchers on 2 nodes",
                             "use: srun --ntasks=2 --ntasks-per-node=1 dtrain launch")

    def test_launchers_of_a_step_join_by_themselves(self):
        result = self.slurm("srun", "-N2", "--ntasks-per-node=1", f"{BIN}/dtrain", "launch", *self.training("step"))
        self.assertEqual(result.code, 0, result.output)
        self.assertRegex(result.output, r"dtrain: node 0 of 2 by Slurm step \d+\.0; nodes meet at "
                                        rf"{re.escape(NODES[0])}:2\d\d\d\d\n")
        self.assertEqual(len(self.losses(f"{self.folder}/step")), 10)
        self.assertEqual(glob.glob(f"{self.folder}/step/.*token*"), [])

    def test_standalone_uses_this_node_alone(self):
        result = self.launch("--standalone", "--run-dir", f"{self.folder}/alone", "--", *SHELL, "echo $WORLD_SIZE")
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual(self.said("alone/logs/attempt-0/rank-0.out"), "1\n")

    def test_the_token_is_in_no_argument_no_variable_and_no_file(self):
        run_dir, seen, go = (f"{self.folder}/{name}" for name in ("secret", "seen", "go"))
        line = f"[ $RANK = 1 ] && od -An -v -tx1 <&$DTRAIN_TOKEN_FD | tr -d ' \\n' >{seen}.new && " \
               f"mv {seen}.new {seen}; until [ -e {go} ]; do sleep 0.05; done"
        process = self.start_launch("--run-dir", run_dir, "--", *SHELL, line)
        self.assertTrue(self.cluster.await_true(lambda: os.path.exists(seen)), self.cluster.logs())
        token = self.said("seen")
        self.assertRegex(token, "^[0-9a-f]{64}$")
        forms = [token.encode(), token.upper().encode(), bytes.fromhex(token)]
        holders = [path for path in [*glob.glob("/proc/[0-9]*/cmdline"), *glob.glob("/proc/[0-9]*/environ"),
                                     *glob.glob(f"{run_dir}/**", recursive=True),
                                     *glob.glob(f"{self.cluster.folder}/**", recursive=True)]
                   if self.holds(path, forms)]
        self.assertEqual(holders, [])
        self.assertFalse(self.holds(seen, [b"no such text"]))
        self.assertTrue(self.holds(seen, forms))
        for pid, command in marked_processes(self.mark):
            if os.path.basename(command.split(" ")[0]) == "srun":
                self.assertFalse([path for path in descriptors(pid) if path.startswith(self.folder)
                                  and "token" in path])
        with open(go, "w", encoding="ascii"):
            pass
        self.assertEqual(self.finish(process).code, 0)

    @staticmethod
    def holds(path, forms):
        with contextlib.suppress(OSError):
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    text = file.read()
                return any(form in text for form in forms)
        return False

    def test_a_signal_to_the_command_lets_all_ranks_save(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            name = f"signal-{number.value}"
            process = self.start_launch(*self.training(name, ENDLESS))
            self.await_step(f"{self.folder}/{name}", 3, process)
            [starter] = self.starters()
            os.kill(starter, number)
            result = self.finish(process)
            self.assertEqual(result.code, code, result.output)
            self.assert_stopped_and_saved(name)

    def test_a_second_signal_stops_at_once(self):
        process = self.start_launch("--run-dir", f"{self.folder}/twice", "--", *SHELL,
                                    "trap : TERM; echo ready; while :; do sleep 0.05; done")
        self.assertTrue(self.cluster.await_true(
            lambda: all(self.said(f"twice/logs/attempt-0/rank-{rank}.out") for rank in range(2))))
        [starter] = self.starters()
        os.kill(starter, signal.SIGTERM)
        self.await_stop_signals("twice")
        os.kill(starter, signal.SIGTERM)
        self.assertNotIn(self.finish(process).code, (0, 143))

    def await_stop_signals(self, name):
        """Waits until the launchers of both nodes have got a stop signal."""
        def told():
            lines = [line for file in ("events.jsonl", "events-node-1.jsonl")
                     for line in self.said(f"{name}/{file}").splitlines(True) if line.endswith("\n")]
            return sum(json.loads(line)["event"] == "signal" for line in lines) == 2
        self.assertTrue(self.cluster.await_true(told), self.said(f"{name}/events.jsonl"))

    def test_nothing_is_left_when_the_command_is_killed(self):
        process = self.start_launch("--run-dir", f"{self.folder}/killed", "--", *SHELL, "echo ready; sleep 1000")
        self.assertTrue(self.cluster.await_true(
            lambda: all(self.said(f"killed/logs/attempt-0/rank-{rank}.out") for rank in range(2))))
        [starter] = self.starters()
        os.kill(starter, signal.SIGKILL)
        self.finish(process)  # tearDown looks for what is left.

    def test_the_example_trains_on_two_nodes(self):
        job = self.await_job(self.submit("--job-name=example", EXAMPLE, output="example.out"))
        said = self.said(self.output)
        self.assertEqual((job["JobState"], job["ExitCode"]), ("COMPLETED", "0:0"), said)
        self.assertIn("starts itself on its 2 nodes by srun", said)
        self.assertEqual(said.count("step 10/10"), 1, "node 0 speaks for all")
        self.assertEqual(sorted(self.losses(f"{self.folder}/runs/example")), list(range(1, 11)))
        self.assertTrue(os.path.exists(f"{self.folder}/runs/example/metrics/rank-1.jsonl"))

    def test_a_job_that_is_requeued_goes_on_from_its_newest_step(self):
        # --fresh is for the first start only: it would lose all steps at each requeue.
        number = self.submit("--job-name=again", EXAMPLE, "--fresh", "--set", ENDLESS, output="again.out")
        run_dir = f"{self.folder}/runs/again"
        self.await_steps("runs/again", 3)
        self.cluster.ask("scancel", "--signal=USR1", str(number))
        self.assertTrue(self.cluster.await_true(lambda: self.cluster.job(number).get("Restarts") == "1"),
                        self.said(self.output))
        saved = self.saved_step("runs/again")
        self.assertEqual(saved, max(self.losses(run_dir)))
        self.await_steps("runs/again", saved + 3)
        self.cluster.ask("scancel", str(number))
        self.assertEqual(self.await_job(number)["JobState"], "CANCELLED", self.said(self.output))
        self.await_nothing_left()
        self.assertIn(f"stopped by SIGTERM after step {saved}, which is saved", self.said(self.output))
        logged = [record["step"] for record in self.records(run_dir) if record["kind"] == "step"]
        self.assertEqual(logged, list(range(1, self.saved_step("runs/again") + 1)), "no step is lost or repeated")
        self.assertEqual(sorted(os.path.basename(path) for path in glob.glob(f"{run_dir}/logs/attempt-*")),
                         ["attempt-0", "attempt-1"])

    def test_usr1_ahead_of_the_time_limit_saves_and_ends_with_143(self):
        # --signal=USR1@120 sends it to the steps, --signal=B:USR1@120 to the batch shell alone.
        jobs = {}
        for name in ("steps", "shell"):  # Both run at once.
            command = " ".join([f"exec {BIN}/dtrain", "launch", *self.training(name, ENDLESS)])
            jobs[name] = self.submit("--nodes=2", "--no-requeue", "--wrap", command, output=f"{name}.out")
        for name, words in (("steps", []), ("shell", ["--batch"])):
            self.await_steps(name, 3)
            self.cluster.ask("scancel", "--signal=USR1", *words, str(jobs[name]))
        for name, number in jobs.items():
            job = self.await_job(number)
            self.assertEqual((job["JobState"], job["ExitCode"]), ("FAILED", "143:0"), self.said(f"{name}.out"))
            self.assert_stopped_and_saved(name)

    def test_usr1_reaches_ranks_that_srun_starts_without_a_launcher(self):
        command = f"srun --ntasks-per-node=1 {BIN}/dtrain-gpt {self.config} --run-dir {self.folder}/bare " \
                  f"--set {ENDLESS}"
        number = self.submit("--nodes=2", "--no-requeue", "--wrap", command)
        self.await_steps("bare", 3)
        self.cluster.ask("scancel", "--signal=USR1", str(number))
        self.assertEqual(self.await_job(number)["ExitCode"], "143:0", self.said(self.output))
        self.assert_stopped_and_saved("bare")

    def test_a_job_that_is_cancelled_saves_and_is_not_requeued(self):
        number = self.submit("--job-name=cancelled", EXAMPLE, "--set", ENDLESS)
        self.await_steps("runs/cancelled", 3)
        self.cluster.ask("scancel", str(number))
        self.assertEqual(self.await_job(number)["JobState"], "CANCELLED", self.said(self.output))
        self.await_nothing_left()
        self.assert_stopped_and_saved("runs/cancelled")
        self.assertEqual(self.cluster.job(number)["Restarts"], "0")


def slurms_own_warning(self):
    """It comes up to a minute early, and a job's shortest limit is a minute: this takes that long."""
    for name, signal_option in (("limit-steps", "USR1@30"), ("limit-shell", "B:USR1@30")):
        command = " ".join([f"exec {BIN}/dtrain", "launch", *self.training(name, ENDLESS)])
        number = self.submit("--nodes=2", "--no-requeue", "--time=1", f"--signal={signal_option}", "--wrap",
                             command, output=f"{name}.out")
        job, end = {"JobState": ""}, time.monotonic() + bound_s(120)
        while job["JobState"] not in ENDED:
            self.assertLess(time.monotonic(), end, self.said(self.output))
            time.sleep(0.2)
            job = self.cluster.job(number)
        self.assertEqual((job["JobState"], job["ExitCode"]), ("FAILED", "143:0"), self.said(self.output))
        self.assert_stopped_and_saved(name)


if LONG:
    SlurmLaunch.test_slurms_own_warning_ahead_of_a_time_limit = slurms_own_warning


if __name__ == "__main__":
    end_to_end.main()
