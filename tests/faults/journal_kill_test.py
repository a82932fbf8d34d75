"""SIGKILL of trainings at random instants with a step journal (checkpoint.journal): each start goes on from
behind the last step, or the one before it, and every loss and the weights at the end are those of a run
that was never interrupted.

The default kills 12 times, DTRAIN_TEST_LONG 1,000 times. What is killed and when is drawn from a seed,
which the output names and `--seed N` sets; what a process does at that time depends on the machine.
"""
import os
import random
import shutil
import signal
import time

import checkpoint_kill_test
import end_to_end
from checkpoint_kill_test import Tail

KILLS = 1000 if "DTRAIN_TEST_LONG" in os.environ else 12
SEED = checkpoint_kill_test.SEED
STEPS = 300
# Checkpoints are rare, so that nearly all that a kill leaves is in the journal.
SETS = [f"train_steps={STEPS}", "checkpoint.interval=60", "checkpoint.keep=2", "checkpoint.journal=async",
        "checkpoint.journal_share=1", "deterministic=true", "metrics.tensorboard=false"]


class JournalKills(checkpoint_kill_test.Kills):
    # The parent's own test runs in its file.
    test_no_kill_damages_a_checkpoint_and_every_resumed_run_has_the_bits_of_one_without = None

    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, checkpoint_kill_test, "SETS", checkpoint_kill_test.SETS)
        checkpoint_kill_test.SETS = SETS

    def check_steps(self, tail, logged, straight):
        """One start went on where the journal ended, with the right losses; gives its last logged step."""
        records = tail.records()
        restored = [record["restored"] for record in records if "restored" in record]
        steps = [record for record in records if record["kind"] == "step"]
        if restored:
            # The step that was logged last may not have ended, and of those that ended one may be lost.
            self.assertGreaterEqual(restored[0], logged - 2)
        if steps:
            self.assertEqual(steps[0]["step"], (restored[0] if restored else 0) + 1)
        for record in steps:
            self.assertEqual(record["m"]["train/loss"], straight[record["step"]], f"step {record['step']}")
        return max([record["step"] for record in steps], default=logged), bool(restored)

    def test_a_kill_loses_at_most_one_step_and_no_bit(self):
        run_dir = self.train(2, "straight", SETS)
        straight, weights = self.losses(run_dir), self.model_files(run_dir)
        self.assertEqual(len(straight), STEPS)
        draw = random.Random(SEED)
        kills = runs = replays = 0
        while kills < KILLS:
            runs += 1
            run_dir = f"{self.folder}/killed-{runs}"
            logged, ended = 0, False
            while not ended:
                tail = Tail(f"{run_dir}/metrics/rank-0.jsonl")
                process = self.launch(run_dir)
                self.await_a_step(tail, process)
                end = time.monotonic() + draw.random() * 0.6
                whom = draw.choice(["all", 0, 1])
                while kills < KILLS and process.poll() is None and time.monotonic() < end:
                    time.sleep(0.002)
                if kills < KILLS and process.poll() is None:
                    self.kill(process, whom)
                    kills += 1
                process.wait(end_to_end.TIME_BOUND_S)
                ended = process.returncode == 0
                if not ended:
                    self.assertIn(process.returncode, (-signal.SIGKILL, 128 + signal.SIGKILL), self.said(run_dir))
                with self.subTest(seed=SEED, run=runs, kill=kills):
                    logged, replayed = self.check_steps(tail, logged, straight)
                    replays += replayed
            self.assertEqual(self.model_files(run_dir), weights)
            shutil.rmtree(run_dir)
        print(f"--seed {SEED}: {kills} kills in {runs} runs, {replays} starts from a checkpoint or journal")
        self.assertGreater(replays, KILLS / 3)


if __name__ == "__main__":
    end_to_end.main()
