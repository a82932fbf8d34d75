"""Two hosts, each a launcher with a disk and a memory of its own (checkpoint.local_dir and
checkpoint.replicas): all processes of one are killed and all its data is deleted, and the same commands go
on at the newest durable step, that of a checkpoint or of the step journal, with the bits of a run that has
lost nothing.
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import time

import end_to_end
from end_to_end import BIN, EndToEnd
from ports import free_port
from processes import marked_processes
from time_bounds import bound_s

SETS = ["checkpoint.interval=2", "checkpoint.local_dir=disk", "checkpoint.replicas=1",
        "checkpoint.replica_dir=memory", "checkpoint.async=false", "metrics.tensorboard=false"]

# No checkpoint but that of step 0. The journal wants the same train_steps in every attempt.
JOURNAL_STEPS = 40
JOURNAL = ["checkpoint.interval=100000", "checkpoint.journal=sync", "checkpoint.journal_share=1"]
JOURNAL_SAMPLES = 32  # Of a host in a step, which then takes so long that the host is lost long before the end.


class LostHost(EndToEnd):
    more_sets, samples = (), 4

    def start_hosts(self, name, steps, count=2):
        """The launchers of a run, each in its host's folder, from which the relative paths start."""
        port = free_port()
        hosts = []
        for host in range(count):
            folder = f"{self.folder}/{name}/host-{host}"
            os.makedirs(folder, exist_ok=True)
            words = [f"{BIN}/dtrain", "launch", "--nnodes", str(count), "--node-rank", str(host),
                     "--rdzv-endpoint", f"127.0.0.1:{port}", "--token-file", self.token(),
                     "--nproc-per-node", "1", "--run-dir", f"{self.folder}/{name}/run", "--",
                     f"{BIN}/dtrain-gpt", self.config]
            for value in [*SETS, *self.more_sets, f"train_steps={steps}", f"train_batch_size={self.samples * count}"]:
                words += ["--set", value]
            with open(f"{folder}.log", "a", encoding="utf-8") as log:
                hosts.append(subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder,
                    start_new_session=True, env=self.environment({"HOST_OF_TEST": f"{name}-{host}"})))
        return hosts

    def said(self, name):
        texts = []
        for path in sorted(glob.glob(f"{self.folder}/{name}/host-*.log")
                           + glob.glob(f"{self.folder}/{name}/run/logs/*/rank-*.*")):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(f"== {path}\n{file.read()}")
        return "\n".join(texts)

    def end_hosts(self, name, hosts, codes):
        for host in hosts:
            try:
                host.wait(end_to_end.TIME_BOUND_S)
            except subprocess.TimeoutExpired:
                self.fail(f"a launcher does not end:\n{self.said(name)}")
        self.assertEqual([host.returncode for host in hosts], codes, self.said(name))

    def durable(self, name):
        """The newest step that was reported as durable."""
        return max((record["step"] for record in self.records(f"{self.folder}/{name}/run")
                    if record["kind"] == "ckpt" and record.get("durable")), default=0)

    def lose(self, name, host):
        """Kills every process of a host and deletes what it had on disk and in memory."""
        while left := marked_processes(f"HOST_OF_TEST={name}-{host}"):
            for pid, _ in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        shutil.rmtree(f"{self.folder}/{name}/host-{host}")

    def train_until_lost(self, name, lost, count=2, steps=100000, step_of=None):
        """A run that loses a host while it trains, behind the sixth step that `step_of` counts; gives the
        step of its newest checkpoint."""
        hosts = self.start_hosts(name, steps, count)
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while (step_of or self.durable)(name) < 6:
            self.assertTrue(all(host.poll() is None for host in hosts), self.said(name))
            self.assertLess(time.monotonic(), end, self.said(name))
            time.sleep(0.02)
        self.lose(name, lost)
        hosts[lost].wait(bound_s(60))
        for host in hosts:
            host.wait(bound_s(120))
            self.assertNotEqual(host.returncode, 0, self.said(name))
        durable = self.durable(name)
        # The shared folder is no help: what counts is what the other hosts have.
        for folder in glob.glob(f"{self.folder}/{name}/run/checkpoints/step-*"):
            shutil.rmtree(folder)
        return durable

    def check_lost(self, name, lost, count=2):
        durable = self.train_until_lost(name, lost, count)
        steps = durable + 4
        self.end_hosts(name, self.start_hosts(name, steps, count), [0] * count)
        run_dir = f"{self.folder}/{name}/run"
        restored = [record["restored"] for record in self.records(run_dir) if "restored" in record]
        # A step may have become durable after rank 0's last record.
        self.assertIn(restored, ([durable], [durable + 2]), self.said(name))
        straight = f"{name}-straight"
        self.end_hosts(straight, self.start_hosts(straight, steps, count), [0] * count)
        self.assertEqual(self.losses(run_dir), {
            step: loss for step, loss in self.losses(f"{self.folder}/{straight}/run").items()
            if step in self.losses(run_dir)})
        self.assertEqual(max(self.losses(run_dir)), steps)
        self.assertEqual(self.model_files(run_dir), self.model_files(f"{self.folder}/{straight}/run"))
        self.assertEqual(glob.glob(f"{self.folder}/{name}/host-*/memory/*"), [], "replicas are left")

    def test_the_second_of_two_hosts_is_lost(self):
        self.check_lost("second", 1)

    def test_the_host_of_rank_zero_is_lost(self):
        self.check_lost("first", 0)

    def test_one_of_three_hosts_is_lost(self):
        self.check_lost("middle", 1, 3)

    def test_the_journal_loses_no_step_with_a_host(self):
        def trained(name):
            return max(self.losses(f"{self.folder}/{name}/run"), default=0)

        self.more_sets, self.samples = JOURNAL, JOURNAL_SAMPLES
        saved = self.train_until_lost("journal", 1, steps=JOURNAL_STEPS, step_of=trained)
        self.assertEqual(saved, 0, "there is a checkpoint that the journal should not need")
        last = trained("journal")
        self.end_hosts("journal", self.start_hosts("journal", JOURNAL_STEPS), [0, 0])
        run_dir = f"{self.folder}/journal/run"
        [restored] = [record["restored"] for record in self.records(run_dir) if "restored" in record]
        # The last step that rank 0 told of may have ended before its record was durable.
        self.assertGreaterEqual(restored, last - 1, self.said("journal"))
        self.end_hosts("straight", self.start_hosts("straight", JOURNAL_STEPS), [0, 0])
        straight = f"{self.folder}/straight/run"
        losses = self.losses(run_dir)
        self.assertEqual(max(losses), JOURNAL_STEPS)
        self.assertEqual(losses, {step: loss for step, loss in self.losses(straight).items() if step in losses})
        self.assertEqual(self.model_files(run_dir), self.model_files(straight))

    def test_the_manifest_names_the_host_of_each_rank(self):
        self.end_hosts("named", self.start_hosts("named", 2), [0, 0])
        [path] = glob.glob(f"{self.folder}/named/run/checkpoints/step-*/MANIFEST.json")
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        self.assertEqual([rank["host"] for rank in manifest["ranks"]], [os.uname().nodename] * 2)


if __name__ == "__main__":
    end_to_end.main()
