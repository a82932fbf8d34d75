"""SIGKILL of trainings at random instants, while they start, train and write checkpoints beside that
(checkpoint.async): no checkpoint is damaged, each start goes on from the newest one, and every loss and
the weights at the end are those of a run that was never interrupted.

The default kills 20 times, DTRAIN_TEST_LONG 250 times (journal_kill_test 1,000 times). What is killed and
when is drawn from a seed, which the output names and `--seed N` sets; what a process does at that time
depends on the machine.
"""
import argparse
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import end_to_end
from end_to_end import BIN, EndToEnd
from faults_test import ranks_of
from processes import marked_processes
from time_bounds import bound_s

KILLS = 250 if "DTRAIN_TEST_LONG" in os.environ else 20
STEPS = 400
SETS = [f"train_steps={STEPS}", "checkpoint.async=true", "checkpoint.interval=3", "checkpoint.keep=2",
        "deterministic=true", "metrics.tensorboard=false"]
STARTING, SAVING = 0.25, 0.25  # Shares of kills before a step is awaited, and while a save is written.


def seed_of(words):
    """The seed that the command line gives, and its other words."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=1)
    args, others = parser.parse_known_args(words)
    return args.seed, others


SEED, sys.argv[1:] = seed_of(sys.argv[1:])


class Tail:
    """The records of a metrics file from a moment on."""

    def __init__(self, path):
        self.path = path
        self.begin = os.path.getsize(path) if os.path.exists(path) else 0

    def records(self):
        """Those whose line is whole; a killed process may have left half of its last one."""
        found = []
        if os.path.exists(self.path):
            with open(self.path, "rb") as file:
                file.seek(self.begin)
                for line in file.read().split(b"\n")[:-1]:
                    try:
                        found.append(json.loads(line))
                    except ValueError:
                        pass
        return found


class Kills(EndToEnd):
    def launch(self, run_dir):
        """The training, its output in a file: nobody reads a pipe while it runs."""
        with open(f"{run_dir}.log", "w", encoding="utf-8") as log:
            return subprocess.Popen(self.launch_command(2, run_dir, SETS), stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                    env=self.environment(None))

    def said(self, run_dir):
        with open(f"{run_dir}.log", encoding="utf-8", errors="replace") as log:
            return log.read()

    def await_a_step(self, tail, process):
        """Waits until this start has logged a step; False if the training ended before."""
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while not any(record["kind"] == "step" for record in tail.records()):
            if process.poll() is not None:
                return False
            self.assertLess(time.monotonic(), end, "no step was logged")
            time.sleep(0.005)
        return True

    @staticmethod
    def cut_saves(run_dir, before=()):
        """Folders of saves without their commit, but those of `before`."""
        return {folder for folder in glob.glob(f"{run_dir}/checkpoints/step-*")
                if not os.path.exists(f"{folder}/MANIFEST.json")} - set(before)

    def await_a_save(self, run_dir, before, process):
        """Waits until this start writes a checkpoint, or has ended."""
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while process.poll() is None and not self.cut_saves(run_dir, before):
            self.assertLess(time.monotonic(), end, "no save began")

    def kill(self, process, whom):
        """Kills a rank, whose launcher then ends the job, or every process of the job."""
        if whom == "all":
            os.kill(process.pid, signal.SIGKILL)
            while left := marked_processes(self.mark):
                for pid, _ in left:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                process.poll()
        else:
            pid = ranks_of(process.pid).get(whom)
            if pid is None:  # It has not started yet, or has ended.
                return self.kill(process, "all")
            os.kill(pid, signal.SIGKILL)
        process.wait(bound_s(60))
        return None

    def newest_whole(self, run_dir):
        """The step of the newest checkpoint, after reading every byte of all of them; 0: there is none."""
        if not glob.glob(f"{run_dir}/checkpoints/step-*/MANIFEST.json"):
            return 0
        result = self.run_program([f"{BIN}/dtrain", "checkpoint", "verify", run_dir, "--json"])
        self.assertEqual(result.code, 0, result.output)
        rows = json.loads(result.output)
        self.assertTrue(all(row["ok"] for row in rows), rows)
        return max(row["step"] for row in rows)

    def check_start(self, tail, from_step, straight):
        """Checks what one start of the training left: where it went on, and that its losses are right."""
        records = tail.records()
        restored = [record["restored"] for record in records if "restored" in record]
        steps = [record["step"] for record in records if record["kind"] == "step"]
        self.assertLessEqual(len(restored), 1)
        if restored:
            self.assertEqual(restored[0], from_step, "it did not go on from the newest checkpoint")
        if steps:
            self.assertEqual(steps[0], from_step + 1)
            self.assertEqual(bool(restored), from_step > 0)
        for record in records:
            if record["kind"] == "step":
                self.assertEqual(record["m"]["train/loss"], straight[record["step"]],
                                 f"step {record['step']}")
        return max((record["step"] for record in records
                    if record["kind"] == "ckpt" and record.get("durable")), default=0)

    def run_under_kills(self, run_dir, draw, straight, counts):
        """Starts a training again and again until it reaches its end; the number of kills is added."""
        newest = 0
        while True:
            tail = Tail(f"{run_dir}/metrics/rank-0.jsonl")
            cut_before = self.cut_saves(run_dir)
            process = self.launch(run_dir)
            kind = draw.random()
            starting, saving = kind < STARTING, kind > 1 - SAVING
            whom, delay = draw.choice(["all", "all", 0, 1]), draw.random()
            if not starting:
                self.await_a_step(tail, process)
            if saving:
                self.await_a_save(run_dir, cut_before, process)
            end = time.monotonic() + delay * (1 if starting else 0.002 if saving else 0.4)
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            ended = process.poll() is not None
            if not ended:
                self.kill(process, whom)
            durable = self.check_start(tail, newest, straight)
            if process.returncode == 0:
                return
            # A kill may come when the job has ended all but its launcher.
            self.assertIn(process.returncode, (-signal.SIGKILL, 128 + signal.SIGKILL),
                          self.said(run_dir))
            self.assertFalse(ended, self.said(run_dir))
            before, newest = newest, self.newest_whole(run_dir)
            self.assertGreaterEqual(newest, max(before, durable), "a durable checkpoint is gone")
            counts["kills"] += 1
            counts["while it started" if starting else "while it trained"] += 1
            counts["with a save under way"] += bool(self.cut_saves(run_dir, cut_before))
            if counts["kills"] >= KILLS:  # To its end, which is compared too.
                tail = Tail(f"{run_dir}/metrics/rank-0.jsonl")
                self.train(2, os.path.basename(run_dir), SETS)
                self.check_start(tail, newest, straight)
                return

    def test_no_kill_damages_a_checkpoint_and_every_resumed_run_has_the_bits_of_one_without(self):
        run_dir = self.train(2, "straight", SETS)
        straight, weights = self.losses(run_dir), self.model_files(run_dir)
        self.assertEqual(len(straight), STEPS)
        draw = random.Random(SEED)
        counts = dict.fromkeys(("kills", "runs", "while it started", "while it trained",
                                "with a save under way"), 0)
        while counts["kills"] < KILLS:
            counts["runs"] += 1
            run_dir = f"{self.folder}/killed-{counts['runs']}"
            with self.subTest(seed=SEED, run=counts["runs"]):
                self.run_under_kills(run_dir, draw, straight, counts)
                self.assertEqual(self.model_files(run_dir), weights)
            shutil.rmtree(run_dir)
        print(f"--seed {SEED}:", ", ".join(f"{name} {count}" for name, count in counts.items()))
        self.assertGreater(counts["while it trained"], KILLS / 3)
        self.assertGreater(counts["with a save under way"], 0)


if __name__ == "__main__":
    end_to_end.main()
