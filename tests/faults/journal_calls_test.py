"""A training with a step journal is killed at a system call on the journal: at each call of a thread on a
segment's folder or file, from the first segment's creation to the removal of the last one. The next
start goes on behind the last step, or the one before it, with the bits of a run that was never
interrupted.

The calls come in an order that is drawn from a seed, which the output names and `--seed N` sets. The default
kills at 2 of them, DTRAIN_TEST_LONG at all.
"""
import collections
import os
import random
import re
import shutil
import signal

import checkpoint_kill_test
import end_to_end
from checkpoint_kill_test import Tail
from end_to_end import EndToEnd

SEED = checkpoint_kill_test.SEED
SAMPLES = None if "DTRAIN_TEST_LONG" in os.environ else 2
STEPS, INTERVAL = 10, 4
SETS = [f"train_steps={STEPS}", f"checkpoint.interval={INTERVAL}", "checkpoint.keep=2", "checkpoint.async=false",
        "checkpoint.journal=async", "checkpoint.journal_share=1", "deterministic=true",
        "metrics.tensorboard=false"]
KILLED = 128 + signal.SIGKILL


class JournalCalls(EndToEnd):
    def setUp(self):
        if not shutil.which("strace"):
            self.skipTest("LOUD SKIP: no strace here")

    def traced(self, run_dir, *inject):
        """A training under strace; gives its result and the calls on the journal: of each name, in the
        thread that makes the most of it."""
        journal, log = f"{run_dir}/checkpoints/journal", f"{run_dir}.strace"
        paths = [journal]
        for base in (*range(0, STEPS, INTERVAL), STEPS):
            segment = f"{journal}/step-{base:012}.e1"
            paths += [segment, *(f"{segment}/rank-{rank}-of-2.journal" for rank in (0, 1))]
        words = ["strace", "-f", "-qq", "-o", log, "-e", "trace=%file,%desc", *inject]
        for path in paths:
            words += ["-P", path]
        result = self.run_program([*words, *self.launch_command(2, run_dir, SETS)])
        calls = collections.Counter()
        with open(log, encoding="utf-8", errors="replace") as file:
            for line in file:
                if call := re.match(r"(\d+) +(\w+)\(", line):
                    calls[call[1], call[2]] += 1
        most = {}
        for (_, name), count in calls.items():
            most[name] = max(count, most.get(name, 0))
        return result, most

    def check_next_start(self, run_dir, straight, weights):
        """The run goes on where the journal ended, and has the right bits to its end."""
        tail = Tail(f"{run_dir}/metrics/rank-0.jsonl")
        logged = max(self.losses(run_dir), default=0)
        self.train(2, os.path.basename(run_dir), SETS)
        [restored] = [record["restored"] for record in tail.records() if "restored" in record]
        # The step that was logged last may not have ended, and of those that ended one may be lost.
        self.assertGreaterEqual(restored, logged - 2)
        steps = {record["step"]: record["m"]["train/loss"] for record in tail.records()
                 if record["kind"] == "step"}
        self.assertEqual(steps, {step: loss for step, loss in straight.items() if step > restored})
        self.assertEqual(self.model_files(run_dir), weights)
        shutil.rmtree(run_dir)

    def kill_at(self, name, call, straight, weights):
        """Kills the first thread that makes its `call`th call of the name. False: none makes so many."""
        run_dir = f"{self.folder}/killed-{name}-{call}"
        with self.subTest(seed=SEED, name=name, call=call):
            result, _ = self.traced(run_dir, "-e", f"inject={name}:signal=KILL:when={call}")
            if result.code == 0:
                shutil.rmtree(run_dir)
                return False
            self.assertEqual(result.code, KILLED, result.output)
            self.check_next_start(run_dir, straight, weights)
        return True

    def test_a_kill_at_a_call_on_the_journal_loses_at_most_one_step_and_no_bit(self):
        run_dir = f"{self.folder}/straight"
        result, most = self.traced(run_dir)
        self.assertEqual(result.code, 0, result.output)
        straight, weights = self.losses(run_dir), self.model_files(run_dir)
        self.assertEqual(len(straight), STEPS)
        for name in ("mkdirat", "openat", "write", "fsync", "unlinkat"):
            self.assertGreater(most.get(name, 0), 1, most)
        calls = [(name, call) for name, count in sorted(most.items()) for call in range(1, count + 1)]
        self.assertGreater(len(calls), 40)
        random.Random(SEED).shuffle(calls)
        wanted, kills, tried = SAMPLES or len(calls), 0, 0
        while kills < wanted and tried < len(calls):
            kills += self.kill_at(*calls[tried], straight, weights)
            tried += 1
        print(f"--seed {SEED}: {kills} kills at {tried} calls of {most}")
        # Threads share the calls on a folder, not always in the same way.
        self.assertGreaterEqual(kills, wanted * 0.8)


if __name__ == "__main__":
    end_to_end.main()
